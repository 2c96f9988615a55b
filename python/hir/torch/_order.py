"""Puts elementwise operators where one kernel computes them: next to each other, between the operators that need their results.

PyTorch writes operators in the order in which a model, or autograd, comes to them: ``silu(g)`` before the product that ``silu(g) * u`` waits for,
and a product between two gradients that read the same tensors. A kernel for each then reads and writes memory once more.
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from ._converted_parts import CONVERSIONS, parts_converted
from ._graph import Node, TensorType, readers_of, references
from ._patterns import PRODUCTS, SAVED_VIEWS
from .operators import OPERATORS

#: Views and conversions, which cost nothing beside elementwise operators.
SHAPES = (*SAVED_VIEWS, *CONVERSIONS, *(f"aten.{it}.default" for it in ("expand", "unsqueeze")), "aten.squeeze.dim", "aten.squeeze.dims")
#: Reductions along dimensions, their second argument.
REDUCTIONS = ("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default", "aten.amin.default")
#: What reads the result of a kernel as a whole, so that it may be computed early.
ENDS = (*PRODUCTS, "aten.bmm.default", "hir.matmul_of_rows", "output")


def together(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Moves elementwise operators, and reductions of rows, behind all others that do not need them, and behind those that read the same tensors.

    All other operators keep their order, and so does a graph with operators that write to tensors, or that read what is not defined.
    """
    known: set[str] = set()
    for node in nodes:
        if _writes(node) or not known.issuperset(references(node)):
            return tuple(nodes)
        known.add(node.name)
    nodes = parts_converted(nodes)
    order = _Order(nodes)
    for node in nodes:
        if not is_light(node):
            order.heavy(node)
    return tuple(order.done.values())


def is_light(node: Node) -> bool:
    """Whether an operator computes each element of its result from those at the same place or in the same row, or only views or converts a tensor."""
    if node.op != "call_function" or not isinstance(node.result, TensorType):
        return False
    entry = OPERATORS.get(node.target)
    is_elementwise = entry is not None and entry.by_rank and node.target.startswith("aten.")
    return is_elementwise or node.target in SHAPES or _reduces_rows(node)


def _reduces_rows(node: Node) -> bool:
    """Whether an operator reduces along the last dimension only."""
    if node.target not in REDUCTIONS or len(node.args) < 2:
        return False
    keeps_dims = len(node.args) > 2 and node.args[2] is True
    last = len(node.result.shape) - (1 if keeps_dims else 0)
    return node.args[1] in ((-1,), (last,))


def _writes(node: Node) -> bool:
    """Whether an operator writes to an operand: PyTorch ends its name with an underscore."""
    name = node.target.split(".")[1] if node.target.count(".") > 1 else node.target
    return node.op == "call_function" and is_in_place(name)


def is_in_place(name: str) -> bool:
    """Whether PyTorch names an operator as one that writes to its first operand."""
    return name.endswith("_") and not name.endswith("__")


class _Order:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self.done: dict[str, Node] = {}
        self._nodes = {node.name: node for node in nodes}
        self._operands = {node.name: tuple(dict.fromkeys(references(node))) for node in nodes}
        self._readers = readers_of(nodes)

    def heavy(self, node: Node) -> None:
        """Adds an operator behind what it needs, and what shares operands with that."""
        if node.op == "output":
            # What only the output needs has the order of the graph.
            for it in self._nodes:
                self._add_light(it)
        needed = [it for name in self._operands[node.name] for it in self._add_light(name)]
        self._add_readers([it for it in needed if self._nodes[it].target not in SHAPES and not _reduces_rows(self._nodes[it])])
        self.done[node.name] = node
        if node.target in ENDS:
            self._add_sum(node.name)

    def _add_sum(self, name: str) -> None:
        """Adds the sum of a product with what is there already, which the kernel of the product computes."""
        readers = self._readers[name]
        while len(readers) == 1 and readers[0].target in SHAPES:
            readers = self._readers[readers[0].name]
        if len(readers) == 1 and readers[0].target == "aten.add.Tensor":
            if all(map(self._is_view_of_done, self._operands[readers[0].name])):
                self._add_light(readers[0].name)

    def _add_light(self, name: str) -> list[str]:
        """Adds an operator that is not added yet behind its operands. Returns all that are added, without recursion: graphs are deep."""
        added: list[str] = []
        waiting = [name]
        while waiting:
            it = waiting[-1]
            missing = [operand for operand in self._operands[it] if operand not in self.done]
            if it in self.done or not is_light(self._nodes[it]):
                waiting.pop()
            elif missing:
                waiting += reversed(missing)
            else:
                self.done[it] = self._nodes[waiting.pop()]
                added.append(it)
        return added

    def _add_readers(self, needed: Sequence[str]) -> None:
        """Adds what reads what these operators compute or read, on as many elements, up to the operands of products."""
        sizes = {_size(self._nodes[it]) for it in needed}
        found: dict[str, None] = {}
        waiting = [reader for name in needed for it in (name, *self._operands[name]) for reader in self._readers[it]]
        while waiting:
            node = waiting.pop(0)
            name = node.name
            if name in self.done or name in found or not is_light(node) or _size(node) not in sizes:
                continue
            if all(it in found or self._is_view_of_done(it) for it in self._operands[name]):
                found[name] = None
                waiting += self._readers[name]
        size = -1
        while size != len(found):
            size = len(found)
            found = dict.fromkeys(it for it in found if self._ends(it, found))
        for name in found:
            self._add_light(name)

    def _is_view_of_done(self, name: str) -> bool:
        while name not in self.done and self._nodes[name].target in SHAPES:
            name = self._operands[name][0]
        return name in self.done

    def _ends(self, name: str, found: dict[str, None]) -> bool:
        """Whether all that reads an operator is here, or takes it as a whole, and all that it reads is here."""
        here = (it in found or self._is_view_of_done(it) for it in self._operands[name])
        readers = self._readers[name]
        return all(here) and all(it.name in found or it.name in self.done or it.target in ENDS for it in readers)


def _size(node: Node) -> int:
    return prod(node.result.shape)
