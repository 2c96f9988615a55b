"""Hangs of PyTorch jobs, explained from the dumps of the flight recorder."""

from __future__ import annotations

import html
import os

from . import _hir
from ._diagnostic import FindingsError, HirError, parse_diagnostics


class HangReport:
    """What the dumps of a job show. ``str`` shows it as ``hir hang`` does."""

    def __init__(self, hang: _hir.Hang) -> None:
        self._hang = hang
        #: The first cause, and what else was found, such as a dump that cannot be read.
        self.findings = parse_diagnostics(hang.json)
        #: Whether the dumps show a hang.
        self.is_hang = hang.is_hang
        #: The result in one line.
        self.verdict = hang.verdict
        #: Where the ranks are: a line for all ranks in the same state.
        self.table = tuple(hang.table)

    def __str__(self) -> str:
        notes = [f"# {it}" for it in self._hang.notes]
        table = [f"  {it}" for it in self.table]
        return "\n".join([self._hang.text.rstrip("\n"), *notes, *table, self.verdict]).lstrip("\n")

    def __repr__(self) -> str:
        return f"<hir.HangReport: {self.verdict}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def raise_if_found(self) -> None:
        """Raises ``FindingsError`` if the dumps show a hang."""
        if self.is_hang:
            raise FindingsError(str(self), self._hang.json)


def hang(*paths: str | os.PathLike[str]) -> HangReport:
    """Explains why a PyTorch job does not proceed, from the dumps of its flight recorder: files, one for each rank, or folders.

    Raises ``HirError`` if no dump can be read, such as of a path that does not exist. A dump that cannot be read is a finding if there are
    others.
    """
    try:
        return HangReport(_hir.hang(paths))
    except OSError as error:
        raise HirError(str(error)) from error
