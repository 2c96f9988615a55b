"""The graphs of all ranks as one: equal statements, with the arguments that differ between ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Mapping, Sequence

from ._graph import Argument, DifferentRanks, Graph, Node, Other, Ref, TensorType, map_argument

ITEM = "_operator.getitem"
#: The operator that gives each rank one of several tensors.
BY_RANK = "hir.by_rank"


@dataclass(frozen=True)
class PerRank:
    """An argument whose value depends on the rank: one value for each."""

    values: tuple[Any, ...]


def align(graphs: Sequence[Graph]) -> tuple[Node, ...]:
    """Returns the statements that all ranks execute.

    Raises ``DifferentRanks`` at the first statement in which the ranks differ in more than constants, names of groups, and which of the results
    of one operator they use.
    """
    try:
        return _aligned(graphs)
    except DifferentRanks:
        with_items = [replace(it, nodes=_with_all_items(it.nodes)) for it in graphs]
        if all(len(it.nodes) == len(with_items[0].nodes) for it in with_items):
            return _aligned(with_items)
        raise


def _with_all_items(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes with all results of operators that have several tensors, also those that the rank does not use."""
    names: dict[str, Ref] = {}
    result: list[Node] = []
    for node in nodes:
        if node.target == ITEM and isinstance(node.args[1], int) and node.args[1] >= 0:
            names[node.name] = Ref(f"{node.args[0].name}.item{node.args[1]}")
            continue
        result.append(_renamed(node, names))
        if isinstance(node.result, tuple) and node.op == "call_function":
            for number, it in enumerate(node.result):
                args = (Ref(node.name), number)
                result.append(Node(f"{node.name}.item{number}", node.op, ITEM, args, result=it, place=node.place))
    return tuple(result)


def _renamed(node: Node, names: Mapping[str, Ref]) -> Node:
    """A node whose operands have other names."""

    def renamed(argument: Argument) -> Argument:
        return map_argument(argument, lambda it: names.get(it.name, it) if isinstance(it, Ref) else it)

    return replace(node, args=renamed(node.args), kwargs={name: renamed(it) for name, it in node.kwargs.items()})


def _aligned(graphs: Sequence[Graph]) -> tuple[Node, ...]:
    first = graphs[0]
    for graph in graphs[1:]:
        for ours, theirs in zip(first.nodes, graph.nodes):
            if (ours.op, ours.target) != (theirs.op, theirs.target):
                raise DifferentRanks(
                    f"rank {graph.rank} executes `{theirs.target}` at this place ({theirs.place or 'unknown line'})", ours
                )
            if ours.result != theirs.result:
                raise DifferentRanks(f"the result is {ours.result} on rank {first.rank} and {theirs.result} on rank {graph.rank}", ours)
        if len(first.nodes) != len(graph.nodes):
            raise DifferentRanks(
                f"rank {first.rank} executes {len(first.nodes)} statements and rank {graph.rank} {len(graph.nodes)}"
            )
    # Inputs that are no tensors, such as a mesh, are the same to a program.
    objects = {node.name for node in first.nodes if node.op == "placeholder" and node.result is None}
    types = {node.name: (node.args[0], node.result) for node in first.nodes if node.target == ITEM}
    aligned: list[Node] = []
    for nodes in zip(*(_named_as(first, graph) for graph in graphs)):
        merge = _Merge(nodes[0], objects, types)
        merged = merge.node(nodes)
        aligned += [*merge.chosen, merged]
    return tuple(aligned)


def _named_as(first: Graph, graph: Graph) -> Sequence[Node]:
    """The nodes of a graph, with the names of the first one for their operands."""
    names = {ours.name: Ref(theirs.name) for ours, theirs in zip(graph.nodes, first.nodes) if ours.name != theirs.name}
    return [_renamed(it, names) for it in graph.nodes] if names else graph.nodes


@dataclass
class _Merge:
    """Merges a statement of all ranks."""

    first: Node
    objects: set[str]
    #: Of which operator each node is a result, and what it is.
    types: Mapping[str, Any]
    #: The statements by which each rank chooses an operand.
    chosen: list[Node] = field(default_factory=list)

    def node(self, nodes: Sequence[Node]) -> Node:
        first, names = self.first, tuple(self.first.kwargs)
        for node in nodes:
            if len(node.args) != len(first.args) or tuple(node.kwargs) != names:
                raise DifferentRanks("the ranks pass other arguments", first)
        args = tuple(self.argument(it) for it in zip(*(node.args for node in nodes)))
        kwargs = {name: self.argument(tuple(node.kwargs[name] for node in nodes)) for name in names}
        return replace(first, args=args, kwargs=kwargs, elements=self.argument(tuple(node.elements for node in nodes)))

    def argument(self, values: tuple[Argument, ...]) -> Argument:
        first = values[0]
        # NaN is not equal to itself, but its text is.
        if all((it == first or repr(it) == repr(first)) and type(it) is type(first) for it in values):
            return first
        if all(isinstance(it, tuple) and len(it) == len(first) for it in values):
            return tuple(self.argument(element) for element in zip(*values))
        if all(isinstance(it, Other) or (isinstance(it, Ref) and it.name in self.objects) for it in values):
            return first
        if all(isinstance(it, (int, float, str)) for it in values):
            return PerRank(values)
        # Ranks that use other tensors instead may have exchanged two calls.
        kinds = [self.types.get(it.name) if isinstance(it, Ref) else None for it in values]
        if kinds[0] is not None and isinstance(kinds[0][1], TensorType) and all(it == kinds[0] for it in kinds):
            name = f"{self.first.name}.by_rank{len(self.chosen)}"
            self.chosen.append(Node(name, "call_function", BY_RANK, (values,), result=kinds[0][1], place=self.first.place))
            return Ref(name)
        raise DifferentRanks(f"an argument is {first!r} on the first rank, but not on all ranks", self.first)
