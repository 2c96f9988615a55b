"""Functional collectives: reshardings of the device axes."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from .._builder import Axis, Scalar, Value
from .._graph import DifferentRanks
from ._elementwise import apply
from ._reductions import extreme
from ._registry import Call, dimension, operator
from ._split_axis import gathered_along, reduce_scattered_along

#: Registers a collective: the names of its groups may depend on the rank.
collective = partial(operator, by_rank=True)
#: Reductions over ranks: the name in the language, and the neutral element, if it is the same for all types.
REDUCTIONS = {"sum": ("add", 0), "avg": ("add", 0), "max": ("max", None), "min": ("min", None), "product": ("mul", 1)}


def whole_axes(call: Call, x: Value, dims: tuple[int, ...]) -> list[Axis]:
    """The axes of x, with device axes of a group as plain axes."""
    axes = call.to.axes(x.shape, x.sharded)
    for dim in dims:
        axes[dim] = Axis("i", "S", dim, call.to.mesh.shape[dim])
    return axes


def reduced(call: Call, x: Value, op: str, dims: tuple[int, ...]) -> Value:
    """Reduces over the ranks of a group; all of them hold the result."""
    to = call.to
    if op not in REDUCTIONS:
        raise call.error(f"hir has no reduction `{op}` over ranks")
    name, neutral = REDUCTIONS[op]
    initial: Scalar = ("double" if x.dtype == "float64" and name == "add" else "float", str(neutral))
    if neutral is None:
        initial = extreme(x.dtype, op == "max")
    elif x.dtype in ("int64", "int32"):
        initial = neutral
    if not dims:
        return x
    x = to.shard(x, dims)
    axes = [to.mesh_axis(dim, it, kind="r" if dim in dims else "i") for dim, it in enumerate(x.sharded)] + to.axes(
        x.shape, x.sharded
    )[to.mesh.ndim :]
    partial = to.reduction(to.declare(x.dtype, axes), x, name, initial)
    result = to.value(x.dtype, x.shape, [it and dim not in dims for dim, it in enumerate(x.sharded)])
    return averaged(call, to.broadcast(partial, result, dims), op, dims)


def averaged(call: Call, x: Value, op: str, dims: tuple[int, ...]) -> Value:
    return averaged_over(call, x, prod(call.to.mesh.shape[dim] for dim in dims)) if op == "avg" else x


def averaged_over(call: Call, x: Value, count: int) -> Value:
    return x if count == 1 else apply(call, "/", [x, float(count)], x.dtype)


@collective("_c10d_functional.all_reduce.default", counterpart="`reduction` over the device axis (Allreduce)")
def all_reduce(call: Call, x: Value, op: str, group: Any) -> Value:
    return reduced(call, x, op, call.mesh_dims(group))


@collective("_c10d_functional.all_reduce_coalesced.default", counterpart="one `reduction` over the device axis for each tensor")
def all_reduce_coalesced(call: Call, xs: tuple[Value, ...], op: str, group: Any) -> tuple[Value, ...]:
    return tuple(reduced(call, x, op, call.mesh_dims(group)) for x in xs)


def gathered(call: Call, x: Value, dims: tuple[int, ...], along: int = 0) -> Value:
    """Concatenates the values of a group along an axis; all its ranks hold the result."""
    to = call.to
    if not dims:
        return x
    x = to.shard(x, dims)
    if dims == (to.mesh.ndim - 1,):
        return gathered_along(call, x, along)
    kept = [it and dim not in dims for dim, it in enumerate(x.sharded)]
    result = merged(call, whole_on_each(call, x, dims), x, dims, kept)
    if along == 0:
        return result
    rows = x.shape[0]
    return to.cat([to.slice(result, 0, start, start + rows) for start in range(0, result.shape[0], rows)], along)


def whole_on_each(call: Call, x: Value, dims: tuple[int, ...]) -> str:
    """All values of a group on each of its ranks, with an axis for each device axis."""
    return call.to.add("Set", call.to.declare(x.dtype, whole_axes(call, x, dims)), x)


def merged(call: Call, name: str, x: Value, dims: tuple[int, ...], kept: list[bool]) -> Value:
    """Moves the axes of a group behind the device axes and merges them into the first axis."""
    to = call.to
    axes = whole_axes(call, x, dims)
    others = [dim for dim in range(to.mesh.ndim) if dim not in dims]
    order = [*others, *dims, *range(to.mesh.ndim, len(axes))]
    if order != sorted(order):
        name = to.add("Set.Permute", to.declare(x.dtype, [axes[it] for it in order]), name)
    shape = (prod(to.mesh.shape[dim] for dim in dims) * x.shape[0], *x.shape[1:])
    local = [to.local_axis(extent, to.mesh.ndim + i) for i, extent in enumerate(shape)]
    flat = to.declare(x.dtype, [to.mesh_axis(dim, x.sharded[dim]) for dim in others] + local)
    to.add("reshape", flat, name)
    return to.broadcast(flat, to.value(x.dtype, shape, kept), dims)


@collective(
    "_c10d_functional.all_gather_into_tensor.default", counterpart="`Set` to a tensor that every device holds (Allgather)"
)
def all_gather(call: Call, x: Value, size: int, group: Any) -> Value:
    return gathered(call, x, call.mesh_dims(group))


@collective("_c10d_functional.all_gather_into_tensor_coalesced.default", counterpart="one `Set` for each tensor")
def all_gather_coalesced(call: Call, xs: tuple[Value, ...], size: int, group: Any) -> tuple[Value, ...]:
    return tuple(gathered(call, x, call.mesh_dims(group)) for x in xs)


@collective("hir.all_gather_along", counterpart="`Set` to a tensor that every device holds (Allgather)")
def all_gather_along(call: Call, x: Value, dim: int, group: Any) -> Value:
    """An all-gather along any axis, which PyTorch writes as ``cat(split(all_gather(x)))``."""
    return gathered(call, x, call.mesh_dims(group), dim)


def reduce_scattered(call: Call, x: Value, op: str, dims: tuple[int, ...], along: int = 0) -> Value:
    """Reduces over the ranks of a group; each of them holds its part of an axis."""
    to = call.to
    if op not in ("sum", "avg"):
        raise call.error(f"hir has no reduce-scatter with `{op}`")
    if not dims:
        return x
    x = to.shard(x, dims)
    count = prod(to.mesh.shape[dim] for dim in dims)
    if x.shape[along] % count:
        raise call.error(f"dimension {along}, {x.shape[along]}, has no {count} equal parts")
    if dims == (to.mesh.ndim - 1,):
        return averaged(call, reduce_scattered_along(call, x, along), op, dims)
    if along > 0:
        part = x.shape[along] // count
        x = to.cat([to.slice(x, along, start, start + part) for start in range(0, x.shape[along], part)], 0)
    return scattered_on_mesh(call, x, op, dims, x.shape[0] // count)


def scattered_on_mesh(call: Call, x: Value, op: str, dims: tuple[int, ...], part: int) -> Value:
    """The reduce-scatter along dimensions of the mesh that are not its last one: a reduction, then each rank's part."""
    to = call.to
    total = to.shard(reduced(call, x, op, dims), ())
    shape = (*(to.mesh.shape[dim] for dim in dims), part, *x.shape[1:])
    split = to.reshape(total, shape)
    first = to.mesh.ndim
    others = [dim for dim in range(first) if dim not in dims]
    squeezed_axes = [to.mesh_axis(dim, x.sharded[dim]) for dim in others]
    local = [to.local_axis(extent, first + i) for i, extent in enumerate(shape)]
    squeezed = to.declare(x.dtype, squeezed_axes + local)
    to.add("squeeze", squeezed, split, flags=[dim in dims for dim in range(first + len(shape))])
    own = [to.mesh_axis(dim, True, first + i) for i, dim in enumerate(dims)]
    cut_axes = squeezed_axes + own + local[len(dims) :]
    cut = to.add("Set", to.declare(x.dtype, cut_axes), squeezed)
    axes = {**dict(zip(others, squeezed_axes)), **dict(zip(dims, own))}
    ordered = [axes[dim] for dim in range(first)] + local[len(dims) :]
    if ordered == cut_axes:
        return to.add("Set", to.value(x.dtype, (part, *x.shape[1:]), x.sharded), cut)
    # Set.Permute takes the numbers of its operand.
    return to.add("Set.Permute", to.value(x.dtype, (part, *x.shape[1:]), x.sharded, ordered), cut)


@collective(
    "_c10d_functional.reduce_scatter_tensor.default",
    counterpart="`reduction` over the device axis to a tensor that is split over the devices (ReduceScatter)",
)
def reduce_scatter(call: Call, x: Value, op: str, size: int, group: Any) -> Value:
    return reduce_scattered(call, x, op, call.mesh_dims(group))


@collective(
    "hir.reduce_scatter_along",
    counterpart="`reduction` over the device axis to a tensor that is split over the devices (ReduceScatter)",
)
def reduce_scatter_along(call: Call, x: Value, op: str, dim: int, group: Any) -> Value:
    """A reduce-scatter along any axis, which PyTorch writes as ``reduce_scatter(cat(split(x)))``."""
    return reduce_scattered(call, x, op, call.mesh_dims(group), dim)


@collective("_c10d_functional.reduce_scatter_tensor_coalesced.default", counterpart="one `reduction` for each tensor")
def reduce_scatter_coalesced(call: Call, xs: tuple[Value, ...], op: str, size: int, group: Any) -> tuple[Value, ...]:
    return tuple(reduce_scattered(call, x, op, call.mesh_dims(group)) for x in xs)


def exchanged(call: Call, x: Value, dims: tuple[int, ...]) -> Value:
    """Sends part `i` of the first axis, whose extent is the size of the group, to rank `i` of the group."""
    to = call.to
    if len(dims) != 1:
        raise DifferentRanks("hir has no all-to-all along several dimensions of a mesh", call.node)
    dim, first = dims[0], to.mesh.ndim
    x = to.shard(x, dims)
    axes = to.axes(x.shape, x.sharded)
    axes[dim] = Axis("i", "S", dim, to.mesh.shape[dim])
    axes[first] = to.mesh_axis(dim, True, first)
    received = to.add("Set", to.declare(x.dtype, axes), x)
    order = list(range(len(axes)))
    order[dim], order[first] = first, dim
    return to.add("Set.Permute", to.value(x.dtype, x.shape, x.sharded, [axes[it] for it in order]), received)


@collective("_c10d_functional.all_to_all_single.default", counterpart="`Set` that moves the device axis (AllToAll)")
def all_to_all(call: Call, x: Value, output_splits: Any, input_splits: Any, group: Any) -> Value:
    dims = call.mesh_dims(group)
    count = prod(call.to.mesh.shape[dim] for dim in dims)
    for splits in (output_splits, input_splits):
        if splits and splits != (x.shape[0] // count,) * count:
            raise DifferentRanks(f"the splits {splits} differ", call.node)
    parts = call.to.reshape(x, (count, x.shape[0] // count, *x.shape[1:]))
    return call.to.reshape(exchanged(call, parts, dims), call.shape)


@collective("_dtensor.shard_dim_alltoall.default", counterpart="`Set` that moves the device axis (AllToAll)")
def shard_dim(call: Call, x: Value, gather_dim: int, shard_dim: int, group: Any) -> Value:
    to, dims = call.to, call.mesh_dims(group)
    gather_dim, shard_dim = dimension(call, gather_dim, x.ndim), dimension(call, shard_dim, x.ndim)
    count = prod(to.mesh.shape[dim] for dim in dims)
    if x.shape[shard_dim] % count:
        raise call.error(f"dimension {shard_dim}, {x.shape[shard_dim]}, has no {count} equal parts")
    parts = (*x.shape[:shard_dim], count, x.shape[shard_dim] // count, *x.shape[shard_dim + 1 :])
    order = [shard_dim, *(it for it in range(len(parts)) if it != shard_dim)]
    received = exchanged(call, to.permute(to.reshape(x, parts), order), dims)
    # The axis of the senders goes before the gathered one.
    back = list(range(1, x.ndim + 1))
    back.insert(gather_dim, 0)
    return to.reshape(to.permute(received, back), call.shape)


@collective("_c10d_functional.broadcast.default", counterpart="`Set` and `select` (Broadcast)")
def broadcast(call: Call, x: Value, source: int, group: Any) -> Value:
    to, dims = call.to, call.mesh_dims(group)
    if not dims:
        return x
    if len(dims) != 1:
        raise DifferentRanks("hir has no broadcast along several dimensions of a mesh", call.node)
    x, dim = to.shard(x, dims), dims[0]
    complete = whole_on_each(call, x, dims)
    axes = to.axes(x.shape, x.sharded)
    chosen = to.declare(x.dtype, [it for d, it in enumerate(axes) if d != dim])
    to.add("select", chosen, complete, axis=dim, index=source)
    result = to.value(x.dtype, x.shape, [it and d != dim for d, it in enumerate(x.sharded)])
    return to.broadcast(chosen, result, dims)
