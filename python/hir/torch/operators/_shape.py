"""Views, copies and generators."""

from __future__ import annotations

from math import prod
from typing import Any

from .._builder import Value, is_float
from ._complex import PARTS, complex_copy
from ._elementwise import apply
from ._indexing import from_start, gathered, scattered
from ._reductions import along
from ._registry import Call, dimension, operator

INT_MAX = 2**63 - 1


@operator(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten.flatten.using_ints",
    "aten.view_copy.default",
    counterpart="`reshape`; none if the shape stays",
)
def view(call: Call, x: Value, *_: Any) -> Value:
    return call.to.reshape(x, call.shape)


@operator(
    "aten.detach.default",
    "aten.clone.default",
    "aten.alias.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
    "_c10d_functional.wait_tensor.default",
    counterpart="none: another name of its operand",
)
def alias(call: Call, x: Value, **_: Any) -> Value:
    return x


@operator("_c10d_functional.wait_tensors.default", "hir.tuple", counterpart="none: other names of its operands")
def aliases(call: Call, xs: tuple[Value, ...]) -> tuple[Value, ...]:
    return xs


@operator(
    "aten._to_copy.default",
    "aten.to.dtype",
    "prims.convert_element_type.default",
    counterpart="a conversion, `__float2bfloat(x)`",
)
def to_copy(call: Call, x: Any, *_: Any, **__: Any) -> Value:
    if not isinstance(x, Value):
        return call.to.full((), x, call.dtype)
    if call.dtype in PARTS or x.dtype in PARTS:
        return complex_copy(call, x)
    return call.to.convert(x, call.dtype)


@operator("aten.copy.default", counterpart="a conversion and `expand`")
def copy(call: Call, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return call.to.expand(call.to.convert(source, x.dtype), x.shape)


@operator("aten.t.default", counterpart="`Set.Permute`")
def t(call: Call, x: Value) -> Value:
    return call.to.permute(x, list(reversed(range(x.ndim))))


@operator("aten.transpose.int", counterpart="`Set.Permute`")
def transpose(call: Call, x: Value, a: int, b: int) -> Value:
    order = list(range(x.ndim))
    a, b = dimension(call, a, x.ndim), dimension(call, b, x.ndim)
    order[a], order[b] = order[b], order[a]
    return call.to.permute(x, order)


@operator("aten.permute.default", counterpart="`Set.Permute`")
def permute(call: Call, x: Value, dims: tuple[int, ...]) -> Value:
    return call.to.permute(x, [dimension(call, it, x.ndim) for it in dims])


@operator("aten.expand.default", counterpart="`broadcast` and `expand`")
def expand(call: Call, x: Value, *_: Any, **__: Any) -> Value:
    return call.to.expand(x, call.shape)


@operator("aten.unsqueeze.default", counterpart="`broadcast`")
def unsqueeze(call: Call, x: Value, dim: int) -> Value:
    return call.to.insert_axes(x, [dimension(call, dim, x.ndim + 1)])


@operator("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default", counterpart="`squeeze`")
def squeeze(call: Call, x: Value, dims: Any = None) -> Value:
    dims = range(x.ndim) if dims is None else dims if isinstance(dims, tuple) else (dims,)
    positions = {dimension(call, it, x.ndim) for it in dims} if x.ndim else set()
    return call.to.squeeze(x, [it for it in sorted(positions) if x.shape[it] == 1])


@operator("aten.split.Tensor", "aten.split_with_sizes.default", counterpart="`slice` for each part")
def split(call: Call, x: Value, sizes: Any, dim: int = 0) -> tuple[Value, ...]:
    dim = dimension(call, dim, x.ndim)
    if isinstance(sizes, int):
        sizes = [min(sizes, x.shape[dim] - start) for start in range(0, x.shape[dim], max(sizes, 1))]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(call.to.slice(x, dim, start, start + size) for start, size in zip(starts, sizes))


@operator("aten.slice.Tensor", counterpart="`slice`")
def slice_(call: Call, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Value:
    dim = dimension(call, dim, x.ndim)
    start, end, step = slice(start, None if end in (None, INT_MAX) else end, step).indices(x.shape[dim])
    return call.to.slice(x, dim, start, max(start, end), step)


@operator("aten.diagonal.default", counterpart="`reshape` and `slice`")
def diagonal(call: Call, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    dims = [dimension(call, it, x.ndim) for it in (dim1, dim2)]
    rest = [it for it in range(x.ndim) if it not in dims]
    count, columns = call.shape[-1], x.shape[dims[1]]
    flat = call.to.permute(x, [*rest, *dims])
    flat = call.to.reshape(flat, (*(x.shape[it] for it in rest), x.shape[dims[0]] * columns))
    start = offset if offset >= 0 else -offset * columns
    end = start + max(0, count - 1) * (columns + 1) + min(count, 1)
    return call.to.slice(flat, len(rest), start, end, columns + 1)


@operator("aten.unfold.default", counterpart="`slice` and `cat`")
def unfold(call: Call, x: Value, dim: int, size: int, step: int) -> Value:
    if x.ndim == 0:
        return call.to.reshape(x, call.shape)
    dim = dimension(call, dim, x.ndim)
    count = call.shape[dim]
    parts = [call.to.slice(x, dim, start, start + (count - 1) * step + 1, step) for start in range(size)]
    return call.to.cat([call.to.insert_axes(it, [x.ndim]) for it in parts], x.ndim)


@operator("aten.repeat.default", counterpart="`broadcast`, `expand` and `reshape`")
def repeat(call: Call, x: Value, counts: tuple[int, ...]) -> Value:
    x = call.to.with_ndim(x, len(counts))
    shape = [it for pair in zip(counts, x.shape) for it in pair]
    pairs = call.to.insert_axes(x, range(0, 2 * x.ndim, 2))
    return call.to.reshape(call.to.expand(pairs, shape), call.shape)


@operator("aten.roll.default", counterpart="`slice` and `cat`")
def roll(call: Call, x: Value, shifts: tuple[int, ...], dims: tuple[int, ...] = ()) -> Value:
    if not dims:
        [shift] = shifts
        flat = rolled(call, call.to.reshape(x, (prod(x.shape),)), shift, 0)
        return call.to.reshape(flat, x.shape)
    for shift, dim in zip(shifts, dims):
        x = rolled(call, x, shift, dimension(call, dim, x.ndim))
    return x


def rolled(call: Call, x: Value, shift: int, dim: int) -> Value:
    extent = x.shape[dim]
    shift = shift % extent if extent else 0
    if shift == 0:
        return x
    return call.to.cat([call.to.slice(x, dim, extent - shift, extent), call.to.slice(x, dim, 0, extent - shift)], dim)


@operator("aten.slice_scatter.default", counterpart="`slice` and `cat`; `scatter` with a step")
def slice_scatter(
    call: Call, x: Value, source: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    dim = dimension(call, dim, x.ndim)
    start, end, step = slice(start, None if end in (None, INT_MAX) else end, step).indices(x.shape[dim])
    source = call.to.expand(call.to.convert(source, x.dtype), (*x.shape[:dim], source.shape[dim], *x.shape[dim + 1 :]))
    if step != 1:
        return scattered(call, x, dim, along(call, dim, x.ndim, source.shape[dim], start, step), source, False)
    ends = [call.to.slice(x, dim, 0, start), source, call.to.slice(x, dim, max(start, end), x.shape[dim])]
    return call.to.cat([it for it in ends if it.shape[dim] > 0] or [x], dim)


@operator("aten.select_scatter.default", counterpart="that of `slice_scatter`")
def select_scatter(call: Call, x: Value, source: Value, dim: int, index: int) -> Value:
    dim = dimension(call, dim, x.ndim)
    index %= x.shape[dim]
    return slice_scatter(call, x, call.to.insert_axes(source, [dim]), dim, index, index + 1)


@operator("aten.select.int", counterpart="`select`; `takeAlongAxis` if the index is a value of a tensor")
def select(call: Call, x: Value, dim: int, index: int | Value) -> Value:
    dim = dimension(call, dim, x.ndim)
    if isinstance(index, Value):
        place = call.to.insert_axes(from_start(call, index, x.shape[dim]), range(x.ndim))
        return call.to.squeeze(gathered(call, x, dim, place), [dim])
    return call.to.select(x, dim, index % x.shape[dim])


@operator("aten.unbind.int", counterpart="`select` for each part")
def unbind(call: Call, x: Value, dim: int = 0) -> tuple[Value, ...]:
    dim = dimension(call, dim, x.ndim)
    return tuple(call.to.select(x, dim, index) for index in range(x.shape[dim]))


@operator("aten.cat.default", counterpart="`cat`")
def cat(call: Call, values: tuple[Value, ...], dim: int = 0) -> Value:
    # PyTorch accepts empty vectors among tensors of any shape.
    parts = [call.to.convert(it, call.dtype) for it in values if it.shape != (0,) or it.shape == call.shape]
    return call.to.cat(parts, dimension(call, dim, parts[0].ndim))


@operator("aten.stack.default", counterpart="`broadcast` for each part, then `cat`")
def stack(call: Call, values: tuple[Value, ...], dim: int = 0) -> Value:
    dim = dimension(call, dim, values[0].ndim + 1)
    return call.to.cat([call.to.insert_axes(call.to.convert(it, call.dtype), [dim]) for it in values], dim)


@operator("aten.constant_pad_nd.default", counterpart="`cat` with `full`")
def constant_pad(call: Call, x: Value, widths: tuple[int, ...], fill: float = 0) -> Value:
    for i in range(len(widths) // 2):
        x = padded(call, x, x.ndim - 1 - i, widths[2 * i], widths[2 * i + 1], fill)
    return x


def padded(call: Call, x: Value, dim: int, before: int, after: int, fill: float = 0) -> Value:
    """Adds constant elements at the ends of an axis, or removes elements where a width is negative."""
    x = call.to.slice(x, dim, max(0, -before), x.shape[dim] - max(0, -after))
    widths = [(*x.shape[:dim], it, *x.shape[dim + 1 :]) for it in (before, after)]
    ends = [call.to.full(shape, fill, x.dtype) if shape[dim] > 0 else None for shape in widths]
    return call.to.cat([it for it in (ends[0], x, ends[1]) if it is not None], dim)


@operator("aten.slice_backward.default", counterpart="`cat` with `full`")
def slice_backward(call: Call, grad: Value, sizes: tuple[int, ...], dim: int, start: int, end: int, step: int) -> Value:
    dim = dimension(call, dim, len(sizes))
    start, end, step = slice(start, end, step).indices(sizes[dim])
    if step != 1:
        zeros = call.to.full(sizes, 0, grad.dtype)
        return scattered(call, zeros, dim, along(call, dim, len(sizes), grad.shape[dim], start, step), grad, False)
    return padded(call, grad, dim, start, sizes[dim] - start - grad.shape[dim])


@operator("aten.select_backward.default", counterpart="`broadcast`, `cat` with `full`")
def select_backward(call: Call, grad: Value, sizes: tuple[int, ...], dim: int, index: int) -> Value:
    dim = dimension(call, dim, len(sizes))
    index %= sizes[dim]
    return padded(call, call.to.insert_axes(grad, [dim]), dim, index, sizes[dim] - index - 1)


@operator(
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.empty_strided.default",
    "aten.new_empty_strided.default",
    counterpart="`full` with 0",
)
def zeros(call: Call, *_: Any, **__: Any) -> Value:
    return call.to.full(call.shape, 0, call.dtype)


@operator("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default", counterpart="`full` with 1")
def ones(call: Call, *_: Any, **__: Any) -> Value:
    return call.to.full(call.shape, 1, call.dtype)


@operator("aten.full.default", "aten.full_like.default", "aten.new_full.default", counterpart="`full`")
def full(call: Call, *sizes_and_fill: Any, **__: Any) -> Value:
    return call.to.full(call.shape, sizes_and_fill[-1], call.dtype)


@operator("aten.scalar_tensor.default", counterpart="`full`; a conversion of a value that the host reads")
def scalar_tensor(call: Call, fill: Any, **_: Any) -> Value:
    if isinstance(fill, Value):
        return call.to.convert(fill, call.dtype)
    return call.to.full((), fill, call.dtype)


@operator("aten.fill.Scalar", "aten.fill.Tensor", counterpart="`full`; a conversion and `expand`")
def fill(call: Call, x: Value, value: Any) -> Value:
    if isinstance(value, Value):
        return call.to.expand(call.to.convert(value, call.dtype), x.shape)
    return call.to.full(x.shape, value, call.dtype)


@operator("aten.arange.default", "aten.arange.start", "aten.arange.start_step", "prims.iota.default", counterpart="`iota`")
def arange(call: Call, *limits: Any, **named: Any) -> Value:
    start = named.get("start", limits[0] if len(limits) > 1 else 0)
    step = named.get("step", limits[2] if len(limits) > 2 else 1)
    if not is_float(call.dtype):
        # PyTorch computes in the type of the result: a step of 0.5 is 0.
        start, step = int(start), int(step)
    if not isinstance(start, int) or not isinstance(step, int):
        steps = apply(call, "*", [call.to.convert(call.to.iota(call.shape[0]), "float64"), float(step)], "float64")
        return call.to.convert(apply(call, "+", [steps, float(start)], "float64"), call.dtype)
    return call.to.convert(call.to.iota(call.shape[0], start, step), call.dtype)


@operator("aten.triu.default", "aten.tril.default", counterpart="`where` with a comparison of two `iota`")
def triangle(call: Call, x: Value, diagonal: int = 0) -> Value:
    rows = call.to.insert_axes(call.to.iota(x.shape[-2], diagonal), [1])
    columns = call.to.iota(x.shape[-1])
    comparison = ">=" if "triu" in call.node.target else "<="
    kept = call.to.elementwise(comparison, [columns, rows], "bool")
    zero = call.to.full((), 0, x.dtype)
    return call.to.elementwise("where", [kept, x, zero], x.dtype)
