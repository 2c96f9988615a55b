"""Calls of ``torch.distributed`` as ranks report them, and when the calls of several ranks can be one communication."""

from __future__ import annotations

from typing import NamedTuple, Sequence

#: The number of elements and the element type of a tensor.
Elements = tuple[int, str]

#: The namespaces of PyTorch whose operators communicate.
NAMESPACES = ("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")

#: The kinds of calls between two ranks.
SEND, RECEIVE = "send", "recv"


class Group(NamedTuple):
    """A process group as one rank has made it."""

    name: str
    description: str
    #: The ranks of the world.
    ranks: tuple[int, ...]
    #: The backend whose rules of order hold: ``nccl`` or ``gloo``.
    backend: str
    #: Whether NCCL gives two ranks a communicator of their own for messages outside of batches.
    has_pairs: bool = False

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """What is equal on all ranks that have made the same group."""
        return self.name, self.ranks

    @property
    def is_nccl(self) -> bool:
        return self.backend == "nccl"


class Need(NamedTuple):
    """An output: it receives pieces of members, each given by its rank in the group and its position, reduced if there are several."""

    elements: Elements
    sources: tuple[tuple[int, int], ...]


class Call(NamedTuple):
    """A call of one rank."""

    #: Its number on the rank, from 0.
    number: int
    group: Group
    #: The operation as the flight recorder of PyTorch names it.
    name: str
    #: What has to be equal on all members.
    kind: str
    #: The shapes and element types, as the flight recorder has them.
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    input_types: tuple[str, ...]
    output_types: tuple[str, ...]
    #: What the rank gives, in pieces that others receive whole, and what it receives.
    pieces: tuple[Elements, ...]
    needs: tuple[Need, ...]
    #: The rank in the group of the root.
    root: int | None
    #: The reduction, such as ``sum``.
    reduction: str | None
    #: The rank of the other side in the group; None for any, and for collectives.
    peer: int | None
    tag: int
    #: The number of the batch (``batch_isend_irecv``, coalesced collectives) on this rank; None outside of batches.
    batch: int | None
    #: Where the pieces are in the memory of the rank.
    offset: int
    #: The stack, innermost frame first: numbers of frames that the rank has reported.
    frames: tuple[int, ...]
    #: The time of the call: nanoseconds since 1970.
    time: int

    @property
    def is_message(self) -> bool:
        return self.kind in (SEND, RECEIVE)


def differing(one: Call, other: Call) -> str | None:
    """Returns what two members pass differently although it has to be equal; None if nothing."""
    if one.kind != other.kind:
        return "operation"
    if one.root != other.root:
        return "root"
    if one.reduction != other.reduction:
        return "reduction"
    return None


def unfit(calls: Sequence[Call]) -> str | None:
    """Returns what does not fit between the calls of one communication; None if all fits.

    The calls are those of all members, in the order of the group, or a send and its receive.
    """
    if not calls[0].is_message:
        for call in calls[1:]:
            found = differing(calls[0], call)
            if found:
                return found
    for call in calls:
        for need in call.needs:
            for member, piece in need.sources:
                pieces = calls[0 if call.is_message else member].pieces
                if piece >= len(pieces):
                    return "size"
                if pieces[piece][1] != need.elements[1]:
                    return "element type"
                if pieces[piece][0] != need.elements[0]:
                    return "size"
    return None


def value_of(call: Call, what: str) -> str:
    """Returns what a call passes, in words."""
    if what == "root":
        return f"root {call.group.ranks[call.root] if call.root is not None else None}"
    if what == "reduction":
        return f"op={call.reduction}"
    if what == "operation":
        return call.name
    given = ", ".join(f"{kind} [{count}]" for count, kind in call.pieces)
    taken = ", ".join(f"{need.elements[1]} [{need.elements[0]}]" for need in call.needs)
    return f"elements {given or 'none'} to give, {taken or 'none'} to receive"
