"""Streams of a program of PyTorch, where ``torch.compile`` keeps them in its graphs.

Each node names its stream (``meta["custom"]["stream"]``; 0 is the current stream of the call), and ``streams.*`` are the operators on
streams and events. An event is a stream that waits for the recorded one and on which nothing else runs, so that a wait for the
event is a wait for exactly what the event has recorded.
"""

from __future__ import annotations

from typing import Sequence

from ._builder import Builder
from ._graph import Node, TorchImportError

#: How the names of operators on streams begin.
STREAMS = "streams."
#: What the operators do, for the table of the documentation.
COUNTERPARTS = {
    "streams.fork": "`SetCurrentStream`",
    "streams.join": "`SetCurrentStream`",
    "streams.record_event": "`Synchronize` on a stream of the event",
    "streams.record_stream": "`RecordStream` in the program as PyTorch runs it; hir does not reuse the memory earlier",
    "streams.sync_dealloc": "`Synchronize` with the stream of the event",
    "streams.synchronize_device": "`Synchronize(host)` on each stream",
    "streams.synchronize_event": "`Synchronize(host)` on the stream of the event",
    "streams.synchronize_stream": "`Synchronize(host)`",
    "streams.wait_event": "`Synchronize` with the stream of the event",
    "streams.wait_stream": "`Synchronize`",
}


def uses_streams(nodes: Sequence[Node]) -> bool:
    """Whether a graph has streams. Without operators on them, streams of nodes are annotations for passes of PyTorch."""
    return any(node.target.startswith(STREAMS) for node in nodes)


class Streams:
    """Adds what selects the stream of each statement."""

    def __init__(self, builder: Builder, nodes: Sequence[Node], rank: int) -> None:
        self._builder = builder
        self._is_used = uses_streams(nodes)
        self._main = f"s{rank}"
        #: The stream on which statements without one of their own run: `fork` changes it.
        self._default = 0
        self._selected = 0
        numbers = [it for node in nodes for it in (node.stream or 0, *_numbers(node))]
        self._next = 1 + max(numbers, default=0)
        #: The stream of each event that has been recorded.
        self._events: dict[int, int] = {}
        self._known = {0}
        if self._is_used:
            builder.add("GetCurrentStream", [self._main])

    def enter(self, node: Node) -> None:
        """Selects the stream of a node."""
        if self._is_used and node.op == "call_function":
            self._select(self._default if node.stream is None else node.stream)

    def leave(self) -> None:
        """Selects the stream of the call, on which its results are read."""
        self._select(0)

    def call(self, node: Node) -> None:
        """Writes the statements of an operator on streams."""
        numbers = _numbers(node)
        match node.target.removeprefix(STREAMS).removesuffix(".default"), numbers:
            case ("fork" | "join"), [_, stream]:
                self._default = stream
            case "wait_stream", [stream, other]:
                self._wait(stream, other)
            case "record_event", [event, stream]:
                number = self._events[event] = self._next
                self._next += 1
                self._wait(number, stream)
            case ("wait_event" | "sync_dealloc"), [event, stream, *_]:
                self._wait(stream, self._event(event, node))
            case "synchronize_stream", [stream]:
                self._host([stream])
            case "synchronize_event", [event]:
                self._host([self._event(event, node)])
            case "synchronize_device", _:
                self._host(sorted(self._known))
            case "record_stream", _:
                pass
            case _:
                raise TorchImportError("hir does not know this operator on streams", node)

    def record(self, tensor: str, stream: int) -> None:
        """Records that a stream uses a tensor, which delays the free."""
        self._builder.add("RecordStream", None, tensor, stream or self._main)

    def _event(self, event: int, node: Node) -> int:
        if event not in self._events:
            raise TorchImportError(f"the graph does not record the event {event}", node)
        return self._events[event]

    def _select(self, stream: int) -> None:
        if stream != self._selected:
            self._builder.add("SetCurrentStream", None, stream or self._main)
            self._selected = stream
            self._known.add(stream)

    def _wait(self, stream: int, other: int) -> None:
        """Makes a stream wait for what has been issued on another one."""
        if stream != other:
            self._select(stream)
            self._builder.add("Synchronize", None, other or self._main)

    def _host(self, streams: Sequence[int]) -> None:
        for stream in streams:
            self._select(stream)
            self._builder.add("Synchronize", None, target="host")


def _numbers(node: Node) -> list[int]:
    """The numbers of streams and events that an operator on streams names."""
    return [it for it in node.args if isinstance(it, int)] if node.target.startswith(STREAMS) else []
