"""Random numbers: PyTorch draws them, with its generator and in the order of the graph, and they are inputs of the program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable

from ._graph import Graph, Node, Ref

#: Operators that take tensors only for their shapes.
DRAWN = tuple(
    f"aten.{it}."
    for it in "rand rand_like randn randn_like randint randint_like randperm uniform normal_functional exponential log_normal".split()
) + ("aten.bernoulli.p",)
DROPOUT = "aten.native_dropout.default"


def with_draws(graph: Graph, module: Any) -> tuple[Graph, list[Callable[[], Any]]]:
    """The graph of a module with inputs, behind its own, for the random numbers, and what draws them."""
    inputs: list[Node] = []
    nodes: list[Node] = []
    draws: list[Callable[[], Any]] = []
    own = {it.name: it for it in module.graph.nodes}
    for node in graph.nodes:
        source = own.get(node.name)
        # PyTorch draws numbers again that a checkpoint does not keep.
        if source is None or source.meta.get("recompute") or not node.target.startswith((*DRAWN, DROPOUT)) or node.op != "call_function":
            nodes.append(node)
        elif node.target == DROPOUT and node.args[2] is not False:
            nodes += _dropout(node, inputs)
            draws.append(_draw(source, 1))
        elif node.target != DROPOUT:
            inputs.append(Node(node.name, "placeholder", node.name, result=node.result, place=node.place))
            draws.append(_draw(source, None))
        else:
            nodes.append(node)
    count = sum(node.op == "placeholder" for node in nodes)
    return replace(graph, nodes=(*nodes[:count], *inputs, *nodes[count:])), draws


def _dropout(node: Node, inputs: list[Node]) -> list[Node]:
    """The product with a mask, which is an input."""
    x, probability, _ = node.args
    result, mask = node.result
    names = [f"{node.name}.{it}" for it in ("mask", "masked", "scaled")]
    inputs.append(Node(names[0], "placeholder", names[0], result=mask, place=node.place))
    scale = 1 / (1 - probability) if probability < 1 else 0.0
    product = "aten.mul.Tensor"
    return [
        Node(names[1], "call_function", product, (x, Ref(names[0])), result=result, place=node.place),
        Node(names[2], "call_function", product, (Ref(names[1]), scale), result=result, place=node.place),
        replace(node, target="hir.tuple", args=((Ref(names[2]), Ref(names[0])),), kwargs={}),
    ]


def _draw(node: Any, item: int | None) -> Callable[[], Any]:
    """What draws the numbers of an operator. ``item`` is the number of the result that has them."""
    import torch

    def value(it: Any) -> Any:
        it = it.meta["val"]
        return torch.empty_strided(it.shape, it.stride(), dtype=it.dtype, device=it.device) if hasattr(it, "stride") else it

    def draw() -> Any:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value)
        result = node.target(*args, **kwargs)
        return result if item is None else result[item]

    return draw
