"""The process that supervises the ranks of a job: it matches their calls, and sees when none of them can proceed."""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Sequence

from ._calls import Call, Group
from ._matching import Matching, Slot, parts_of

#: Seconds between two looks at the processes.
TICK = 0.2
#: Seconds without a message after which ranks that say nothing are asked where they are.
QUIET = 1.0
#: Seconds that a job goes on after a fault is proven, so that other ranks get to their calls.
AFTER_FAULT = 10.0
#: Seconds that a rank has to end by itself.
GRACE = 5.0
#: Where a thread that waits for a future is.
FUTURES = (("torch/autograd/graph.py", "_engine_run_backward"), ("torch/futures/__init__.py", "wait"))


@dataclass
class Use:
    """A use of a buffer while a communication on it is pending."""

    rank: int
    how: str
    operator: str
    place: str
    call: str
    call_place: str


@dataclass
class State:
    """What is known of a rank."""

    #: Its frames: file, line and function.
    frames: list[tuple[str, int, str]] = field(default_factory=list)
    #: Its different calls.
    calls: list[Call] = field(default_factory=list)
    #: The groups that it has made, by name and members.
    groups: dict[tuple[str, tuple[int, ...]], Group] = field(default_factory=dict)
    #: Its calls of `new_group`, which all ranks have to make: the members, and where.
    asked: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    #: The number of the call that it waits for, and whether other threads of the script may make calls.
    waits: int | None = None
    has_threads: bool = False
    #: Whether it waits for the communicator of the call.
    joins: bool = False
    #: Where its main thread was when it was asked last, with its time on the CPU.
    top: tuple[str, str] = ("", "")
    place: str = ""
    cpu: float = -1.0
    #: Whether it was in a wait for futures, and idle, when it was asked last.
    is_idle: bool = False
    #: The exit code of its script, and the error; None while it runs.
    code: int | None = None
    error: str = ""
    is_gone: bool = False


@dataclass
class Outcome:
    """How a job has ended, for the judgement."""

    matching: Matching
    states: list[State]
    uses: list[Use]
    #: Why the job was ended: ``standstill``, ``fault`` or ``timeout``; None if all ranks have ended.
    stopped: str | None
    timeout: float
    seconds: float
    #: Whether futures of calls were used: what follows them is not seen.
    has_futures: bool
    #: What the record does not have, with the line of its use.
    outside: list[tuple[str, str]]


class Supervisor:
    """Reads what ranks report, and answers."""

    def __init__(self, connections: Sequence[Connection], processes: Sequence[int], timeout: float) -> None:
        self._connections = list(connections)
        self._processes = list(processes)
        self._timeout = timeout
        self._states = [State() for _ in connections]
        self._matching = Matching()
        self._uses: list[Use] = []
        self._pieces: dict[Any, Any] = {}
        self._has_futures = False
        self._outside: list[tuple[str, str]] = []
        #: The ranks that have begun to create a communicator of two, each with its call.
        self._joined: dict[Any, dict[int, int]] = {}
        self._unread: dict[int, tuple[Slot, set[int]]] = {}
        self._free: list[list[int]] = [[] for _ in connections]

    def run(self) -> Outcome:
        """Serves the ranks until all have ended, or none can proceed."""
        began = last = asked = collected = time.monotonic()
        fault_since: float | None = None
        stopped = None
        selector = selectors.DefaultSelector()
        for rank, connection in enumerate(self._connections):
            selector.register(connection, selectors.EVENT_READ, rank)
        while not all(it.is_gone for it in self._states):
            if all(it.code is not None for it in self._states) and time.monotonic() - last > GRACE:
                break
            ready = [it.data for it, _ in selector.select(TICK)]
            now = time.monotonic()
            for rank in ready:
                try:
                    message = None if self._states[rank].is_gone else self._connections[rank].recv()
                except (EOFError, OSError):
                    self._collect(rank, is_last=True)
                    message = None
                if message is None:
                    selector.unregister(self._connections[rank])
                    continue
                self._take(rank, message)
                if message[0] != "where":
                    last = now
            if not ready or now - collected > QUIET:
                collected = now
                for rank, state in enumerate(self._states):
                    if not state.is_gone:
                        self._collect(rank)
            if self._matching.unfit and fault_since is None:
                fault_since = now
            stopped = self._stop_reason(now - last, now - fault_since if fault_since else 0.0)
            if stopped:
                break
            if now - last > QUIET and now - asked > QUIET:
                asked = now
                self._ask()
        return Outcome(self._matching, self._states, self._uses, stopped, self._timeout, time.monotonic() - began, self._has_futures, self._outside)

    def _stop_reason(self, silent: float, since_fault: float) -> str | None:
        running = [it for it in self._states if not it.is_gone and it.code is None]
        is_waiting = any(it.waits is not None or it.is_idle for it in running)
        if running and all(it.waits is not None or it.is_idle for it in running):
            is_guess = any(it.waits is None for it in running)
            # Another thread of the script may make the call that others wait for.
            if silent >= (AFTER_FAULT if any(it.has_threads for it in running) else 3 * QUIET if is_guess else 0):
                return "standstill"
        if since_fault > AFTER_FAULT and is_waiting:
            return "fault"
        if not running or silent <= self._timeout:
            return None
        has_open = any(next(self._matching.open_posts(rank), None) for rank in range(len(self._states)))
        return "timeout" if has_open or is_waiting else None

    def _take(self, rank: int, message: tuple[Any, ...]) -> None:
        state = self._states[rank]
        kind = message[0]
        if kind == "call":
            _, call, (number, batch, offset, time), frames, read = message
            state.frames += frames
            self._note_read(rank, read)
            if isinstance(call, int):
                call = state.calls[call]
            else:
                # Equal parts of calls of different ranks are one object, also in messages.
                call = call._replace(pieces=self._pieces.setdefault(call.pieces, call.pieces))
                state.calls.append(call)
            self._complete(self._matching.add(rank, call._replace(number=number, batch=batch, offset=offset, time=time)))
        elif kind == "batch":
            self._complete(self._matching.end_batch(rank, message[1]))
        elif kind == "wait":
            post = self._matching.post_of(rank, message[1])
            state.has_threads = message[2]
            if post is not None and not post.completed:
                state.waits = message[1]
        elif kind == "future":
            self._has_futures = True
        elif kind == "join":
            joined = self._joined.setdefault(message[2], {})
            joined[rank] = state.waits = message[1]
            state.joins = True
            if len(joined) == 2:
                for it in joined:
                    self._states[it].waits, self._states[it].joins = None, False
                    self._send(it, ("joined", message[2]))
        elif kind == "group":
            state.groups[message[1].key] = message[1]
        elif kind == "asked":
            state.asked.append(message[1:])
        elif kind == "use":
            self._uses.append(Use(rank, *message[1:]))
        elif kind == "outside":
            self._outside += [message[1:]] if message[1:] not in self._outside else []
        elif kind == "where":
            _, top, place, cpu = message
            is_future = any(top[0].endswith(file) and top[1] == function for file, function in FUTURES)
            has_open = next(self._matching.open_posts(rank), None) is not None
            state.is_idle = is_future and has_open and cpu - state.cpu < 0.02 and self._sleeps(rank)
            state.top, state.place, state.cpu = top, place, cpu
        elif kind == "end":
            state.code, state.error = message[1], message[2]

    def _complete(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            parts = pickle.dumps(parts_of(slot))
            self._unread[slot.number] = (slot, {it.rank for it in slot.posts.values()})
            for post in slot.posts.values():
                state = self._states[post.rank]
                if state.waits == post.call.number and not state.joins:
                    state.waits = None
                state.is_idle = False
                free, self._free[post.rank] = self._free[post.rank], []
                self._send(post.rank, ("done", post.call.number, slot.number, parts, free))

    def _note_read(self, rank: int, slots: Sequence[int]) -> None:
        for number in slots:
            self._matching.end_wait(rank, number)
            slot, unread = self._unread[number]
            unread.discard(rank)
            if not unread:
                del self._unread[number]
                for post in slot.posts.values():
                    if post.call.pieces:
                        self._free[post.rank].append(post.call.offset)

    def _send(self, rank: int, message: tuple[Any, ...]) -> None:
        if not self._states[rank].is_gone:
            try:
                self._connections[rank].send(message)
            except OSError:
                self._collect(rank, is_last=True)

    def _ask(self) -> None:
        """Asks the ranks that wait for nothing that is known where they are."""
        for rank, state in enumerate(self._states):
            if state.waits is None and state.code is None and not state.is_gone:
                self._send(rank, ("where",))

    def _sleeps(self, rank: int) -> bool:
        """Whether the main thread of a rank waits, and not for a processor."""
        process = self._processes[rank]
        try:
            with open(f"/proc/{process}/task/{process}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "S"
        except OSError:
            return False

    def _collect(self, rank: int, is_last: bool = False) -> None:
        """Notes the end of a process."""
        state = self._states[rank]
        try:
            process, status = os.waitpid(self._processes[rank], 0 if is_last else os.WNOHANG)
        except ChildProcessError:
            process, status = self._processes[rank], 0
        if process == 0:
            return
        while not is_last and self._connections[rank].poll():
            try:
                self._take(rank, self._connections[rank].recv())
            except (EOFError, OSError):
                break
        state.is_gone, state.waits = True, None
        code = os.waitstatus_to_exitcode(status)
        if state.code is None or code < 0:
            state.code = code
            name = signal.Signals(-code).name if code < 0 else ""
            state.error = state.error or (f"it was ended by {name}" if name else f"it left with exit code {code} without an exception")

    def end(self) -> None:
        """Ends the processes that still run."""
        left = [rank for rank, it in enumerate(self._states) if not it.is_gone]
        for rank in left:
            self._send(rank, ("stop",))
        limit = time.monotonic() + GRACE
        for rank in left:
            process = self._processes[rank]
            while time.monotonic() < limit:
                if self._is_over(process):
                    break
                time.sleep(0.01)
            else:
                try:
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                except (ProcessLookupError, ChildProcessError):
                    pass
        sys.stdout.flush()

    def _is_over(self, process: int) -> bool:
        try:
            return os.waitpid(process, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True
