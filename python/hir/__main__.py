"""The command ``python -m hir``, which has the tools of Python besides those of ``hir``."""

from __future__ import annotations

import importlib
import signal
import sys

from . import _hir


def _run(*arguments: str) -> int:
    # Ctrl-C is the tool's: Python's handler would wait until the tool has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    return _hir.run_tool([sys.executable, "-m", "hir"], list(arguments))


def main() -> int:
    """Runs the tool that the first argument names."""
    if sys.argv[1:2] not in (["job"], ["compare"], ["jax"]):
        return _run(*sys.argv[1:])
    command = importlib.import_module(f".{sys.argv[1]}._command", __package__)
    try:
        return int(command.main(sys.argv[2:]))
    except OSError as error:
        print(f"[FAILED] {error.strerror}{f': {error.filename}' if error.filename else ''}")
        return 6
    except KeyboardInterrupt:
        print("[STOPPED] by SIGINT")
        return 130


if __name__ == "__main__":
    sys.exit(main())
