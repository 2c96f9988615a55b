"""The graph of one rank, as the importer reads it: operators with their arguments, independent of PyTorch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Callable, Container, Iterable, Iterator, Mapping

#: The operators that post transfers between two ranks.
TRANSFERS = tuple(f"_c10d_functional.{it}" for it in ("isend", "irecv", "batch_p2p_ops"))


class TransferOrder:
    """What a transfer that is in no batch waits for, on its process group."""

    #: For all before it: NCCL whose communicator exists from the beginning (``device_id``), which has one for all ranks.
    SERIAL = "serial"
    #: For those before it between the same two ranks: NCCL that creates a communicator for each pair of ranks.
    PAIR = "pair"
    #: For none: gloo, MPI and UCC.
    NONE = "none"


@dataclass(frozen=True)
class Ref:
    """An argument that is the result of another node."""

    name: str


@dataclass(frozen=True)
class DType:
    """An argument that is an element type, by PyTorch's name: ``float32``."""

    name: str


@dataclass(frozen=True)
class Other:
    """An argument without effect on what a program computes: a device, a memory format, a mesh."""

    text: str


@dataclass(frozen=True)
class TensorType:
    """The local shape of a tensor and its element type by PyTorch's name."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Unbound:
    """The result of a node whose size depends on values of tensors, such as the number of elements under a mask."""

    size: str


#: A node, a number, a text, None, DType, Other, a slice, or a tuple of arguments.
Argument = Any


@dataclass(frozen=True)
class Node:
    """A statement of a graph."""

    name: str
    #: placeholder, call_function, get_attr or output
    op: str
    #: The operator: ``aten.mm.default``.
    target: str
    args: tuple[Argument, ...] = ()
    kwargs: Mapping[str, Argument] = field(default_factory=dict)
    #: What the node computes: a TensorType, Unbound, a number, a tuple of these, or None.
    result: Any = None
    #: Line of the Python program: ``model.py:19``.
    place: str | None = None
    #: The number of the stream on which it runs, if Dynamo has traced streams; 0 is the current stream of the call.
    stream: int | None = None
    #: The elements of a constant tensor (get_attr), in row-major order.
    elements: Argument = None


@dataclass(frozen=True)
class Graph:
    """The graph of one rank."""

    name: str
    rank: int
    world: int
    nodes: tuple[Node, ...]
    #: The ranks of each process group of which this rank is a member.
    groups: Mapping[str, tuple[int, ...]]
    #: Why this graph is one of several pieces of a function, if Dynamo breaks it.
    piece: str | None = None
    #: In which order each process group executes transfers that are in no batch: `TransferOrder`; one of those of NCCL if it has no name.
    orders: Mapping[str, str] = field(default_factory=dict)


class TorchImportError(Exception):
    """A graph that hir cannot import. The message names the operator and the line of the Python program."""

    def __init__(self, message: str, node: Node | None = None) -> None:
        where = ""
        if node is not None:
            where = f"{node.place or 'unknown line'}: `{node.target}` (node `{node.name}`): "
        super().__init__(where + message)
        #: The message without the node.
        self.reason = message
        #: The node that cannot be imported.
        self.node = node


class TorchFaultError(TorchImportError):
    """A fault of the program that its import finds: it would hang or fail."""


class DifferentRanks(TorchImportError):
    """The ranks do not execute the same statements, or not with tensors of the same shapes."""


def map_argument(argument: Argument, change: Callable[[Argument], Argument]) -> Argument:
    """Applies ``change`` to the leaves of an argument."""
    if isinstance(argument, tuple):
        return tuple(map_argument(it, change) for it in argument)
    return change(argument)


def readers_of(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """The nodes that mention each node, in their order. A node that none mentions has none."""
    found: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        for name in dict.fromkeys(references(node)):
            found[name].append(node)
    return found


def without_unused(nodes: Iterable[Node], parts: Container[str]) -> tuple[Node, ...]:
    """Returns nodes without those of ``parts`` that none of the others mention."""
    kept: list[Node] = []
    used: set[str] = set()
    for node in reversed([*nodes]):
        if node.name not in parts or node.name in used:
            kept.append(node)
            used |= set(references(node))
    return tuple(reversed(kept))


def references(node: Node) -> Iterator[str]:
    """The names of the nodes that a node mentions."""
    found: list[str] = []
    map_argument((node.args, tuple(node.kwargs.values())), lambda it: found.append(it.name) if isinstance(it, Ref) else None)
    return iter(found)
