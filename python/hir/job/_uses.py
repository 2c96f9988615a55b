"""Finds uses of a buffer while a communication on it is pending: of an output at all, and writes of an input.

A wait is one of the stream that is current: other streams have to follow that, by an event, or the host has to wait for it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Sequence

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from ._calls import NAMESPACES
from ._streams import Access, Clock, Range, Streams, range_of

#: The most calls that some streams have waited for, and others have not, of which uses are seen.
MAX_WAITED = 64

def is_of_shape_only(name: str) -> bool:
    """Whether an operator of aten takes a tensor for its shape and type, not for its elements."""
    return name.endswith("_like") or name.startswith(("new_", "sym_", "empty", "resize", "set_", "is_same_size", "record_stream"))


def enter_in_all_threads(mode: Any) -> None:
    """Enters a mode in this thread, and in those that begin from now on."""
    begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def begin_in_mode(thread: threading.Thread) -> None:
        with mode:
            begin(thread)

    threading.Thread._bootstrap_inner = begin_in_mode  # type: ignore[attr-defined]
    mode.__enter__()


@functools.cache
def _access(operator: Any) -> dict[str, str] | None:
    """Returns how an operator accesses its arguments, by name: ``reads`` or ``writes``; those that it makes views of are left out."""
    namespace, name = operator.namespace, operator._schema.name.rpartition("::")[2]
    # What operators of communication use is looked at when they call a group.
    if namespace in NAMESPACES or namespace == "aten" and is_of_shape_only(name):
        return None
    found = {}
    for argument in operator._schema.arguments:
        alias = argument.alias_info
        if alias is None or alias.is_write:
            found[argument.name] = "reads" if alias is None else "writes"
    return found


@dataclass
class Pending:
    """A communication that not all streams have waited for."""

    number: int
    #: Its name and its place, for reports.
    about: tuple[str, str]
    queue: object
    #: Its tensors: while it is pending, their memory is not used again.
    tensors: list[Any]
    reads: list[Range]
    writes: list[Range]
    #: Whether a backward pass has made it.
    is_of_backward: bool
    #: The streams that have waited for it.
    streams: set[int]


class Seen(NamedTuple):
    """What a stream follows: the pending calls for which it has waited, and what streams have done."""

    numbers: frozenset[int]
    clock: Clock


def _meets(one: Range, others: Sequence[Range]) -> bool:
    return any(one[0] < it[1] and it[0] < one[1] for it in others)


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for it in value:
            yield from _tensors(it)


class Uses(TorchDispatchMode):  # type: ignore[misc]
    """Sees the operators of the main thread while communications are pending, or with several streams, and reports ``(call, how, operator)``.

    ``place`` returns the line of the script that leads to a frame.
    """

    #: Those with functions as arguments, as flexible attention, are seen as one.
    supports_higher_order_operators = True

    def __init__(self, report: Callable[[tuple[str, str], str, str], None], place: Callable[[Any], str]) -> None:
        super().__init__()
        self._report, self._place = report, place
        self._pending: dict[int, Pending] = {}
        self._is_quiet = False
        #: The streams that there are, and the one that is current; stream 0 is the default one.
        self.streams = {0}
        self._work = Streams()
        self.current: Callable[[], int] = lambda: 0
        #: Whether a backward pass runs, and whether its operators have to be seen from the begin on: None if none has made a call yet.
        self._is_backward = False
        self._sees_backward: bool | None = None
        run = torch.autograd.graph._engine_run_backward

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            # The engine gives each function of a backward pass the modes that there were at the begin of the pass.
            if self._is_backward or threading.current_thread() is not threading.main_thread():
                return run(*args, **kwargs)
            self._is_backward = True
            self._set_entered(self._sees_backward is not False or self._has_work())
            try:
                return run(*args, **kwargs)
            finally:
                self._is_backward = False
                if any(it.is_of_backward for it in list(self._pending.values())):
                    self._sees_backward = True
                self._set_entered(self._has_work())

        torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = run_backward
        for name in ("numpy", "tolist"):
            setattr(torch.Tensor, name, self._read_by_host(getattr(torch.Tensor, name)))

    def _read_by_host(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that reads a tensor, but not by an operator."""

        @functools.wraps(function)
        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            self.read(tensor, function.__name__)
            return function(tensor, *args, **kwargs)

        return read

    def read(self, tensor: Any, name: str) -> None:
        """Notes that the host reads a tensor."""
        if self._has_work() and not self._is_quiet:
            self._look_at(tensor, "reads", name)

    def _has_work(self) -> bool:
        return bool(self._pending) or len(self.streams) > 1

    def add_stream(self, stream: int) -> None:
        self.streams.add(stream)
        self._set_entered(self._has_work())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # It would import all of `torch.compile`.
        return False

    def add(self, number: int, about: tuple[str, str], queue: object, inputs: Sequence[Any], outputs: Sequence[Any], is_blocking: bool) -> None:
        """Adds a call. For one that blocks, the stream that is current waits at once."""
        if is_blocking and len(self.streams) == 1:
            return
        reads, writes = ([it for it in map(range_of, tensors) if it] for tensors in (inputs, outputs))
        streams = {self.current()} if is_blocking else set()
        self._pending[number] = Pending(number, about, queue, [*inputs, *outputs], reads, writes, self._is_backward, streams)
        self._set_entered(True)

    def remove(self, number: int) -> None:
        """Removes a call whose waits are not seen."""
        call = self._pending.pop(number, None)
        if call is not None and call.is_of_backward and self._sees_backward is None:
            self._sees_backward = False
        if not self._has_work() and not self._is_backward:
            self._set_entered(False)

    def end_wait(self, number: int) -> None:
        """Notes that the stream that is current has waited for a call."""
        call = self._pending.get(number)
        if call is not None:
            if call.is_of_backward:
                self._sees_backward = True
            self._wait(self.current(), [number])

    def follow(self, stream: int, seen: Seen) -> None:
        """Notes that a stream runs on when this has completed."""
        self._work.follow(seen.clock, stream)
        self._wait(stream, seen.numbers)

    def _wait(self, stream: int, numbers: Iterable[int]) -> None:
        for call in filter(None, map(self._pending.get, numbers)):
            call.streams.add(stream)
            if call.streams >= self.streams:
                self.remove(call.number)
        waited = [it.number for it in list(self._pending.values()) if it.streams]
        for number in waited[:-MAX_WAITED]:
            self.remove(number)

    def seen_by(self, stream: int) -> Seen:
        return Seen(frozenset(it.number for it in list(self._pending.values()) if stream in it.streams), self._work.record(stream))

    def synchronize(self, seen: Seen | None = None) -> None:
        """Notes that the host, and so what it starts from now on, has waited for this, or for all."""
        for stream in self.streams if seen is None else ():
            self._work.follow(self._work.record(stream))
        if seen is not None:
            self._work.follow(seen.clock)
        for number in list(self._pending) if seen is None else seen.numbers:
            self.remove(number)

    def not_followed(self, reads: Sequence[Any], writes: Sequence[Any]) -> Access | None:
        """Returns a use by another stream of what a communication is about to read or to write, if it does not follow that."""
        found = ((it, is_write) for is_write, tensors in enumerate((reads, writes)) for it in tensors)
        return next((use for it, is_write in found for use in self._work.not_followed(self.current(), it, bool(is_write))), None)

    def moved(self, tensor: Any) -> None:
        """Notes that the stream that is current has copied a tensor to the GPU."""
        self._work.forget(tensor)
        self._note(tensor, True, "to")

    def _note(self, value: Any, writes: bool, operator: str) -> None:
        if len(self.streams) > 1:
            place = self._place(sys._getframe(2))
            for it in _tensors(value):
                self._work.note(self.current(), it, writes, operator, place)

    def earlier(self, queue: object, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[list[Pending], list[Pending]]:
        """Returns the pending communications on buffers of a new one: those that it follows in its queue, and those that nothing orders."""
        ordered: list[Pending] = []
        unordered: list[Pending] = []
        reads, writes = ([it for it in map(range_of, tensors) if it] for tensors in (inputs, outputs))
        for it in list(self._pending.values()):
            if self.current() in it.streams:
                continue
            if any(_meets(at, it.writes) for at in (*reads, *writes)) or any(_meets(at, it.reads) for at in writes):
                (ordered if it.queue is not None and it.queue == queue else unordered).append(it)
        return ordered, unordered

    def _set_entered(self, is_entered: bool) -> None:
        # It is below all other modes, so that those may end in their order.
        if self._is_quiet or threading.current_thread() is not threading.main_thread():
            return
        stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        # Modes that trace have a place of their own.
        if is_entered == (self in stack) or any(getattr(it, "_mode_key", None) for it in stack):
            return
        for _ in stack:
            torch.utils._python_dispatch._pop_mode()
        for mode in ([self] if is_entered else []) + [it for it in stack if it is not self]:
            torch.utils._python_dispatch._push_mode(mode)

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.look(operator, args, kwargs or {})
        was_quiet, self._is_quiet = self._is_quiet, True
        try:
            result = operator(*args, **(kwargs or {}))
        finally:
            self._is_quiet = was_quiet
        if not was_quiet and not isinstance(operator, HigherOrderOperator):
            schema = operator._schema
            if "empty" not in schema.name and not any(it.alias_info for it in schema.returns):
                self._note(result, True, schema.name)
        return result

    def look(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Looks at what an operator uses."""
        if self._is_quiet or not self._has_work():
            return
        if isinstance(operator, HigherOrderOperator):
            self._look_at((*args, *kwargs.values()), "reads", operator.name())
            return
        access = _access(operator)
        if not access:
            return
        names = (it.name for it in operator._schema.arguments)
        for name, value in (*zip(names, args), *kwargs.items()):
            how = access.get(name)
            if how is not None:
                self._look_at(value, how, operator._schema.name)
        if operator is torch.ops.aten._local_scalar_dense.default:
            # The host has waited for the value.
            self.synchronize(self.seen_by(self.current()))

    def _look_at(self, value: Any, how: str, operator: str) -> None:
        self._note(value, how == "writes", operator)
        for at in filter(None, map(range_of, _tensors(value))):
            for it in list(self._pending.values()):
                if self.current() in it.streams or not (_meets(at, it.writes) or how == "writes" and _meets(at, it.reads)):
                    continue
                # Behind a wait, a storage may be made empty: its memory is that of another tensor then.
                if not it.streams or _meets(at, [found for found in map(range_of, it.tensors) if found]):
                    self._report(it.about, f"{how} elsewhere" if it.streams else how, operator)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Does not look at operators."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        was_quiet, self._is_quiet = self._is_quiet, True
        try:
            with torch._C._DisableTorchDispatch():
                yield
        finally:
            self._is_quiet = was_quiet
