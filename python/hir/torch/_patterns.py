"""Statements that PyTorch writes for one operation: collectives along other axes than the first one, and their products.

``all_gather`` and ``reduce_scatter`` of PyTorch work on the first axis only. For another one it writes ``cat(split(all_gather(x)))``
and ``reduce_scatter(cat(split(x)))``, and the linear layers beside them merge that axis with others: ``view(mm(view(x), w))``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable, Iterator, Sequence

from ._equal_groups import is_collective
from ._graph import Argument, Node, Ref, TensorType, references, without_unused
from ._part_sums import joined

VIEWS = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
ALL_GATHER = "_c10d_functional.all_gather_into_tensor.default"
ALL_REDUCE = "_c10d_functional.all_reduce.default"
PRODUCTS = ("aten.mm.default", "aten.addmm.default")
REDUCE_SCATTER = "_c10d_functional.reduce_scatter_tensor.default"
WAIT = "_c10d_functional.wait_tensor.default"


#: Views that PyTorch makes where the operand is computed, although only the backward graph reads them.
SAVED_VIEWS = (*VIEWS, "aten.t.default", "aten.transpose.int", "aten.permute.default")


def fused(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Replaces these statements by one each: ``hir.all_gather_along``, ``hir.reduce_scatter_along``, ``hir.matmul_of_rows``, and joins
    the gradients of parts.

    Then it moves statements between which collectives cannot be overlapped: what no collective needs comes after the next one, such
    as the product for the gradient of a weight, and views that only the output needs come last.
    """
    return _saved_views_last(_results_after_collectives(_Fusion(_reduced_before_views(joined(nodes))).result()))


def _reduced_before_views(nodes: Sequence[Node]) -> Iterator[Node]:
    """Makes ``view(all_reduce(product))`` of ``all_reduce(view(product))``: the rows of the product are what can be split."""
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        product = _viewed(node.args[0], by_name) if node.target == ALL_REDUCE else None
        if product is None or product.target not in PRODUCTS or product.result == node.result:
            yield node
            continue
        rows = replace(node, name=f"{node.name}.rows", args=(Ref(product.name), *node.args[1:]), result=product.result)
        yield rows
        yield replace(node, target=VIEWS[0], args=(Ref(rows.name), node.result.shape), kwargs={})


def _viewed(argument: Argument, by_name: dict[str, Node]) -> Node | None:
    """The node of an argument, behind views."""
    node = by_name.get(argument.name) if isinstance(argument, Ref) else None
    while node is not None and node.target in VIEWS:
        node = by_name.get(node.args[0].name)
    return node


def _results_after_collectives(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Moves what no collective needs behind the next collective, and behind what computes from it what a later one needs."""
    needed: set[str] = set()
    for node in reversed(nodes):
        if is_communication(node) or node.name in needed:
            needed |= {node.name, *references(node)}
    order: list[Node] = []
    #: What waits for the next collective, and what the last one has passed.
    waiting: list[Node] = []
    passed: list[Node] = []
    for node in nodes:
        if is_communication(node):
            order += [*passed, node]
            passed, waiting = waiting, []
        else:
            (order if node.op == "placeholder" or node.name in needed else waiting).append(node)
    return (*order, *passed, *waiting)


def is_communication(node: Node) -> bool:
    """Whether a node is a collective of PyTorch, or stands for one."""
    return is_collective(node.target) or node.target in ("hir.all_gather_along", "hir.reduce_scatter_along")


def _saved_views_last(nodes: Sequence[Node]) -> tuple[Node, ...]:
    used = {name for node in nodes if node.op != "output" for name in references(node)}
    last = [node for node in nodes if node.target in SAVED_VIEWS and node.name not in used]
    ends = [node for node in nodes if node.op == "output"]
    moved = {node.name for node in (*last, *ends)}
    return (*(node for node in nodes if node.name not in moved), *last, *ends)


class _Fusion:
    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.name: node for node in nodes}
        #: Statements whose results only replaced statements may need.
        self._parts: set[str] = set()

    def result(self) -> tuple[Node, ...]:
        gathers = {name: it for name, node in self._nodes.items() if (it := self._gather(node))}
        scatters = {name: it for name, node in self._nodes.items() if (it := self._scatter(node))}
        self._nodes |= gathers | scatters
        wanted = {name for it in scatters.values() for name in self._terms(it.args[0])}
        products = {name: it for name, node in self._nodes.items() if (it := self._product(node, wanted, set(gathers)))}
        self._nodes |= products
        return without_unused(self._nodes.values(), self._parts)

    def _at(self, argument: Argument, *targets: str) -> Node | None:
        """The node of an argument, if it calls one of the operators."""
        node = self._nodes.get(argument.name) if isinstance(argument, Ref) else None
        return node if node is not None and node.target in targets else None

    def _source(self, argument: Argument) -> str | None:
        """The node of an argument, without views that change nothing."""
        while (node := self._at(argument, *VIEWS)) and node.result == self._nodes[node.args[0].name].result:
            argument = node.args[0]
        return argument.name if isinstance(argument, Ref) else None

    def _terms(self, argument: Argument) -> list[str | None]:
        """The nodes whose sum an argument is."""
        source = self._source(argument)
        add = self._at(Ref(source), "aten.add.Tensor") if source else None
        if add is None or add.kwargs:
            return [source]
        return [name for it in add.args for name in self._terms(it)]

    def _split_in_order(self, cat: Node) -> Node | None:
        """The split of which a statement concatenates all parts in their order."""
        if cat.target != "aten.cat.default":
            return None
        items = [self._at(it, "_operator.getitem") for it in cat.args[0]]
        split = self._at(items[0].args[0], "aten.split.Tensor") if items and items[0] else None
        if split is None or not isinstance(split.result, tuple) or not isinstance(split.args[1], int):
            return None
        expected = [(Ref(split.name), i) for i in range(len(split.result))]
        if [it.args if it else None for it in items] != expected or len({it.shape for it in split.result}) > 1:
            return None
        self._parts |= {split.name, *(it.name for it in items if it)}
        return split

    def _gather(self, node: Node) -> Node | None:
        split = self._split_in_order(node)
        wait = self._at(split.args[0], WAIT) if split and _dim(split, 2) == 0 else None
        gather = self._at(wait.args[0], ALL_GATHER) if wait else None
        if split is None or wait is None or gather is None or _dim(node, 1) == 0:
            return None
        x, size, group = gather.args
        if not isinstance(size, int) or len(split.result) != size:
            return None
        self._parts |= {wait.name, gather.name}
        return replace(node, target="hir.all_gather_along", args=(x, _dim(node, 1), group), kwargs={})

    def _scatter(self, node: Node) -> Node | None:
        scatter = self._at(node.args[0], REDUCE_SCATTER) if node.target == WAIT else None
        cat = self._at(scatter.args[0], "aten.cat.default") if scatter else None
        split = self._split_in_order(cat) if cat else None
        if scatter is None or cat is None or split is None or _dim(cat, 1) != 0 or _dim(split, 2) == 0:
            return None
        _, op, size, group = scatter.args
        if len(split.result) != size:
            return None
        self._parts |= {cat.name, scatter.name}
        return replace(node, target="hir.reduce_scatter_along", args=(split.args[0], op, _dim(split, 2), group), kwargs={})

    def _product(self, node: Node, wanted: set[str | None], gathers: set[str]) -> Node | None:
        """A product whose rows are those of a gathered tensor, or of one that is reduced and scattered."""
        product = self._at(node.args[0], *PRODUCTS) if node.target in VIEWS else None
        if product is None or product.kwargs:
            return None
        *bias, rows, weight = product.args
        flat = self._at(rows, *VIEWS)
        x = self._nodes.get(flat.args[0].name) if flat else None
        if flat is None or x is None or not isinstance(x.result, TensorType) or not isinstance(node.result, TensorType):
            return None
        keeps_rows = len(x.result.shape) > 2 and x.result.shape[:-1] == node.result.shape[:-1]
        if not keeps_rows or not (node.name in wanted or self._source(flat.args[0]) in gathers):
            return None
        self._parts |= {product.name, flat.name}
        return replace(node, target="hir.matmul_of_rows", args=(flat.args[0], weight, *bias), kwargs={})


def _dim(node: Node, position: int) -> int | None:
    """The dimension of a split or cat, counted from the first one; None if it is no number."""
    dim = node.args[position] if len(node.args) > position else node.kwargs.get("dim", 0)
    result = node.result[0] if isinstance(node.result, tuple) else node.result
    if not isinstance(dim, int) or not isinstance(result, TensorType):
        return None
    return dim % max(len(result.shape), 1)
