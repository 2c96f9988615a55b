"""Collectives along one axis of the tensors, in the form that passes overlap: the axis is split over the devices."""

from __future__ import annotations

from .._builder import Axis, Value
from ._registry import Call, operator


def gathered_along(call: Call, x: Value, dim: int) -> Value:
    """Concatenates the values of the ranks along the last dimension of the mesh."""
    to, first = call.to, call.to.mesh.ndim
    last = first - 1
    count, part = to.mesh.shape[last], x.shape[dim]
    outer = [to.mesh_axis(d, it) for d, it in enumerate(x.sharded[:-1])]
    local = [to.local_axis(extent, first + d) for d, extent in enumerate(x.shape)]
    before, after = local[:dim], local[dim + 1 :]
    device, inner = to.mesh_axis(last, True), Axis("i", "S", first + dim, part)
    axes = [*outer, *before, device, inner, *after]
    name = x.name
    if dim > 0:
        # The device axis goes to the axis that it splits.
        name = to.add("Set.Permute", to.declare(x.dtype, axes), x)
    whole = Axis("i", "S", first + x.ndim, count * part)
    split = to.add("reshape", to.declare(x.dtype, axes, (last + dim, whole)), name)
    # The axis of the mesh comes first, so that the result is what is received and no copy of it.
    device = to.mesh_axis(last, True, first + x.ndim + 1)
    single = to.mesh_axis(last, False)
    added = to.declare(x.dtype, [*outer, single, *before, device, inner, *after], (first + dim, whole))
    to.add("broadcast", added, split, flags=[it == last for it in range(first + x.ndim)])
    shape = (*x.shape[:dim], count * part, *x.shape[dim + 1 :])
    return to.add("Set", to.value(x.dtype, shape, [*x.sharded[:-1], False]), added)


def reduce_scattered_along(call: Call, x: Value, dim: int) -> Value:
    """Sums over the ranks along the last dimension of the mesh; each of them gets its part of an axis."""
    to, first = call.to, call.to.mesh.ndim
    last = first - 1
    count = to.mesh.shape[last]
    part = x.shape[dim] // count
    outer = [to.mesh_axis(d, it) for d, it in enumerate(x.sharded[:-1])]
    # Numbers ascend in the order of the split axes, as Set.Permute needs them.
    local = [to.local_axis(extent, first + d + (d > dim)) for d, extent in enumerate(x.shape)]
    before, after = local[:dim], local[dim + 1 :]
    summed, whole = Axis("r", "S", last, count), Axis("i", "S", first + x.ndim + 1, x.shape[dim])
    device, inner = to.mesh_axis(last, True, first + dim), Axis("i", "S", first + dim + 1, part)
    split = to.declare(x.dtype, [*outer, summed, *before, device, inner, *after], (first + dim, whole))
    to.reduction(split, x, "add", ("float", "0"))
    shape = (*x.shape[:dim], part, *x.shape[dim + 1 :])
    if dim == 0:
        return to.add("reshape", to.value(x.dtype, shape, x.sharded), split)
    parts = to.add("reshape", to.declare(x.dtype, [*outer, *before, device, inner, *after]), split)
    return to.add("Set.Permute", to.value(x.dtype, shape, x.sharded, [*outer, device, *before, inner, *after]), parts)


@operator("hir.matmul_of_rows", counterpart="`matmul` with an axis of extent 1 in the weight")
def matmul_of_rows(call: Call, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """``view(mm(view(x), weight))`` without the views, which merge all axes of x but the last one."""
    to = call.to
    product = to.matmul(x, to.with_ndim(weight, x.ndim))
    return product if bias is None else to.elementwise("+", [product, bias], call.dtype)
