"""Functional collectives of a program that differs between ranks: each rank posts a communication and waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from .._builder import Builder, Value
from .._graph import TRANSFERS, TorchFaultError, TransferOrder
from ._collectives import averaged_over
from ._registry import COMMUNICATIONS, Call, operator

#: Operators that end no group of transfers: they post transfers, or compute nothing that could take time.
UNORDERED = (
    *(f"{it}.default" for it in TRANSFERS),
    "_operator.getitem",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
)
#: Registers a communication.
communication = partial(operator, table=COMMUNICATIONS)
REDUCTIONS = {"sum": "SUM", "avg": "SUM", "max": "MAX", "min": "MIN", "product": "PROD"}


@dataclass(frozen=True)
class Sent:
    """The result of a send, which is no tensor that a program may read."""

    communication: int


@dataclass(frozen=True)
class Received:
    """The result of an all-to-all with different splits: parts that a rank may read after it has waited."""

    communication: int
    parts: tuple[Value, ...]


def team(call: Call, group: Any) -> tuple[int, ...]:
    """The ranks of a group."""
    names = call.groups[call.rank]
    if group not in names:
        raise call.error(f"rank {call.rank} is in no process group with the name `{group}`")
    return names[group]


def post(call: Call, kind: str, x: Value, shape: tuple[int, ...], group: Any, **attributes: Any) -> Value:
    """Posts a collective of a group, or of these ranks, that writes a new tensor."""
    to = call.to
    members = group if isinstance(group, tuple) else team(call, group)
    result = to.allocate(to.value(x.dtype, shape, ()))
    number = to.posted[result.name] = numbered(to, kind, members)
    given = {"type": kind, "team": list(members), "input": x, "output": result, "backend": "NCCL", **attributes}
    to.add("Communication", None, number=number, **given)
    return result


def numbered(to: Builder, kind: str, members: tuple[int, ...]) -> int:
    """The number of a collective that is posted next: calls of one line on several ranks have one."""
    if to.place is None:
        return to.program.work()
    key = (to.place, kind, members)
    at = to.made[key] = to.made.get(key, 0) + 1
    numbers = to.calls.setdefault(key, [])
    if len(numbers) < at:
        numbers.append(to.program.work())
    return numbers[at - 1]


def rendezvous(call: Call, members: tuple[int, ...]) -> None:
    """Lets ranks wait for each other where they call an operator without a rule: an all-reduce of one element."""
    if len(members) > 1:
        wait(call, post(call, "Allreduce", call.to.full((1,), 0.0, "float32"), (1,), members, red_op="SUM"))


def reduction(call: Call, kind: str, x: Value, op: str, shape: tuple[int, ...], group: Any) -> Value:
    """Posts a collective that reduces. A mean is a sum, which the wait for it divides."""
    if op not in REDUCTIONS:
        raise call.error(f"hir has no reduction `{op}` over ranks")
    result = post(call, kind, x, shape, group, red_op=REDUCTIONS[op])
    if op == "avg":
        call.to.averages[result.name] = len(team(call, group))
    return result


@communication("_c10d_functional.wait_tensor.default", counterpart="`Wait`")
def wait(call: Call, x: Value | Sent | Received) -> Value | Sent:
    if isinstance(x, (Sent, Received)):
        call.to.wait(x.communication)
        return x if isinstance(x, Sent) else call.to.cat(x.parts, 0)
    if x.name in call.to.posted:
        call.to.wait(call.to.posted.pop(x.name))
    return averaged_over(call, x, call.to.averages.pop(x.name, 1))


@communication("_c10d_functional.wait_tensors.default", counterpart="`Wait` for each tensor")
def waits(call: Call, xs: tuple[Value, ...]) -> tuple[Value | Sent, ...]:
    return tuple(wait(call, x) for x in xs)


@communication("_c10d_functional.all_reduce.default", counterpart="Allreduce")
def all_reduce(call: Call, x: Value, op: str, group: Any) -> Value:
    return reduction(call, "Allreduce", x, op, x.shape, group)


@communication("_c10d_functional.all_reduce_coalesced.default", counterpart="Allreduce for each tensor")
def all_reduce_coalesced(call: Call, xs: tuple[Value, ...], op: str, group: Any) -> tuple[Value, ...]:
    return tuple(all_reduce(call, x, op, group) for x in xs)


@communication("_c10d_functional.all_gather_into_tensor.default", counterpart="Allgather")
def all_gather(call: Call, x: Value, size: int, group: Any) -> Value:
    return post(call, "Allgather", x, (size * x.shape[0], *x.shape[1:]), group)


@communication("_c10d_functional.reduce_scatter_tensor.default", counterpart="ReduceScatter")
def reduce_scatter(call: Call, x: Value, op: str, size: int, group: Any) -> Value:
    return reduction(call, "ReduceScatter", x, op, (x.shape[0] // size, *x.shape[1:]), group)


@communication("_c10d_functional.all_to_all_single.default", counterpart="AllToAll; with different splits one P2PCommunication for each rank and direction")
def all_to_all(call: Call, x: Value, output_splits: Any, input_splits: Any, group: Any) -> Value | Received:
    members = team(call, group)
    if call.to.equal_splits:
        return post(call, "AllToAll", x, x.shape, group)
    received, sent = (splits or (x.shape[0] // len(members),) * len(members) for splits in (output_splits, input_splits))
    if sum(sent) != x.shape[0] or not len(sent) == len(received) == len(members):
        message = f"the splits {sent} and {received} do not divide {x.shape[0]} rows among {len(members)} ranks"
        raise TorchFaultError(message, call.node)
    own = members.index(call.rank)
    if sent[own] != received[own]:
        message = f"rank {call.rank} sends {sent[own]} rows to itself, but expects {received[own]} rows from itself"
        raise TorchFaultError(message, call.node)
    return exchange(call, x, members, received, sent)


def exchange(call: Call, x: Value, members: tuple[int, ...], received: tuple[int, ...], sent: tuple[int, ...]) -> Received:
    """Posts a transfer to and one from each other rank, as one group."""
    to = call.to
    starts = [sum(sent[:i]) for i in range(len(sent))]
    parts = [to.slice(x, 0, start, start + count) for start, count in zip(starts, sent)]
    results = []
    for rank, count, own in zip(members, received, parts):
        result = own
        if rank != call.rank:
            result = to.allocate(to.value(x.dtype, (count, *x.shape[1:]), ()))
        results.append(result)
    to.add("StartCoalescing", None)
    for rank, part, result in zip(members, parts, results):
        for kind, buffer in (("send", part), ("recv", result)):
            if rank != call.rank and buffer.shape[0] > 0:
                to.post(to.program.work(), kind, buffer, rank)
    return Received(to.end_group(), tuple(it for it in results if it.shape[0] > 0))


@communication("_c10d_functional.broadcast.default", counterpart="Broadcast")
def broadcast(call: Call, x: Value, source: int, group: Any) -> Value:
    return post(call, "Broadcast", x, x.shape, group, root=source)


def transfer(call: Call, kind: str, x: Value, peer: int, group: Any) -> int:
    """Posts one side of a transfer and returns its number. `peer` is an index into the group."""
    members = team(call, group)
    if not 0 <= peer < len(members):
        raise TorchFaultError(f"the group has {len(members)} ranks and no rank {peer}", call.node)
    number = call.to.program.work()
    call.to.transfers.append((number, kind, x, members[peer], call.node.place))
    return number


def single(call: Call, kind: str, x: Value, peer: int, group: Any) -> int:
    """Posts one side of a transfer that is in no batch. Without an order, those before the next computation or wait are one group."""
    if call.orders.get(group) != TransferOrder.NONE:
        call.to.post_transfers()
    return transfer(call, kind, x, peer, group)


@communication("_c10d_functional.batch_p2p_ops.default", counterpart="`P2PCommunication` for each transfer, as one group; tags have no effect")
def batch(
    call: Call,
    kinds: tuple[str, ...],
    peers: tuple[int, ...],
    tags: tuple[int, ...],
    tensors: tuple[Value, ...],
    group: Any,
) -> tuple[Sent | Value, ...]:
    is_alone = call.orders.get(group) != TransferOrder.NONE
    if is_alone:
        call.to.post_transfers()
    results = tuple(
        Sent(transfer(call, "send", x, peer, group)) if kind == "isend" else received(call, x, transfer(call, "recv", x, peer, group))
        for kind, peer, x in zip(kinds, peers, tensors)
    )
    if is_alone:
        call.to.post_transfers()
    return results


@communication("_c10d_functional.isend.default", counterpart="`P2PCommunication` with `send`; tags have no effect")
def isend(call: Call, x: Value, destination: int, tag: int, group: Any) -> Sent:
    return Sent(single(call, "send", x, destination, group))


@communication("_c10d_functional.irecv.default", counterpart="`P2PCommunication` with `recv`, which writes its argument; tags have no effect")
def irecv(call: Call, x: Value, source: int, tag: int, group: Any) -> Value:
    return received(call, x, single(call, "recv", x, source, group))


def received(call: Call, x: Value, number: int) -> Value:
    """The argument of a receive: what reads it later reads what has arrived."""
    call.to.posted[x.name] = number
    call.to.written.append(x.name)
    return x
