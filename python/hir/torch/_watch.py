"""Ends a process whose GPU waits for other ranks in vain. Nothing else can: PyTorch waits for the GPU without a limit."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Callable

#: Seconds between two looks at the runs.
INTERVAL = 1.0


@dataclass
class Watched:
    """A program whose runs are watched."""

    name: str
    #: The numbers of runs that this rank has issued and completed.
    progress: Callable[[], tuple[int, int]]
    #: How many seconds the program may complete no run.
    limit: float
    #: The completed runs that were seen last, and since when.
    completed: int = 0
    since: float = field(default_factory=monotonic)


class Watch:
    """Watches the runs of programs in a thread. If a program completes none for its time, it reports this and aborts."""

    def __init__(self, abort: Callable[[str], None]) -> None:
        self._abort = abort
        self._programs: list[Watched] = []
        self._thread = threading.Thread(target=self._watch, name="hir-watch", daemon=True)

    def add(self, name: str, progress: Callable[[], tuple[int, int]], limit: float) -> None:
        self._programs.append(Watched(name, progress, limit))
        if not self._thread.is_alive():
            self._thread.start()

    def _watch(self) -> None:
        while threading.main_thread().is_alive():
            for program in list(self._programs):
                issued, completed = program.progress()
                if completed == issued or completed != program.completed:
                    program.completed, program.since = completed, monotonic()
                elif monotonic() - program.since > program.limit:
                    self._abort(
                        f"run {completed + 1} of {program.name} has not ended for {program.limit:g} s, of {issued} that this rank has issued: "
                        "another rank has ended, or has not called it"
                    )
                    return
            sleep(INTERVAL)


def abort(message: str) -> None:
    """Ends this process as PyTorch does after a time-out of NCCL, so that the launcher ends the other ranks."""
    print(f"hir: rank {os.environ.get('RANK', '0')}: {message}", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGABRT)


WATCH = Watch(abort)
