"""Reads the StableHLO that JAX lowers a function to as a program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from .. import _hir
from .._diagnostic import parse_diagnostics
from .._program import Program

__all__ = ["Jitted", "Lowered", "capture"]


@runtime_checkable
class Lowered(Protocol):
    """What ``jax.jit(f).lower(*args)`` returns."""

    def as_text(self) -> str: ...


@runtime_checkable
class Jitted(Protocol):
    """What ``jax.jit(f)`` returns."""

    def lower(self, *args: Any, **kwargs: Any) -> Lowered: ...


def capture(
    function: Jitted | Lowered,
    *args: Any,
    save: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Program:
    """Reads what ``jax.jit`` lowers a function to for these arguments, which may be ``jax.ShapeDtypeStruct``.

    ``function`` may also be lowered already. ``save`` is a file to which the text is written; the tools and ``hir.read`` read it.

    Raises ``HirError`` at an operation that hir does not read, ``TypeError`` if ``function`` is not from ``jax.jit``.
    """
    text = lowered(function, *args, **kwargs).as_text()
    if save is not None:
        Path(save).write_text(text, encoding="utf-8")
    program, warnings = _hir.read(text, "<jax>" if save is None else os.fspath(save), None, [])
    return Program(program, parse_diagnostics(warnings))


def lowered(function: object, *args: Any, **kwargs: Any) -> Lowered:
    """What ``jax.jit`` lowers a function to for these arguments, unless it is lowered already.

    Raises ``TypeError`` if ``function`` is not from ``jax.jit``.
    """
    found = function
    # A string has a method `lower`, too.
    if isinstance(function, Jitted) and not isinstance(function, str):
        found = function.lower(*args, **kwargs)
    if not isinstance(found, Lowered):
        message = f"expected `jax.jit(f)` or `jax.jit(f).lower(...)`, not {type(function).__name__}: wrap it in `jax.jit`"
        raise TypeError(message)
    return found
