"""The table of operators in the documentation: ``python -m hir.torch`` prints it."""

from __future__ import annotations

from typing import Mapping

from ._streams import COUNTERPARTS
from .operators import COMMUNICATIONS, OPERATORS, Operator


def table() -> str:
    """The operators that the importer knows, with their counterparts in Host IR, as Markdown."""
    lines = ["| operators | in Host IR |", "| --- | --- |", *_rows(OPERATORS)]
    lines += ["", "In a program that differs between ranks:", ""]
    lines += ["| collectives | in Host IR |", "| --- | --- |", *_rows(COMMUNICATIONS)]
    lines += ["", "Where `torch.compile` keeps streams and events:", ""]
    lines += ["| operators on streams | in Host IR |", "| --- | --- |"]
    lines += [f"| `{target}` | {counterpart} |" for target, counterpart in COUNTERPARTS.items()]
    return "\n".join(lines)


def _rows(operators: Mapping[str, Operator]) -> list[str]:
    """A row for each counterpart, with its operators without their overloads."""
    names: dict[str, dict[str, None]] = {}
    for target, it in operators.items():
        namespace, name = target.split(".")[:2]
        if namespace != "hir":
            shown = name if namespace == "aten" else f"{namespace}.{name}"
            names.setdefault(it.counterpart, {})[f"`{shown}`"] = None
    rows = [f"| {', '.join(sorted(them))} | {counterpart.replace('|', chr(92) + '|')} |" for counterpart, them in names.items()]
    return sorted(rows)
