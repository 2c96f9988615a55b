"""The commands of the package: ``hir``, ``hir-opt``, ``hir-run`` and ``hir-reduce``; also ``python -m hir``."""

from __future__ import annotations

import signal
import sys

from . import _hir

TOOLS = {
    "hang": "explains why a PyTorch job hangs, from the dumps of its flight recorder",
    "opt": "reads a Host IR program, checks it, runs passes and prints it",
    "reduce": "shrinks a failing program",
    "run": "runs a program on simulated ranks or GPUs and verifies its results",
}


def _run(tool: str, arguments: list[str]) -> int:
    # Ctrl-C is the tool's: Python's handler would wait until the tool has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    start = [sys.executable, "-m", "hir", tool]
    return _hir.run_tool(tool, start, arguments)


def opt() -> int:
    return _run("opt", sys.argv[1:])


def reduce() -> int:
    return _run("reduce", sys.argv[1:])


def run() -> int:
    return _run("run", sys.argv[1:])


def main() -> int:
    """Runs the tool that the first argument names."""
    match sys.argv[1:]:
        case [tool, *arguments] if tool in TOOLS:
            return _run(tool, arguments)
        case ["-h" | "--help"]:
            print("usage: hir TOOL [ARGUMENTS]; each tool has its own --help")
            for tool, text in TOOLS.items():
                print(f"  {tool:<8}{text}")
            return 0
        case [other, *_]:
            print(f"hir: `{other}` is not a tool: expected {', '.join(TOOLS)}", file=sys.stderr)
        case _:
            print(f"usage: hir TOOL [ARGUMENTS], with one of the tools {', '.join(TOOLS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
