"""The commands of the package: ``hir``, ``hir-opt`` and ``hir-run``; also ``python -m hir``."""

from __future__ import annotations

import signal
import sys

from . import _hir


def _run(*arguments: str) -> int:
    # Ctrl-C is the tool's: Python's handler would wait until the tool has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    return _hir.run_tool([sys.executable, "-m", "hir"], list(arguments))


def opt() -> int:
    return _run("opt", *sys.argv[1:])


def run() -> int:
    return _run("run", *sys.argv[1:])


def main() -> int:
    """Runs the tool that the first argument names."""
    if sys.argv[1:2] == ["job"]:
        from .job._command import main as job

        return job(sys.argv[2:])
    if sys.argv[1:2] == ["compare"]:
        from .compare._command import main as compare

        return compare(sys.argv[2:])
    return _run(*sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
