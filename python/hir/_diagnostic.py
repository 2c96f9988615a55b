"""Diagnostics of hir as objects, and the exceptions that carry them."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Label:
    """A place in the text, and what is there."""

    line: int
    column: int
    text: str


@dataclass(frozen=True)
class Fix:
    """An edit that corrects what a diagnostic reports: ``text`` replaces the bytes from ``start`` to ``end``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Diagnostic:
    """An error, a warning or a remark. ``hir-opt --explain CODE`` says more about its code."""

    code: str
    severity: str
    message: str
    file: str | None
    labels: tuple[Label, ...]
    notes: tuple[str, ...]
    help: str | None
    fixes: tuple[Fix, ...]

    @property
    def line(self) -> int | None:
        """The line of the main place, from 1."""
        return self.labels[0].line if self.labels else None

    def __str__(self) -> str:
        place = "".join(f"{it}:" for it in (self.file, self.line) if it is not None)
        return f"{place}{' ' if place else ''}{self.severity}[{self.code}]: {self.message}"


def parse_diagnostics(lines: str) -> tuple[Diagnostic, ...]:
    """Reads diagnostics from JSON, one line each."""

    def parse(line: str) -> Diagnostic:
        it = json.loads(line)
        return Diagnostic(
            code=it["code"],
            severity=it["severity"],
            message=it["message"],
            file=it["file"],
            labels=tuple(Label(label["line"], label["column"], label["text"]) for label in it["labels"]),
            notes=tuple(it["notes"]),
            help=it["help"],
            fixes=tuple(Fix(fix["start"], fix["end"], fix["text"]) for fix in it["fixes"]),
        )

    return tuple(parse(line) for line in lines.split("\n") if line)


class HirError(Exception):
    """What hir refuses: a text with errors, a pass that does not apply, a run that fails.

    ``str`` shows the diagnostics with the lines of the text. ``diagnostics`` has them as objects; it is empty if the error
    has no place in a text. ``code``, ``line`` and ``help`` are those of the first error.
    """

    def __init__(self, text: str, lines: str = "") -> None:
        super().__init__(text.rstrip("\n"))
        self.diagnostics = parse_diagnostics(lines)
        first = next((it for it in self.diagnostics if it.severity == "error"), None)
        #: The code of the first error, such as ``E0701``.
        self.code = first.code if first else None
        #: The line of the first error.
        self.line = first.line if first else None
        #: What to do about the first error.
        self.help = first.help if first else None


class FindingsError(HirError):
    """A check has found faults, or could not run; or the dumps of a job show a hang."""


class Report:
    """The result of a check: findings, and what could not be checked.

    ``str`` shows the findings with the lines of the text.
    """

    def __init__(self, text: str, lines: str, not_checked: list[str]) -> None:
        self._text = text
        self._lines = lines
        self.findings = parse_diagnostics(lines)
        #: The checks that could not run, with their reasons. Only without them is the absence of faults a proof.
        self.not_checked = tuple(not_checked)

    @property
    def faults(self) -> tuple[Diagnostic, ...]:
        """The findings that are errors: races, deadlocks, elements that nothing writes."""
        return tuple(it for it in self.findings if it.severity == "error")

    def __str__(self) -> str:
        unchecked = "".join(f"not checked: {it}\n" for it in self.not_checked)
        return f"{self._text}{unchecked}".rstrip("\n") or "no faults"

    def __repr__(self) -> str:
        return f"<hir.Report: {len(self.faults)} faults, {len(self.findings)} findings>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def raise_if_found(self) -> None:
        """Raises ``FindingsError`` if there is a fault, or a check that could not run."""
        if self.faults or self.not_checked:
            raise FindingsError(str(self), self._lines)
