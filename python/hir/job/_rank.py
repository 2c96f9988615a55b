"""One rank of a job: what its process does with the calls of the script."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from time import process_time, time_ns
from types import FrameType
from typing import TYPE_CHECKING, Any, Hashable, Sequence

import torch
from torch.futures import Future

from ._calls import Call, Group, Need
from ._stacks import Stacks
from ._transport import Memory, deliver, elements_of
from ._uses import Uses

if TYPE_CHECKING:
    from ._absent import Absent

#: How the names of threads of this module begin.
THREADS = "hir-"

#: Seconds that a rank waits before it reports that it waits.
SHORT = 0.002

#: The offset of pieces without values.
NO_VALUES = -1


@dataclass
class Issued:
    """A call that this rank has issued."""

    number: int
    name: str
    place: str
    queue: object
    batch: tuple[object, int | None]
    outputs: list[tuple[Any, tuple[tuple[int, int], ...]]]
    reduction: str | None
    factor: float
    result: list[Any]
    #: Whether it has completed, and where the pieces of the members are then.
    event: threading.Event = field(default_factory=threading.Event)
    parts: Any = None
    slot: int = 0
    is_delivered: bool = False
    future: Any = None
    is_unseen: bool = False
    source: int = -1


class CallFuture(Future):  # type: ignore[misc]
    """The future of a call."""

    def begin(self, rank: Rank, issued: Issued) -> None:
        self._rank, self._issued = rank, issued

    def wait(self) -> Any:
        self._rank.wait(self._issued)
        return super().wait()

    def release(self) -> None:
        """Notes that something else than Python waits for it: a callback, or the C++ of PyTorch."""
        self._rank.unsee(self._issued)

    def then(self, callback: Any) -> Any:
        self.release()
        return super().then(callback)

    def add_done_callback(self, callback: Any) -> None:
        self.release()
        super().add_done_callback(callback)


class Rank:
    """The connection to the process that matches the calls of all ranks."""

    def __init__(self, rank: int, connection: Connection, files: Sequence[int]) -> None:
        self.rank = rank
        self._connection = connection
        self._memory = Memory(rank, files)
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self._issued: dict[int, Issued] = {}
        self._queues: dict[object, dict[int, Issued]] = {}
        self._next = 0
        self._read: list[int] = []
        self._communicators: dict[Hashable, threading.Event] = {}
        #: The different calls, with their numbers.
        self._calls: dict[Call, int] = {}
        self._stacks = Stacks()
        self._reported: set[tuple[str, ...]] = set()
        self.uses = Uses(self._report_use, self.place)
        #: What knows the tensors without values, if there are any.
        self.absent: Absent | None = None
        threading.Thread(target=self._receive, name=f"{THREADS}receive", daemon=True).start()

    def send(self, *message: Any) -> None:
        with self._sending:
            if message[0] == "call":
                # Of a call that is equal to an earlier one, its number among the different ones is sent.
                call = message[1]
                message = ("call", self._calls.get(call, call), *message[2:])
                self._calls.setdefault(call, len(self._calls))
            try:
                self._connection.send(message)
            except (OSError, ValueError):
                # The other side has ended the job.
                os._exit(1)

    # The calls.

    def issue(
        self,
        group: Group,
        name: str,
        kind: str,
        pieces: Sequence[Any],
        outputs: Sequence[tuple[Any, tuple[tuple[int, int], ...]]],
        *,
        inputs: Sequence[Any],
        results: Sequence[Any],
        root: int | None = None,
        reduction: tuple[str, float] | None = None,
        peer: int | None = None,
        tag: int = 0,
        batch: int | None = None,
        is_blocking: bool = False,
        value: list[Any] | None = None,
    ) -> Issued:
        """Reports a call and writes what it gives. ``inputs`` and ``results`` are the tensors as the script passes them."""
        is_single = peer is not None and batch is None and group.is_nccl and group.has_pairs
        queue = (group.key, peer if is_single else None) if group.is_nccl else None
        frames, place = self._stacks.of(sys._getframe(2))
        with self.uses.quiet():
            ordered, unordered = self.uses.earlier(queue, inputs, results)
            for it in ordered:
                issued = self._issued.get(it.number)
                # The calls of a batch run together.
                if issued is not None and batch is not None and issued.batch == (group.key, batch):
                    unordered.append(it)
                elif issued is not None:
                    self.wait(issued)
            for it in unordered:
                self._report_use(it.about, "uses", f"the {name.lstrip('_').partition(' ')[0]}")
            use = self.uses.not_followed(inputs, [it for it, _ in outputs]) if group.is_nccl else None
            if use is not None:
                self._report_use((name, place), "uses earlier", use.operator, use.place)
            with self._lock:
                has_values = self.absent is None or not any(map(self.absent.has, pieces))
                offset = self._memory.write(pieces) if has_values else NO_VALUES
                number, self._next = self._next, self._next + 1
        op, factor = reduction or (None, 1.0)
        about = Issued(number, name, place, queue, (group.key, batch), list(outputs), op, factor, list(value or ()))
        call = Call(
            number=0,
            group=group,
            name=name,
            kind=kind,
            inputs=tuple(tuple(it.shape) for it in inputs),
            outputs=tuple(tuple(it.shape) for it in results),
            input_types=tuple(scalar_type(it.dtype) for it in inputs),
            output_types=tuple(scalar_type(it.dtype) for it in results),
            pieces=tuple(elements_of(it) for it in pieces),
            needs=tuple(Need(elements_of(it), sources) for it, sources in outputs),
            root=root,
            reduction=reduction[0] if reduction else None,
            peer=peer,
            tag=tag,
            batch=None,
            offset=0,
            frames=frames,
            time=0,
        )
        with self._lock:
            self._issued[number] = about
            self._queues.setdefault(queue, {})[number] = about
            read, self._read = self._read, []
            new = self._stacks.new()
        self.uses.add(number, (name, place), queue, inputs, results, is_blocking)
        self.send("call", call, (number, batch, offset, time_ns()), new, read)
        if is_single and peer is not None and group.ranks[peer] != self.rank:
            self._connect(number, (group.key, min(self.rank, group.ranks[peer]), max(self.rank, group.ranks[peer])))
        return about

    def _connect(self, number: int, communicator: Hashable) -> None:
        """Waits until both ranks have made the first call on a communicator of two: NCCL creates it then, and blocks the host."""
        if communicator not in self._communicators:
            event = self._communicators[communicator] = threading.Event()
            self.send("join", number, communicator)
            event.wait()

    def end_batch(self, batch: int) -> None:
        self.send("batch", batch)

    def wait(self, issued: Issued) -> None:
        """Waits until a call has completed, and gives its outputs their values."""
        if not issued.event.wait(SHORT):
            others = [it for it in threading.enumerate() if it is not threading.current_thread() and not it.name.startswith(THREADS)]
            if threading.current_thread() is threading.main_thread():
                self.send("wait", issued.number, bool(others))
            issued.event.wait()
        self.finish(issued)
        if issued.queue is not None:
            # What is before it in the queue has completed, too.
            for number, it in list(self._queues.get(issued.queue, {}).items()):
                if number < issued.number and it.event.is_set():
                    self.finish(it)

    def synchronize(self) -> None:
        """Waits for all calls, as the host does for a GPU."""
        for issued in list(self._issued.values()):
            self.wait(issued)
        self.uses.synchronize()

    def finish(self, issued: Issued) -> None:
        """Notes the end of a wait."""
        self._deliver(issued)
        self.uses.end_wait(issued.number)
        self._forget(issued)

    def _forget(self, issued: Issued) -> None:
        self._issued.pop(issued.number, None)
        self._queues.get(issued.queue, {}).pop(issued.number, None)

    def _deliver(self, issued: Issued) -> None:
        with self._lock:
            if issued.is_delivered:
                return
            issued.is_delivered = True
            with self.uses.quiet():
                for target, sources in issued.outputs:
                    if self.absent is not None and (self.absent.has(target) or any(issued.parts[it][1] == NO_VALUES for it, _ in sources)):
                        self.absent.mark(target)
                        continue
                    deliver(self._memory, issued.parts, sources, target, issued.reduction, issued.factor)
            self._read.append(issued.slot)
            if issued.outputs and issued.parts:
                issued.source = issued.parts[0][0]

    def future(self, issued: Issued, is_seen: bool) -> Any:
        """Returns the future of a call, which completes with it, and whether its waits are seen: Python waits for it."""
        with self._lock:
            has_future = issued.future is not None
            if not has_future:
                issued.future = CallFuture()
                issued.future.begin(self, issued)
            is_complete = issued.event.is_set()
        if not is_seen:
            issued.future.release()
        if is_complete and not has_future:
            self._complete(issued)
        return issued.future

    def unsee(self, issued: Issued) -> None:
        """Notes that waits for a call are not seen."""
        if not issued.is_unseen:
            issued.is_unseen = True
            self.uses.remove(issued.number)
            self.send("future", issued.number)

    def _complete(self, issued: Issued) -> None:
        self._deliver(issued)
        if issued.is_unseen:
            self._forget(issued)
        issued.future.set_result(issued.result)

    # What the other side says.

    def _receive(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                os._exit(1)
            if message[0] == "done":
                _, number, slot, parts, free = message
                parts = pickle.loads(parts)
                with self._lock:
                    for offset in free:
                        self._memory.free(offset)
                    issued = self._issued[number]
                    issued.parts, issued.slot = parts, slot
                    issued.event.set()
                    has_future = issued.future is not None
                if has_future:
                    # What follows it may wait for other calls.
                    threading.Thread(target=self._complete, args=(issued,), name=f"{THREADS}future", daemon=True).start()
            elif message[0] == "joined":
                self._communicators[message[1]].set()
            elif message[0] == "where":
                self._tell_where()
            elif message[0] == "stop":
                for stream in (sys.stdout, sys.stderr):
                    try:
                        stream.flush()
                    except (OSError, ValueError):
                        pass
                os._exit(1)

    def _tell_where(self) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        top = (frame.f_code.co_filename, frame.f_code.co_name) if frame else ("", "")
        place = self._stacks.of(frame)[1] if frame else ""
        self.send("where", top, place, process_time())

    # Stacks.

    def place(self, frame: FrameType | None) -> str:
        """Returns the line of the script that leads to a frame."""
        return self._stacks.of(frame)[1]

    def report_outside(self, what: str, frame: FrameType | None) -> None:
        self.send("outside", what, self.place(frame))

    def _report_use(self, about: tuple[str, str], how: str, operator: str, place: str = "") -> None:
        finding = (how, operator, place or self.place(sys._getframe(1)), *about)
        if finding not in self._reported:
            self._reported.add(finding)
            self.send("use", *finding)


@functools.cache
def scalar_type(dtype: Any) -> str:
    """The name of an element type in the flight recorder, which is also that of the old class of such tensors: ``torch.FloatTensor``."""
    return str(torch.empty(0, dtype=dtype).type()).removeprefix("torch.").removesuffix("Tensor")
