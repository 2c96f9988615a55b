"""How much communication of a program is hidden behind computation, with the lines of the Python program."""

from __future__ import annotations

from typing import Any, Callable, Mapping


def explanation(overlap: Mapping[str, Any], place: Callable[[int], str | None]) -> str:
    """The result of ``Program.overlap`` as text."""
    lines = [f"{overlap['total']:g} µs, {overlap['source']}"]
    for rank in overlap["ranks"]:
        lines.append(
            f"rank {rank['rank']}: {rank['communication']:g} µs of communication, {rank['hidden']:g} µs of it hidden, "
            f"{rank['exposed']:g} µs exposed"
        )
    for it in sorted(overlap["waits"], key=lambda it: -float(it["time"])):
        lines.append(f"  {place(it['line']) or 'line ' + str(it['line'])}: waits {it['time']:g} µs {it['reason']}")
    return "\n".join(lines)
