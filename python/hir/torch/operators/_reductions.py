"""Reductions, norms and softmax."""

from __future__ import annotations

from math import prod
from typing import Any

from .._builder import Value, constant, is_float
from .._graph import DType
from ._elementwise import apply
from ._registry import Call, dimension, operator

HALVES = ("bfloat16", "float16")


def dims_of(call: Call, x: Value, dims: Any) -> list[int]:
    """The reduced dimensions; none or an empty list means all."""
    if dims is None or dims == ():
        return list(range(x.ndim))
    return sorted({dimension(call, it, x.ndim) for it in (dims if isinstance(dims, tuple) else (dims,))}) if x.ndim else []


@operator("aten.sum.default", "aten.sum.dim_IntList", counterpart="`reduction` with `add`")
def sum_(call: Call, x: Value, dims: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Value:
    return call.to.sum(call.to.convert(x, call.dtype), dims_of(call, x, dims), keepdim)


@operator("aten.mean.default", "aten.mean.dim", counterpart="`reduction` with `add`, then `/`")
def mean(call: Call, x: Value, dims: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Value:
    wide = "float32" if call.dtype in HALVES else call.dtype
    positions = dims_of(call, x, dims)
    total = call.to.sum(call.to.convert(x, wide), positions, keepdim)
    count = prod(x.shape[it] for it in positions)
    return call.to.convert(apply(call, "{} / {}", [total, float(count)], wide), call.dtype)


def extreme(dtype: str, lowest: bool) -> str:
    """The neutral element of a maximum or a minimum."""
    if is_float(dtype):
        return constant(float("-inf" if lowest else "inf"), dtype)
    if dtype == "bool":
        return "false" if lowest else "true"
    bits = int("".join(filter(str.isdigit, dtype)))
    if dtype.startswith("u"):
        return str(0 if lowest else 2**bits - 1)
    return str(-(2 ** (bits - 1)) if lowest else 2 ** (bits - 1) - 1)


@operator("aten.amax.default", "aten.max.default", counterpart="`reduction` with `max`")
def amax(call: Call, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    return call.to.reduce(x, "max", extreme(x.dtype, True), dims_of(call, x, dims), keepdim)


@operator("aten.amin.default", "aten.min.default", counterpart="`reduction` with `min`")
def amin(call: Call, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    return call.to.reduce(x, "min", extreme(x.dtype, False), dims_of(call, x, dims), keepdim)


@operator("aten.max.dim", "aten.min.dim", counterpart="`reduction` with `max`, and that of the first index that has it")
def max_dim(call: Call, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return best_and_index(call, x, dimension(call, dim, x.ndim), keepdim, "max" in call.node.target)


def best_and_index(call: Call, x: Value, dim: int, keepdim: bool, largest: bool) -> tuple[Value, Value]:
    """The largest or smallest elements along an axis, and the first index of each."""
    op = "max" if largest else "min"
    best = call.to.reduce(x, op, extreme(x.dtype, largest), [dim], True)
    hit = call.to.elementwise("{} == {}", [x, best], "bool")
    index = along(call, dim, x.ndim, x.shape[dim])
    none = call.to.full((), x.shape[dim], "int64")
    index = call.to.elementwise("where({}, {}, {})", [hit, index, none], "int64")
    first = call.to.reduce(index, "min", extreme("int64", False), [dim], keepdim)
    return (best if keepdim else call.to.squeeze(best, [dim])), first


@operator("aten.argmax.default", "aten.argmin.default", counterpart="that of `max.dim`")
def arg_extreme(call: Call, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    if dim is None:
        x, dim = call.to.reshape(x, (prod(x.shape),)), 0
    largest = "max" in call.node.target
    return best_and_index(call, x, dimension(call, dim, x.ndim), keepdim, largest)[1]


def along(call: Call, dim: int, ndim: int, extent: int) -> Value:
    """The indices of an axis, with axes of extent 1 beside it."""
    index = call.to.iota(extent)
    return call.to.insert_axes(index, [it for it in range(ndim) if it != dim]) if ndim > 1 else index


@operator("aten.all.default", "aten.all.dim", counterpart="`reduction` with `bitwise_and`")
def all_(call: Call, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    return call.to.reduce(call.to.convert(x, "bool"), "bitwise_and", "true", dims_of(call, x, dims), keepdim)


@operator("aten.any.default", "aten.any.dim", counterpart="`reduction` with `bitwise_or`")
def any_(call: Call, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    return call.to.reduce(call.to.convert(x, "bool"), "bitwise_or", "false", dims_of(call, x, dims), keepdim)


@operator("aten.cumsum.default", counterpart="`reduction` of the elements up to each index, by `iota` and `where`")
def cumsum(call: Call, x: Value, dim: int, *, dtype: DType | None = None) -> Value:
    dim = dimension(call, dim, x.ndim)
    x = call.to.convert(x, call.dtype)
    # Axis `dim` becomes a pair of axes: the index of the result, and that of the summed element.
    summed = along(call, dim + 1, x.ndim + 1, x.shape[dim])
    result = along(call, dim, x.ndim + 1, x.shape[dim])
    within = call.to.elementwise("{} <= {}", [summed, result], "bool")
    wide = call.to.insert_axes(x, [dim])
    zero = call.to.full((), 0, x.dtype)
    masked = call.to.elementwise("where({}, {}, {})", [within, wide, zero], x.dtype)
    return call.to.sum(masked, [dim + 1])


@operator("aten.native_layer_norm.default", counterpart="`reduction` for mean and variance, `rsqrt`, and products")
def layer_norm(
    call: Call, x: Value, normalized: tuple[int, ...], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    dtype = x.dtype
    wide = "float32" if dtype in HALVES else dtype
    x = call.to.convert(x, wide)
    dims = list(range(x.ndim - len(normalized), x.ndim))
    count = float(prod(normalized))
    average = apply(call, "{} / {}", [call.to.sum(x, dims, True), count], wide)
    centered = apply(call, "{} - {}", [x, average], wide)
    variance = call.to.sum(apply(call, "{} * {}", [centered, centered], wide), dims, True)
    shifted = apply(call, "{} + {}", [apply(call, "{} / {}", [variance, count], wide), eps], wide)
    scale = apply(call, "rsqrt({})", [shifted], wide)
    result = apply(call, "{} * {}", [centered, scale], wide)
    if weight is not None:
        result = apply(call, "{} * {}", [result, weight], wide)
    if bias is not None:
        result = apply(call, "{} + {}", [result, bias], wide)
    return call.to.convert(result, dtype), average, scale


@operator("aten.native_layer_norm_backward.default", counterpart="`reduction` and products")
def layer_norm_backward(
    call: Call,
    grad: Value,
    x: Value,
    normalized: tuple[int, ...],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    wanted: tuple[bool, bool, bool],
) -> tuple[Value | None, Value | None, Value | None]:
    dtype = x.dtype
    wide = "float32" if dtype in HALVES else dtype
    grad, x = call.to.convert(grad, wide), call.to.convert(x, wide)
    outer, dims = list(range(x.ndim - len(normalized))), list(range(x.ndim - len(normalized), x.ndim))
    normal = apply(call, "{} * {}", [apply(call, "{} - {}", [x, mean], wide), rstd], wide)
    results: list[Value | None] = [None, None, None]
    if wanted[0]:
        inner = grad if weight is None else apply(call, "{} * {}", [grad, weight], wide)
        count = float(prod(normalized))
        first = apply(call, "{} / {}", [call.to.sum(inner, dims, True), count], wide)
        product = call.to.sum(apply(call, "{} * {}", [inner, normal], wide), dims, True)
        second = apply(call, "{} * {}", [normal, apply(call, "{} / {}", [product, count], wide)], wide)
        rest = apply(call, "{} - {}", [apply(call, "{} - {}", [inner, first], wide), second], wide)
        results[0] = call.to.convert(apply(call, "{} * {}", [rest, rstd], wide), dtype)
    if wanted[1]:
        results[1] = call.to.convert(call.to.sum(apply(call, "{} * {}", [grad, normal], wide), outer), dtype)
    if wanted[2]:
        results[2] = call.to.convert(call.to.sum(grad, outer), dtype)
    return results[0], results[1], results[2]


def softmax_parts(call: Call, x: Value, dim: int) -> tuple[Value, Value, Value]:
    """Differences to the maximum, their exponentials, and the sums of these."""
    best = call.to.reduce(x, "max", extreme(x.dtype, True), [dim], True)
    shifted = apply(call, "{} - {}", [x, best], x.dtype)
    powers = apply(call, "exp({})", [shifted], x.dtype)
    return shifted, powers, call.to.sum(powers, [dim], True)


@operator("aten._softmax.default", counterpart="`reduction` with `max`, `exp`, `reduction` with `add`, `/`")
def softmax(call: Call, x: Value, dim: int, half_to_float: bool) -> Value:
    wide = "float32" if x.dtype in HALVES else x.dtype
    _, powers, total = softmax_parts(call, call.to.convert(x, wide), dimension(call, dim, x.ndim))
    return call.to.convert(apply(call, "{} / {}", [powers, total], wide), call.dtype)


@operator("aten._log_softmax.default", counterpart="`reduction` with `max`, `exp`, `reduction` with `add`, `log`")
def log_softmax(call: Call, x: Value, dim: int, half_to_float: bool) -> Value:
    wide = "float32" if x.dtype in HALVES else x.dtype
    shifted, _, total = softmax_parts(call, call.to.convert(x, wide), dimension(call, dim, x.ndim))
    return call.to.convert(apply(call, "{} - {}", [shifted, apply(call, "log({})", [total], wide)], wide), call.dtype)


@operator("aten._softmax_backward_data.default", counterpart="`y * (grad - sum(grad * y))`")
def softmax_backward(call: Call, grad: Value, y: Value, dim: int, dtype: DType) -> Value:
    wide = "float32" if y.dtype in HALVES else y.dtype
    grad, y = call.to.convert(grad, wide), call.to.convert(y, wide)
    total = call.to.sum(apply(call, "{} * {}", [grad, y], wide), [dimension(call, dim, y.ndim)], True)
    return call.to.convert(apply(call, "{} * {}", [y, apply(call, "{} - {}", [grad, total], wide)], wide), call.dtype)


@operator("aten._log_softmax_backward_data.default", counterpart="`grad - exp(y) * sum(grad)`")
def log_softmax_backward(call: Call, grad: Value, y: Value, dim: int, dtype: DType) -> Value:
    wide = "float32" if y.dtype in HALVES else y.dtype
    grad, y = call.to.convert(grad, wide), call.to.convert(y, wide)
    total = call.to.sum(grad, [dimension(call, dim, y.ndim)], True)
    product = apply(call, "{} * {}", [apply(call, "exp({})", [y], wide), total], wide)
    return call.to.convert(apply(call, "{} - {}", [grad, product], wide), call.dtype)
