"""Gathers, scatters and indexing, written with comparisons: an element is the sum of all elements at which the index points.

The statements run on every executor of hir. Their intermediate results have an axis for each index and one for each element
of the indexed axis.
"""

from __future__ import annotations

from math import prod
from typing import Any

from .._builder import Value, zero
from ._elementwise import apply
from ._reductions import along
from ._registry import Call, dimension, operator


def gathered(call: Call, x: Value, dim: int, index: Value) -> Value:
    """Selects along ``dim``: other axes of x have the extent of those of the index, or 1."""
    # Axes of the table of hits: those of the index, with the indexed axis of x behind `dim`.
    where = call.to.elementwise(
        "{} == {}", [call.to.insert_axes(index, [dim + 1]), along(call, dim + 1, x.ndim + 1, x.shape[dim])], "bool"
    )
    none = call.to.full((), 0, x.dtype)
    hits = call.to.elementwise("where({}, {}, {})", [where, call.to.insert_axes(x, [dim]), none], x.dtype)
    if x.dtype == "bool":
        return call.to.reduce(hits, "bitwise_or", "false", [dim + 1])
    return call.to.reduce(hits, "add", zero(x.dtype), [dim + 1])


def scattered(call: Call, x: Value, dim: int, index: Value, source: Value, accumulate: bool) -> Value:
    """Writes or adds the source at the indices along ``dim``. All other axes have equal extents, or 1 in the index."""
    where = call.to.elementwise(
        "{} == {}", [call.to.insert_axes(index, [dim]), along(call, dim, x.ndim + 1, x.shape[dim])], "bool"
    )
    count = index.shape[dim]
    if not accumulate:
        # Of several elements for one place, the last one counts.
        order = along(call, dim + 1, x.ndim + 1, count)
        none = call.to.full((), -1, "int64")
        order = call.to.elementwise("where({}, {}, {})", [where, order, none], "int64")
        last = call.to.reduce(order, "max", "-1", [dim + 1], True)
        written = call.to.elementwise("{} >= {}", [last, 0], "bool")
        where = call.to.elementwise("{} && {}", [call.to.elementwise("{} == {}", [order, last], "bool"), written], "bool")
        kept = call.to.squeeze(written, [dim + 1])
    zeros = call.to.full((), 0, x.dtype)
    parts = call.to.elementwise("where({}, {}, {})", [where, call.to.insert_axes(source, [dim]), zeros], x.dtype)
    total = call.to.sum(parts, [dim + 1])
    if accumulate:
        return apply(call, "{} + {}", [x, total], x.dtype)
    return call.to.elementwise("where({}, {}, {})", [kept, total, x], x.dtype)


def cropped(call: Call, x: Value, shape: tuple[int, ...], dim: int) -> Value:
    """The part of x at the indices of a smaller shape, except along ``dim``."""
    for d, extent in enumerate(shape):
        if d != dim:
            x = call.to.slice(x, d, 0, extent)
    return x


@operator("aten.gather.default", counterpart="`reduction` of the elements at which the index points")
def gather(call: Call, x: Value, dim: int, index: Value, **_: Any) -> Value:
    dim = dimension(call, dim, x.ndim)
    return gathered(call, cropped(call, x, index.shape, dim), dim, index)


@operator("aten.scatter.src", "aten.scatter_add.default", counterpart="`reduction` of the elements that go to each place")
def scatter(call: Call, x: Value, dim: int, index: Value, source: Value) -> Value:
    dim = dimension(call, dim, x.ndim)
    source = cropped(call, source, index.shape, -1)
    if any(extent != x.shape[d] for d, extent in enumerate(index.shape) if d != dim):
        raise call.error("hir imports it only if the index has the shape of the result, except along the dimension")
    return scattered(call, x, dim, index, source, "scatter_add" in call.node.target)


@operator("aten.scatter.value", counterpart="`reduction` of the places at which the index points")
def scatter_value(call: Call, x: Value, dim: int, index: Value, fill: float) -> Value:
    return scatter(call, x, dim, index, call.to.full(index.shape, fill, x.dtype))


@operator("aten.embedding.default", counterpart="`reduction` of the rows at which the index points")
def embedding(
    call: Call, table: Value, index: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Value:
    rows = call.to.reshape(index, (prod(index.shape), 1))
    return call.to.reshape(gathered(call, table, 0, rows), call.shape)


@operator("aten.embedding_dense_backward.default", counterpart="`matmul` with the table of hits")
def embedding_backward(
    call: Call, grad: Value, index: Value, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    if scale_grad_by_freq:
        raise call.error("hir imports it only without scale_grad_by_freq")
    count = prod(index.shape)
    where = call.to.elementwise("{} == {}", [along(call, 0, 2, num_weights), call.to.reshape(index, (1, count))], "bool")
    if padding_idx >= 0:
        counts = call.to.elementwise("{} != {}", [along(call, 0, 2, num_weights), padding_idx], "bool")
        where = call.to.elementwise("{} && {}", [where, counts], "bool")
    hits = call.to.convert(where, grad.dtype)
    return call.to.matmul(hits, call.to.reshape(grad, (count, grad.shape[-1])))


def linear_index(call: Call, x: Value, indices: tuple[Value | None, ...]) -> tuple[Value, int]:
    """One index for several leading ones, and how many axes it stands for."""
    if any(it is None for it in indices) or any(it is not None and it.dtype == "bool" for it in indices):
        raise call.error("hir imports it only with integer indices of the first dimensions")
    result: Value | None = None
    for d, index in enumerate(it for it in indices if it is not None):
        extent = x.shape[d]
        # An index may count from the end.
        negative = call.to.elementwise("{} < {}", [index, 0], "bool")
        shifted = call.to.elementwise("{} + {}", [index, extent], "int64")
        index = call.to.elementwise("where({}, {}, {})", [negative, shifted, index], "int64")
        if result is not None:
            index = call.to.elementwise("{} + {}", [call.to.elementwise("{} * {}", [result, extent], "int64"), index], "int64")
        result = index
    if result is None:
        raise call.error("it has no index")
    return result, len(indices)


@operator("aten.index.Tensor", counterpart="`reduction` of the elements at which the indices point")
def index(call: Call, x: Value, indices: tuple[Value | None, ...]) -> Value:
    place, count = linear_index(call, x, indices)
    flat = call.to.reshape(x, (prod(x.shape[:count]), prod(x.shape[count:])))
    return call.to.reshape(gathered(call, flat, 0, call.to.reshape(place, (prod(place.shape), 1))), call.shape)


@operator("aten.index_put.default", counterpart="`reduction` of the elements that go to each place")
def index_put(call: Call, x: Value, indices: tuple[Value | None, ...], source: Value, accumulate: bool = False) -> Value:
    place, count = linear_index(call, x, indices)
    rest = x.shape[count:]
    flat = call.to.reshape(x, (prod(x.shape[:count]), prod(rest)))
    rows = prod(place.shape)
    source = call.to.reshape(call.to.expand(source, (*place.shape, *rest)), (rows, prod(rest)))
    result = scattered(call, flat, 0, call.to.reshape(place, (rows, 1)), source, accumulate)
    return call.to.reshape(result, x.shape)


@operator("aten.index_select.default", counterpart="`reduction` of the elements at which the index points")
def index_select(call: Call, x: Value, dim: int, index: Value) -> Value:
    dim = dimension(call, dim, x.ndim)
    shape = [1] * x.ndim
    shape[dim] = index.shape[0]
    return gathered(call, x, dim, call.to.reshape(index, shape))


@operator(
    "aten._assert_async.msg",
    "aten._assert_async.default",
    "aten._assert_scalar.default",
    "aten._assert_tensor_metadata.default",
    counterpart="none: hir does not test it",
)
def assertion(call: Call, *_: Any, **__: Any) -> None:
    return None
