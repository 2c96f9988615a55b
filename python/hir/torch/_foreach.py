"""Operators on lists of tensors (``_foreach_*``), as optimizers and ``clip_grad_norm_`` call them: one operator for each tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

from ._graph import Argument, Node, Ref, TensorType, references

PREFIX = "aten._foreach_"
#: The overload for one tensor, by that for lists.
OVERLOADS = {
    "List": "Tensor",
    "Scalar": "Scalar",
    "ScalarList": "Scalar",
    "Tensor": "Tensor",
    "ScalarAndTensor": "Scalar",
    "default": "default",
}
#: Operators whose name or overload for one tensor is another one, by name and overload.
OTHERS = {
    "norm.Scalar": "aten.linalg_vector_norm.default",
    "max.default": "aten.max.default",
    "maximum.List": "aten.maximum.default",
    "maximum.Scalar": "aten.clamp_min.default",
    "minimum.List": "aten.minimum.default",
    "minimum.Scalar": "aten.clamp_max.default",
    "clamp_max.Scalar": "aten.clamp_max.default",
    "clamp_min.Scalar": "aten.clamp_min.default",
    "pow.List": "aten.pow.Tensor_Tensor",
    "pow.Scalar": "aten.pow.Tensor_Scalar",
    "addcmul.Scalar": "aten.addcmul.default",
    "addcdiv.Scalar": "aten.addcdiv.default",
    "copy.default": "aten.copy.default",
    "clone.default": "aten.clone.default",
    "zero.default": "aten.zeros_like.default",
}


def each(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Replaces operators on lists by operators on tensors, and the choice of a result from a list (``getitem``) by this result."""
    lists = {node.name: node for node in nodes if node.target.startswith(PREFIX) and _is_list_of_tensors(node)}
    items = [node for node in nodes if node.target == "_operator.getitem" and node.args[0].name in lists]
    names: dict[tuple[str, int], list[str]] = {}
    for item in items:
        names.setdefault((item.args[0].name, item.args[1]), []).append(item.name)
    gone = {item.name for item in items}
    used = {name for node in nodes if node.name not in gone for name in references(node)}
    result: list[Node] = []
    for node in nodes:
        if node.name in lists:
            results = []
            for number in range(len(node.result)):
                own, *others = names.get((node.name, number), [f"{node.name}.{number}"])
                results.append(Ref(own))
                result.append(_of_one(node, number, own))
                for other in others:
                    again = replace(result[-1], name=other, target="aten.alias.default", args=(Ref(own),), kwargs={})
                    result.append(again)
            if node.name in used:
                result.append(replace(node, target="hir.tuple", args=(tuple(results),), kwargs={}))
        elif node.name not in gone:
            result.append(node)
    return tuple(result)


def _is_list_of_tensors(node: Node) -> bool:
    results = node.result
    return isinstance(results, tuple) and all(isinstance(it, TensorType) for it in results) and _target(node) is not None


def _target(node: Node) -> str | None:
    """The operator for one tensor."""
    name, _, overload = node.target.removeprefix(PREFIX).partition(".")
    base = f"{name}.{'Scalar' if overload == 'ScalarList' else overload}"
    if base in OTHERS:
        return OTHERS[base]
    # The factors of this overload are the elements of one tensor.
    return (
        None
        if base in ("addcmul.Tensor", "addcdiv.Tensor") or overload not in OVERLOADS
        else f"aten.{name}.{OVERLOADS[overload]}"
    )


def _of_one(node: Node, number: int, name: str) -> Node:
    def own(argument: Argument) -> Any:
        return argument[number] if isinstance(argument, tuple) else argument

    target = str(_target(node))
    args = tuple(own(it) for it in node.args)
    kwargs = {key: own(it) for key, it in node.kwargs.items()}
    if target == "aten.linalg_vector_norm.default":
        kwargs = {"ord": (args + (kwargs.get("ord", 2),))[1]}
        args = args[:1]
    return replace(node, name=name, target=target, args=args, kwargs=kwargs, result=node.result[number])
