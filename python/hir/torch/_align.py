"""The graphs of all ranks as one: equal statements, with the arguments that differ between ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Sequence

from ._graph import Argument, DifferentRanks, Graph, Node, Other, Ref


@dataclass(frozen=True)
class PerRank:
    """An argument whose value depends on the rank: one value for each."""

    values: tuple[Any, ...]


def align(graphs: Sequence[Graph]) -> tuple[Node, ...]:
    """Returns the statements that all ranks execute.

    Raises ``DifferentRanks`` at the first statement in which the ranks differ in more than constants and names of groups.
    """
    first = graphs[0]
    for graph in graphs[1:]:
        for ours, theirs in zip(first.nodes, graph.nodes):
            if (ours.op, ours.target) != (theirs.op, theirs.target):
                raise DifferentRanks(
                    f"rank {graph.rank} executes `{theirs.target}` at this place ({theirs.place or 'unknown line'})", ours
                )
            if ours.result != theirs.result:
                raise DifferentRanks(
                    f"the result is {_show(ours)} on rank {first.rank} and {_show(theirs)} on rank {graph.rank}", ours
                )
        if len(first.nodes) != len(graph.nodes):
            raise DifferentRanks(
                f"rank {first.rank} executes {len(first.nodes)} statements and rank {graph.rank} {len(graph.nodes)}"
            )
    # Inputs that are no tensors, such as a mesh, are the same to a program.
    objects = {node.name for node in first.nodes if node.op == "placeholder" and node.result is None}
    return tuple(_merged(nodes, objects) for nodes in zip(*(graph.nodes for graph in graphs)))


def _show(node: Node) -> str:
    return str(node.result)


def _merged(nodes: Sequence[Node], objects: set[str]) -> Node:
    first = nodes[0]
    names = tuple(first.kwargs)
    for node in nodes:
        if len(node.args) != len(first.args) or tuple(node.kwargs) != names:
            raise DifferentRanks("the ranks pass other arguments", first)
    args = tuple(_argument(it, first, objects) for it in zip(*(node.args for node in nodes)))
    kwargs = {name: _argument(tuple(node.kwargs[name] for node in nodes), first, objects) for name in names}
    elements = _argument(tuple(node.elements for node in nodes), first, objects)
    return replace(first, args=args, kwargs=kwargs, elements=elements)


def _argument(values: tuple[Argument, ...], node: Node, objects: set[str]) -> Argument:
    first = values[0]
    # NaN is not equal to itself, but its text is.
    if all((it == first or repr(it) == repr(first)) and type(it) is type(first) for it in values):
        return first
    if all(isinstance(it, tuple) and len(it) == len(first) for it in values):
        return tuple(_argument(element, node, objects) for element in zip(*values))
    if all(isinstance(it, Other) or (isinstance(it, Ref) and it.name in objects) for it in values):
        return first
    if all(isinstance(it, (int, float, str)) for it in values):
        return PerRank(values)
    raise DifferentRanks(f"an argument is {first!r} on the first rank, but not on all ranks", node)
