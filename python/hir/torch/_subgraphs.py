"""Higher-order operators, whose arguments are graphs: branches, loops of a known length and called graphs become statements of the graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Sequence

from ._communicating import WITHOUT_COMMUNICATION, communicates
from ._graph import Argument, Node, Other, Ref, TensorType, map_argument

NAMESPACE = "higher_order."
#: A loop of more statements than this remains one call.
MOST_STATEMENTS = 4096
#: What names of operators contain that fail for some values of their operands.
FAILING = ("gather", "scatter", "index", "embedding", "_assert", "floor_divide", "remainder", ".item", "_local_scalar", ".div.")


def with_subgraphs(nodes: Sequence[Node], graphs: Mapping[str, Sequence[Node]]) -> tuple[Node, ...]:
    """Writes the statements of graphs where they are called. ``graphs`` are those that nodes (get_attr) of these names refer to."""
    types = {node.name: node.result for node in nodes}
    return tuple(it for node in nodes if node.name not in graphs for it in _statements(node, graphs, types))


def _statements(node: Node, graphs: Mapping[str, Sequence[Node]], types: Mapping[str, Any]) -> list[Node]:
    if not node.target.startswith(NAMESPACE):
        return [node]
    name = node.target.removeprefix(NAMESPACE)
    called = [graphs[it.name] for it in _leaves(node.args) if isinstance(it, Ref) and it.name in graphs]
    if name == "cond" and len(called) == 2:
        return _branches(node, called, types)
    if name == "scan" and len(called) == 1 and len(node.args) == 4:
        steps = _steps(node, called[0], types)
        if steps:
            return steps
    if name == "invoke_subgraph" and len(called) == 1:
        statements, results = _body(node, called[0], node.args[2:], node.name)
        return [*statements, replace(node, target="hir.tuple", args=(results,))]
    if name.startswith("auto_functionalized") and node.args and isinstance(node.args[0], Other):
        # It calls an operator that changes its operands, and returns what they become.
        return [replace(node, target=node.args[0].text)]
    args = map_argument(node.args, lambda it: Other(it.name) if isinstance(it, Ref) and it.name in graphs else it)
    # The others call an operator of random numbers, with a state of their generator.
    is_local = (called or "rng_state" in name) and not any(communicates(it) for graph in called for it in graph)
    return [replace(node, target=node.target + WITHOUT_COMMUNICATION if is_local else node.target, args=args)]


def _leaves(argument: Argument) -> list[Argument]:
    found: list[Argument] = []
    map_argument(argument, found.append)
    return found


def _body(
    node: Node, graph: Sequence[Node], operands: Sequence[Argument], prefix: str
) -> tuple[list[Node], tuple[Argument, ...]]:
    """The statements of a called graph, and its results."""
    values: dict[str, Argument] = {}
    given = iter(operands)
    statements: list[Node] = []

    def resolved(argument: Argument) -> Argument:
        return map_argument(argument, lambda it: values[it.name] if isinstance(it, Ref) else it)

    for it in graph:
        if it.op == "placeholder":
            values[it.name] = next(given)
        elif it.op == "output":
            results = resolved(it.args[0])
            return statements, results if isinstance(results, tuple) else (results,)
        else:
            values[it.name] = Ref(f"{prefix}.{it.name}")
            kwargs = {name: resolved(argument) for name, argument in it.kwargs.items()}
            place = it.place or node.place
            statements.append(replace(it, name=f"{prefix}.{it.name}", args=resolved(it.args), kwargs=kwargs, place=place))
    return statements, ()


def _branches(node: Node, graphs: Sequence[Sequence[Node]], types: Mapping[str, Any]) -> list[Node]:
    """Both branches, and the choice between their results. Of a condition that the graph knows, the branch that it selects."""
    condition, _, _, operands = node.args
    known = types.get(condition.name) if isinstance(condition, Ref) else condition
    if isinstance(known, (bool, int)):
        statements, results = _body(node, graphs[0 if known else 1], operands, node.name)
        return [*statements, replace(node, target="hir.tuple", args=(results,))]
    yes, if_so = _body(node, graphs[0], operands, f"{node.name}.true")
    no, if_not = _body(node, graphs[1], operands, f"{node.name}.false")
    groups = tuple(dict.fromkeys(it.args[-1] for it in (*yes, *no) if communicates(it)))
    fails = next((it.target for it in (*yes, *no) if any(text in it.target for text in FAILING)), None)
    return [*yes, *no, replace(node, target="hir.cond", args=(condition, if_so, if_not, groups, fails))]


def _steps(node: Node, graph: Sequence[Node], types: Mapping[str, Any]) -> list[Node]:
    """The steps of a loop over the first dimension of tensors. None if they are too many statements."""
    _, carried, tensors, others = node.args
    rows = [types.get(it.name) if isinstance(it, Ref) else None for it in tensors]
    whole = [it for it in rows if isinstance(it, TensorType) and it.shape]
    if not whole or len(whole) < len(rows) or whole[0].shape[0] * len(graph) > MOST_STATEMENTS:
        return []
    statements: list[Node] = []
    outputs: list[tuple[Argument, ...]] = []
    results: tuple[Argument, ...] = tuple(carried)
    for step in range(whole[0].shape[0]):
        parts = []
        for number, (it, row) in enumerate(zip(tensors, whole)):
            parts.append(Ref(f"{node.name}.{step}.{number}"))
            part = TensorType(row.shape[1:], row.dtype)
            statements.append(
                Node(parts[-1].name, "call_function", "aten.select.int", (it, 0, step), result=part, place=node.place)
            )
        body, returned = _body(node, graph, (*results, *parts, *others), f"{node.name}.{step}")
        statements += body
        results = returned[: len(carried)]
        outputs.append(returned[len(carried) :])
    stacks = [Ref(f"{node.name}.{number}") for number in range(len(outputs[0]))]
    for stack, column, result in zip(stacks, zip(*outputs), node.result[len(carried) :]):
        statements.append(Node(stack.name, "call_function", "aten.stack.default", (column, 0), result=result, place=node.place))
    return [*statements, replace(node, target="hir.tuple", args=((*results, *stacks),))]
