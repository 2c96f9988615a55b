"""Ends a process whose GPU waits for other ranks in vain. Nothing else can: PyTorch waits for the GPU without a limit."""

from __future__ import annotations

import os
import signal
import sys
import threading
from time import monotonic
from typing import Any, Callable

#: Seconds between two looks at the runs.
INTERVAL = 1.0


class Watch:
    """Watches the runs of programs in a thread. If a program completes none for its time, it reports this and aborts."""

    def __init__(self, end: Callable[[str], None]) -> None:
        self._end = end
        #: Each program with its name, its limit, the completed runs that were seen last, and since when.
        self._programs: list[list[Any]] = []
        self._thread = threading.Thread(target=self._look, name="hir-watch", daemon=True)

    def add(self, name: str, progress: Callable[[], tuple[int, int]], limit: float) -> None:
        self._programs.append([name, progress, limit, 0, monotonic()])
        if not self._thread.is_alive():
            self._thread.start()

    def _look(self) -> None:
        while threading.main_thread().is_alive():
            for program in list(self._programs):
                name, progress, limit, seen, since = program
                issued, complete = progress()
                if complete == issued or complete != seen:
                    program[3:] = [complete, monotonic()]
                elif monotonic() - since > limit:
                    self._end(
                        f"run {complete + 1} of {name} has not ended for {limit:g} s, of {issued} that this rank has issued: "
                        "another rank has ended, or has not called it"
                    )
                    return
            threading.Event().wait(INTERVAL)


def abort(message: str) -> None:
    """Ends this process as PyTorch does after a time-out of NCCL, so that the launcher ends the other ranks."""
    print(f"hir: rank {os.environ.get('RANK', '0')}: {message}", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGABRT)


WATCH = Watch(abort)
