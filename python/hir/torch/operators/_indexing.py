"""Gathers, scatters, indexing and sorting."""

from __future__ import annotations

from math import prod
from typing import Any, Sequence

from .._builder import Value, max_extent
from ._elementwise import converted
from ._reductions import along
from ._registry import Call, dimension, operator


def gathered(call: Call, x: Value, dim: int, index: Value) -> Value:
    """Selects along ``dim``. Other axes of both have the same extent, or 1 in one of them."""
    to = call.to
    x, index = to.with_equal_sharding([x, index])
    shape = [max_extent(pair) for pair in zip(x.shape, index.shape)]
    shape[dim] = index.shape[dim]
    return to.add("takeAlongAxis", to.value(x.dtype, shape, x.sharded), x, index, dim=to.mesh.ndim + dim)


def from_start(call: Call, index: Value, extent: int) -> Value:
    """Indices of which some may count from the end."""
    negative = call.to.elementwise("<", [index, 0], "bool")
    index = call.to.convert(index, "int64")
    shifted = call.to.elementwise("+", [index, extent], "int64")
    return call.to.elementwise("where", [negative, shifted, index], "int64")


def scattered(call: Call, x: Value, dim: int, index: Value, source: Value, accumulate: bool) -> Value:
    """Writes or adds the source at the indices along ``dim``. All other axes have equal extents, or 1 in index and source."""
    to = call.to
    shape = (*x.shape[:dim], index.shape[dim], *x.shape[dim + 1 :])
    if 0 in shape:
        return x
    x, index, source = to.with_equal_sharding([x, to.expand(index, shape), to.expand(source, shape)])
    add = {"accumulate": "add"} if accumulate else {}
    return to.add("scatter", to.like(x), dim=to.mesh.ndim + dim, src=source, idx=index, **{"in": x}, **add)


def corner(call: Call, x: Value, shape: Sequence[int], dim: int) -> Value:
    """The part of x at the indices of a smaller shape, except along ``dim``."""
    for d, extent in enumerate(shape):
        if d != dim:
            x = call.to.slice(x, d, 0, extent)
    return x


def with_corner(call: Call, x: Value, part: Value) -> Value:
    """x with another part at its first indices."""
    for d in reversed(range(x.ndim)):
        if part.shape[d] < x.shape[d]:
            rest = call.to.slice(corner(call, x, part.shape, d), d, part.shape[d], x.shape[d])
            part = call.to.cat([part, rest], d)
    return part


@operator("aten.gather.default", counterpart="`takeAlongAxis`")
def gather(call: Call, x: Value, dim: int, index: Value, **_: Any) -> Value:
    if x.ndim == 0:
        return call.to.expand(x, index.shape)
    dim = dimension(call, dim, x.ndim)
    return gathered(call, corner(call, x, index.shape, dim), dim, index)


@operator("aten.scatter.src", "aten.scatter_add.default", counterpart="`scatter`")
def scatter(call: Call, x: Value, dim: int, index: Value, source: Value) -> Value:
    dim = dimension(call, dim, x.ndim)
    source = corner(call, source, index.shape, -1)
    part = corner(call, x, index.shape, dim)
    return with_corner(call, x, scattered(call, part, dim, index, source, "scatter_add" in call.node.target))


@operator("aten.scatter.value", counterpart="`full` and `scatter`")
def scatter_value(call: Call, x: Value, dim: int, index: Value, fill: float) -> Value:
    return scatter(call, x, dim, index, call.to.full(index.shape, fill, x.dtype))


@operator("aten.scatter_reduce.two", counterpart="`scatter`, for sums")
def scatter_reduce(
    call: Call, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    if reduce != "sum":
        raise call.error(f"hir imports it only for sums, not for `{reduce}`")
    dim = dimension(call, dim, x.ndim)
    source = corner(call, source, index.shape, -1)
    part = corner(call, x, index.shape, dim)
    if not include_self:
        part = scattered(call, part, dim, index, call.to.full(index.shape, 0, x.dtype), False)
    return with_corner(call, x, scattered(call, part, dim, index, source, True))


@operator("aten.embedding.default", counterpart="`takeAlongAxis` of the rows")
def embedding(
    call: Call, table: Value, index: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Value:
    rows = call.to.reshape(index, (prod(index.shape), 1))
    return call.to.reshape(gathered(call, table, 0, rows), call.shape)


@operator("aten.embedding_dense_backward.default", counterpart="`scatter` of the rows, with `accumulate=add`")
def embedding_backward(
    call: Call, grad: Value, index: Value, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    if scale_grad_by_freq:
        raise call.error("hir imports it only without scale_grad_by_freq")
    to, count = call.to, prod(index.shape)
    index, rows = to.reshape(index, (count, 1)), to.reshape(grad, (count, grad.shape[-1]))
    if padding_idx >= 0:
        counts = to.elementwise("!=", [index, padding_idx], "bool")
        rows = to.elementwise("where", [counts, rows, to.full((), 0, rows.dtype)], rows.dtype)
    return scattered(call, to.full((num_weights, grad.shape[-1]), 0, grad.dtype), 0, index, rows, True)


class Indexed:
    """A tensor under indices, ``x[:, i, j]``: its indexed axes are first, as one axis, and the indices are one index."""

    def __init__(self, call: Call, x: Value, indices: Sequence[Value | None]) -> None:
        to, self._call, self._x = call.to, call, x
        if any(it is not None and it.dtype in ("bool", "uint8") for it in indices):
            raise call.error("hir imports it only with integer indices")
        dims = [d for d, it in enumerate(indices) if it is not None]
        self._order = [*dims, *(d for d in range(x.ndim) if d not in dims)]
        self._kept = tuple(x.shape[d] for d in self._order[len(dims) :])
        self.rows = to.reshape(to.permute(x, self._order), (prod(x.shape[d] for d in dims), prod(self._kept)))
        place: Value | None = None
        for d in dims:
            index, extent = indices[d], x.shape[d]
            assert index is not None
            index = from_start(call, index, extent)
            if place is not None:
                index = to.elementwise("+", [to.elementwise("*", [place, extent], "int64"), index], "int64")
            place = index
        if place is None:
            raise call.error("it has no index")
        #: The shape of the indices, whose axes in the result are where those of adjacent indices are in x, and first otherwise.
        self.shape = place.shape
        adjacent = dims == list(range(dims[0], dims[-1] + 1))
        self._first = dims[0] if adjacent else 0
        self.place = to.reshape(place, (prod(place.shape), 1))

    def result(self, rows: Value) -> Value:
        """The result of the indexing, from its rows."""
        whole = self._call.to.reshape(rows, (*self.shape, *self._kept))
        n, first = len(self.shape), self._first
        return self._call.to.permute(whole, [*range(n, n + first), *range(n), *range(n + first, whole.ndim)])

    def rows_of(self, source: Value) -> Value:
        """The rows of a tensor that is broadcast to the result of the indexing."""
        n, first, kept = len(self.shape), self._first, self._kept
        whole = self._call.to.expand(source, (*kept[:first], *self.shape, *kept[first:]))
        order = [*range(first, first + n), *range(first), *range(first + n, whole.ndim)]
        return self._call.to.reshape(self._call.to.permute(whole, order), (prod(self.shape), prod(kept)))

    def restored(self, rows: Value) -> Value:
        """The tensor with other rows."""
        x, order = self._x, self._order
        whole = self._call.to.reshape(rows, tuple(x.shape[d] for d in order))
        return self._call.to.permute(whole, [order.index(d) for d in range(x.ndim)])


@operator("aten.index.Tensor", "aten._unsafe_index.Tensor", counterpart="`takeAlongAxis` of rows")
def index(call: Call, x: Value, indices: tuple[Value | None, ...]) -> Value:
    indexed = Indexed(call, x, indices)
    return indexed.result(gathered(call, indexed.rows, 0, indexed.place))


@operator(
    "aten.index_put.default",
    "aten._unsafe_index_put.default",
    counterpart="`scatter` of rows; `where` for a mask and one value",
)
def index_put(call: Call, x: Value, indices: tuple[Value | None, ...], source: Value, accumulate: bool = False) -> Value:
    [*masks] = [(d, it) for d, it in enumerate(indices) if it is not None and it.dtype == "bool"]
    if len(masks) == 1 and masks[0][0] == len(indices) - 1 == sum(it is None for it in indices):
        if prod(source.shape) != 1 or accumulate:
            raise call.error("hir imports masks as indices only with one value")
        dim, mask = masks[0]
        mask = call.to.insert_axes(mask, range(mask.ndim, x.ndim - dim)) if mask.ndim < x.ndim - dim else mask
        value = call.to.reshape(source, ())
        return call.to.elementwise("where", [mask, converted(call, value, x.dtype), x], x.dtype)
    indexed = Indexed(call, x, indices)
    rows = scattered(call, indexed.rows, 0, indexed.place, indexed.rows_of(source), accumulate)
    return indexed.restored(rows)


@operator("hir.as_strided", counterpart="`slice`; else `takeAlongAxis`")
def as_strided(call: Call, x: Value, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int | None = None) -> Value:
    """A view of a tensor that is all of its storage."""
    to, count, start = call.to, prod(sizes), offset or 0
    flat = to.reshape(x, (prod(x.shape),))
    if count == 0 or all(size == 1 or stride == prod(sizes[d + 1 :]) for d, (size, stride) in enumerate(zip(sizes, strides))):
        return to.reshape(to.slice(flat, 0, start, start + count), sizes)
    place = to.full((), start, "int64")
    for d, (size, stride) in enumerate(zip(sizes, strides)):
        own = along(call, d, len(sizes), size)
        place = to.elementwise("+", [place, to.elementwise("*", [own, stride], "int64")], "int64")
    return to.reshape(gathered(call, flat, 0, to.reshape(place, (count,))), sizes)


@operator("aten.index_select.default", counterpart="`takeAlongAxis`")
def index_select(call: Call, x: Value, dim: int, index: Value) -> Value:
    if x.ndim == 0:
        return x
    dim = dimension(call, dim, x.ndim)
    shape = [1] * x.ndim
    shape[dim] = prod(index.shape)
    return gathered(call, x, dim, call.to.reshape(index, shape))


@operator("aten.flip.default", counterpart="`iota` and `takeAlongAxis`")
def flip(call: Call, x: Value, dims: tuple[int, ...]) -> Value:
    for dim in (dimension(call, it, x.ndim) for it in dims):
        if x.ndim and x.shape[dim] > 1:
            x = gathered(call, x, dim, along(call, dim, x.ndim, x.shape[dim], x.shape[dim] - 1, -1))
    return x


@operator("aten.topk.default", counterpart="`topk`")
def topk(call: Call, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, Value]:
    if x.ndim == 0:
        return x, call.to.full((), 0, "int64")
    dim = dimension(call, dim, x.ndim)
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
    results = [call.to.value(dtype, shape, x.sharded) for dtype in (x.dtype, "int64")]
    values, places = call.to.add("topk", results, x, k, dim=call.to.mesh.ndim + dim, largest=str(largest), sorted="True")
    return values, places


@operator("aten.sort.default", "aten.sort.stable", counterpart="`argsort` and `takeAlongAxis`")
def sort(call: Call, x: Value, dim: int = -1, descending: bool = False, *, stable: bool = False) -> tuple[Value, Value]:
    if x.ndim == 0:
        return x, call.to.full((), 0, "int64")
    dim = dimension(call, dim, x.ndim)
    places = call.to.like(x, "int64")
    call.to.add("argsort", places, x, dim=call.to.mesh.ndim + dim, descending=str(descending), stable="True")
    return gathered(call, x, dim, places), places


@operator(
    "aten._assert_async.msg",
    "aten._assert_async.default",
    "aten._assert_scalar.default",
    "aten._assert_tensor_metadata.default",
    counterpart="none: hir does not test it",
)
def assertion(call: Call, *_: Any, **__: Any) -> None:
    return None
