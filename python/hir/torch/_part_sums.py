"""The gradient of a tensor of which a function uses parts: PyTorch pads the gradient of each part with zeros, and adds these.

``add(select_backward(a, …, 0), select_backward(b, …, 1))`` is ``stack(a, b)``, and with ``slice_backward`` it is ``cat(a, b)``, if
the parts make up the whole tensor. This moves each element once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

from ._graph import Node, Ref, TensorType, without_unused

ADD = "aten.add.Tensor"
SELECT, SLICE = "aten.select_backward.default", "aten.slice_backward.default"


@dataclass(frozen=True)
class _Part:
    """The gradient of the elements from ``start`` to ``stop`` in a dimension of a tensor."""

    target: str
    dim: int
    start: int
    stop: int
    grad: Ref


def joined(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Replaces sums of padded parts by the parts in their order."""
    sums: dict[str, list[_Part]] = {}
    joins: dict[str, Node] = {}
    for node in nodes:
        parts = _parts(node, sums)
        if parts:
            sums[node.name] = parts
            join = _join(node, parts)
            if join is not None:
                joins[node.name] = join
    return without_unused((joins.get(it.name, it) for it in nodes), sums) if joins else tuple(nodes)


def _parts(node: Node, sums: dict[str, list[_Part]]) -> list[_Part]:
    """The parts of which a node is the sum, if it is one."""
    if node.target in (SELECT, SLICE):
        return _part(node)
    if node.target != ADD or node.kwargs or not isinstance(node.result, TensorType):
        return []
    terms = [sums.get(it.name, []) if isinstance(it, Ref) else [] for it in node.args]
    return [part for it in terms for part in it] if all(terms) else []


def _part(node: Node) -> list[_Part]:
    grad, sizes, dim, *place = node.args
    if not isinstance(grad, Ref) or not isinstance(sizes, tuple) or not all(isinstance(it, int) for it in (*sizes, dim, *place)):
        return []
    dim %= len(sizes)
    if node.target == SELECT:
        start = place[0] % sizes[dim]
        return [_Part(node.target, dim, start, start + 1, grad)]
    start, stop, step = slice(*place).indices(sizes[dim])
    return [_Part(node.target, dim, start, stop, grad)] if step == 1 and start < stop else []


def _join(node: Node, parts: list[_Part]) -> Node | None:
    """The statement that joins the parts of which a node is the sum, if they are all of its elements, each once."""
    kinds = {(it.target, it.dim) for it in parts}
    if len(parts) < 2 or len(kinds) > 1:
        return None
    [(target, dim)] = kinds
    parts = sorted(parts, key=lambda it: it.start)
    ends = [0, *(it.stop for it in parts)]
    if [it.start for it in parts] != ends[:-1] or ends[-1] != node.result.shape[dim]:
        return None
    join = "aten.stack.default" if target == SELECT else "aten.cat.default"
    return replace(node, target=join, args=(tuple(it.grad for it in parts), dim))
