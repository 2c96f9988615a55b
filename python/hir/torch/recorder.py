"""Process groups that record their calls for ``hir hang``: import this module, and name the backend ``hir:nccl`` or ``hir:gloo``.

NCCL or gloo executes the calls. Each rank keeps the last 2,000, and writes them as PyTorch's flight recorder does, into the file whose name
begins with ``TORCH_FR_DUMP_TEMP_FILE`` and ends with the rank: every 10 seconds if something has changed, and when the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import signal
import sys
import threading
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from time import sleep, time_ns
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..job._calls import Call, Group
from ..job._dumps import dump_of, end_of_batch, record_of, shown_frame
from ..job._group import RecordedGroup
from ..job._matching import Entry, Post
from ..job._rank import scalar_type
from ..job._register import begin_batches
from ..job._stacks import Stacks

#: The name under which PyTorch knows the backends.
NAME = "hir_recorder"
#: As many calls are kept.
MOST_CALLS = 2000
#: Seconds between two writes.
INTERVAL = 10.0


@dataclass
class Recorded:
    """A call: its work is there until it has completed."""

    post: Post
    number: int
    message: int
    operation: int
    ends_batch: bool
    work: Any = None


class Log:
    """The calls of this process."""

    def __init__(self) -> None:
        self.rank = 0
        self.uses = self
        self._calls: deque[Recorded] = deque(maxlen=MOST_CALLS)
        self._groups: dict[Any, Group] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._number = 0
        self._stacks = Stacks()
        self._lock = threading.RLock()
        self._is_written = True
        self._has_begun = False

    def quiet(self) -> Any:
        return contextlib.nullcontext()

    def send(self, _: str, group: Group) -> None:
        self._groups[group.key] = group
        self._is_written = False

    def add(self, group: Group, name: str, inputs: Sequence[Any], results: Sequence[Any], batch: int | None, ends_batch: bool = False) -> Recorded:
        """Adds a call that is made now."""
        is_message = name.startswith(("send", "recv"))
        shapes = [tuple(tuple(it.shape) for it in some) for some in (inputs, results)]
        types = [tuple(scalar_type(it.dtype) for it in some) for some in (inputs, results)]
        kind = name.partition(" ")[0]
        frames, _ = self._stacks.of(sys._getframe(2))
        call = Call(0, group, name, kind, shapes[0], shapes[1], types[0], types[1], (), (), None, None, None, 0, batch, 0, frames, time_ns())
        with self._lock:
            is_first = batch is None or not self._calls or self._calls[-1].post.call.batch != batch
            self._counts[group.name, "collective"] += not is_message and not ends_batch
            self._counts[group.name, "message"] += is_message and is_first
            self._counts[group.name, "operation"] += not ends_batch
            collective, message, operation = (self._counts[group.name, it] for it in ("collective", "message", "operation"))
            self._number += 1
            recorded = Recorded(Post(self.rank, call, Entry(), collective), self._number - 1, message, operation, ends_batch)
            self._calls.append(recorded)
            self._is_written = False
        return recorded

    def _look(self) -> None:
        """Notes which calls have completed."""
        for it in self._calls:
            if it.work is not None and it.work.is_completed() and it.work.is_success():
                it.post.completed, it.work = time_ns(), None
                self._is_written = False

    def write(self) -> None:
        with self._lock:
            self._look()
            if self._is_written or not self._groups:
                return
            self._is_written = True
            entries = []
            for it in self._calls:
                call = it.post.call
                record = record_of(it.post, it.number, it.message, it.operation, [shown_frame(self._stacks.frames[at]) for at in call.frames])
                entries.append(end_of_batch(record, call, it.number, bool(it.post.completed)) if it.ends_batch else record)
            text = dump_of(self._groups.values(), entries)
        begin = os.environ.get("TORCH_FR_DUMP_TEMP_FILE") or str(Path.home() / ".cache/torch/comm_lib_trace_rank_")
        file = Path(f"{begin}{self.rank}")
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        part.write_text(text)
        part.replace(file)

    def _watch(self) -> None:
        while True:
            sleep(INTERVAL)
            self.write()

    def begin(self, rank: int) -> None:
        """Begins to write the calls of a rank."""
        if not self._has_begun:
            self.rank, self._has_begun = rank, True
            threading.Thread(target=self._watch, name="hir-recorder", daemon=True).start()
            atexit.register(self.write)
            if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._end)

    def _end(self, number: int, _: Any) -> None:
        """Writes before a launcher ends this process."""
        self.write()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


LOG = Log()


class AroundGroup(RecordedGroup):
    """A process group of another backend, whose calls are recorded."""

    def __init__(self, about: Group, asked: str, inner: Any) -> None:
        super().__init__(LOG, about, asked)  # type: ignore[arg-type]
        self._inner = inner
        self._call: Callable[[], Any] | None = None

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device("cuda" if self._about.is_nccl else "cpu")]

    def _issue(self, name: str, kind: str, pieces: Any, outputs: Any, options: Any, *, inputs: Any, results: Any, **_: Any) -> Any:
        recorded = LOG.add(self._about, name, inputs, results, self._batches if self._batch is not None else None)
        recorded.work = self._call() if self._call is not None else None
        return recorded.work

    def _start_coalescing(self, device: Any = None) -> None:
        self._batches += 1
        self._batch = []
        self._inner._start_coalescing()

    def _end_coalescing(self, device: Any = None) -> Any:
        self._batch = None
        recorded = LOG.add(self._about, "coalesced", [], [], self._batches, ends_batch=True)
        recorded.work = self._inner._end_coalescing()
        return recorded.work

    start_coalescing = startCoalescing = _start_coalescing
    end_coalescing = endCoalescing = _end_coalescing

    def shutdown(self) -> None:
        LOG.write()
        self._inner.shutdown()

    def abort(self) -> None:
        LOG.write()
        self._inner.abort()

    def _set_default_timeout(self, timeout: Any) -> None:
        self._inner._set_default_timeout(timeout)


def _around(name: str) -> Callable[..., Any]:
    own = getattr(RecordedGroup, name)

    def method(group: AroundGroup, *args: Any, **kwargs: Any) -> Any:
        # Some calls make others of this class, which are the same call.
        if group._call is not None:
            return own(group, *args, **kwargs)
        group._call = lambda: getattr(group._inner, name)(*args, **kwargs)
        try:
            return own(group, *args, **kwargs)
        finally:
            group._call = None

    return method


#: What groups are called for.
METHODS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced", "all_gather_single", "_allgather_base"),
    *("all_gather_single_coalesced", "allgather_into_tensor_coalesced", "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"),
    *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "gather", "gather_single", "gather_into_tensor", "scatter", "alltoall"),
    *("all_to_all_single", "alltoall_base", "barrier", "send", "recv", "recv_anysource", "recvAnysource"),
)
for _name in METHODS:
    setattr(AroundGroup, _name, _around(_name))


def _create(options: Any, asked: str) -> AroundGroup:
    """Makes a group, and that of the backend in it."""
    store, rank, size = options.store, options.group_rank, options.group_size
    if asked == "nccl":
        own = dist.ProcessGroupNCCL.Options()
        own._timeout = options.timeout
        inner = dist.ProcessGroupNCCL(store, rank, size, own)
    else:
        inner = dist.ProcessGroupGloo(store, rank, size, options.timeout)
    members = tuple(options.global_ranks_in_group) or tuple(range(size))
    LOG.begin(members[rank])
    about = Group(str(options.group_id), "undefined", members, asked, has_pairs=asked == "nccl")
    LOG.send("group", about)
    return AroundGroup(about, f"hir:{asked}", inner)


def _install() -> None:
    """Takes the names of backends that begin with ``hir:``."""
    asked = [""]
    dist.Backend.register_backend(NAME, lambda options, _: _create(options, asked[0]), extended_api=True, devices=["cpu", "cuda"])
    original = c10d._new_process_group_helper
    signature = inspect.signature(original)

    def helper(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        name = str(bound.arguments["backend"]).lower()
        if not name.startswith("hir:"):
            return original(*args, **kwargs)
        if name not in ("hir:nccl", "hir:gloo"):
            raise ValueError(f"hir records the backends `hir:nccl` and `hir:gloo`, not `{name}`")
        before, asked[0], bound.arguments["backend"] = asked[0], name.removeprefix("hir:"), NAME
        try:
            group, store = original(*bound.args, **bound.kwargs)
        finally:
            asked[0] = before
        if isinstance(group, AroundGroup):
            # Groups that are made from this one have its backend.
            c10d._world.pg_map[group] = (name, c10d._world.pg_map[group][1])
        return group, store

    c10d._new_process_group_helper = helper
    if hasattr(c10d, "_FR_SELF_RECORDING_BACKENDS"):
        c10d._FR_SELF_RECORDING_BACKENDS.add(NAME)
    begin_batches()


_install()
