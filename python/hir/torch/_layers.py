"""Layers of a model that are equal: PyTorch traces one of each class, and calls its graph for the others."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any, Callable, Iterator

#: As many layers of a class have one graph. Of fewer, a graph that is called costs more than it saves.
FEWEST = 4


@contextlib.contextmanager
def traced_once(function: Callable[..., Any]) -> Iterator[bool]:
    """Marks the classes of modules that stand several times in a list of modules, and returns whether there are any.

    PyTorch compares what a trace depends on, and traces a module again that differs.
    """
    import torch

    mark: Any = getattr(torch.compiler, "nested_compile_region", None)
    kinds: set[Any] = {kind for model in _models(function) for kind in _repeated(model)} if mark else set()
    forwards = {kind: kind.forward for kind in kinds}
    try:
        for kind in forwards:
            kind.forward = mark(kind.forward)
        yield bool(kinds)
    finally:
        for kind, forward in forwards.items():
            kind.forward = forward


def _models(function: Any) -> Iterator[Any]:
    import torch

    cells = (it.cell_contents for it in getattr(function, "__closure__", None) or () if it != type(it)())
    for it in (function, getattr(function, "__self__", None), *cells):
        if isinstance(it, torch.nn.Module):
            yield it


def _repeated(model: Any) -> Iterator[type]:
    import torch

    for it in model.modules():
        if isinstance(it, (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)):
            kinds = Counter(type(child) for child in it.children())
            yield from (kind for kind, count in kinds.items() if count >= FEWEST and not kind.__module__.startswith("torch."))
