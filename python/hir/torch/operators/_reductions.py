"""Reductions, norms and softmax."""

from __future__ import annotations

import math
from math import prod
from typing import Any

from .._builder import Scalar, Value, constant, is_float
from .._graph import DType
from .._numbers import limits, wide_type
from ._elementwise import apply, compare
from ._registry import Call, dimension, operator


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
    wide = wide_type(call.dtype)
    positions = dims_of(call, x, dims)
    total = call.to.sum(call.to.convert(x, wide), positions, keepdim)
    count = prod(x.shape[it] for it in positions)
    return call.to.convert(apply(call, "/", [total, float(count)], wide), call.dtype)


def extreme(dtype: str, lowest: bool) -> Scalar:
    """The neutral element of a maximum or a minimum."""
    if is_float(dtype):
        return constant(float("-inf" if lowest else "inf"), dtype)
    ends = limits(dtype)
    return (not lowest) if ends is None else ends[not lowest]


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
    if x.ndim == 0:
        return x, call.to.full((), 0, "int64")
    op = "max" if largest else "min"
    best = call.to.reduce(x, op, extreme(x.dtype, largest), [dim], True)
    hit = call.to.elementwise("==", [x, best], "bool")
    if is_float(x.dtype):
        # NaN is larger and smaller than all numbers.
        hit = call.to.elementwise("||", [hit, call.to.elementwise("isnan", [x], "bool")], "bool")
    index = along(call, dim, x.ndim, x.shape[dim])
    none = call.to.full((), x.shape[dim], "int64")
    index = call.to.elementwise("where", [hit, index, none], "int64")
    first = call.to.reduce(index, "min", extreme("int64", False), [dim], keepdim)
    return (best if keepdim else call.to.squeeze(best, [dim])), first


@operator("aten.argmax.default", "aten.argmin.default", counterpart="that of `max.dim`")
def arg_extreme(call: Call, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    if dim is None:
        x, dim = call.to.reshape(x, (prod(x.shape),)), 0
    largest = "max" in call.node.target
    return best_and_index(call, x, dimension(call, dim, x.ndim), keepdim, largest)[1]


def along(call: Call, dim: int, ndim: int, extent: int, start: int = 0, step: int = 1) -> Value:
    """The indices of an axis, or another progression, with axes of extent 1 beside it."""
    index = call.to.iota(extent, start, step)
    return call.to.insert_axes(index, [it for it in range(ndim) if it != dim]) if ndim > 1 else index


def _quantifier(name: str, op: str, neutral: bool) -> None:
    @operator(*(f"aten.{name}.{it}" for it in ("default", "dim", "dims")), counterpart=f"`reduction` with `{op}`")
    def rule(call: Call, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
        found = call.to.reduce(call.to.convert(x, "bool"), op, neutral, dims_of(call, x, dims), keepdim)
        return call.to.convert(found, call.dtype)


_quantifier("all", "bitwise_and", True)
_quantifier("any", "bitwise_or", False)


@operator("aten.cumsum.default", "aten.cumprod.default", counterpart="`scan`")
def scan(call: Call, x: Value, dim: int, *, dtype: DType | None = None) -> Value:
    if x.ndim == 0:
        return call.to.convert(x, call.dtype)
    wide = wide_type(call.dtype)
    x = call.to.convert(x, wide)
    op = "mul" if "cumprod" in call.node.target else "add"
    result = call.to.add("scan", call.to.like(x), x, dim=call.to.mesh.ndim + dimension(call, dim, x.ndim), op=op)
    return call.to.convert(result, call.dtype)


@operator("aten.prod.default", "aten.prod.dim_int", counterpart="`reduction` with `mul`")
def prod_(call: Call, x: Value, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None) -> Value:
    wide = wide_type(call.dtype)
    total = call.to.reduce(call.to.convert(x, wide), "mul", constant(1, wide), dims_of(call, x, dim), keepdim)
    return call.to.convert(total, call.dtype)


@operator("aten.linalg_vector_norm.default", counterpart="`reduction` of powers, and the root of it; with `max` or `min`")
def vector_norm(call: Call, x: Value, ord: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
    wide = wide_type(call.dtype)
    x, dims = call.to.convert(x, wide), dims_of(call, x, dim)
    if ord == 0:
        return call.to.convert(call.to.sum(call.to.convert(compare(call, "!=", [x, 0], wide), wide), dims, keepdim), call.dtype)
    size = apply(call, "abs", [x], wide)
    if math.isinf(ord):
        best = call.to.reduce(size, "max" if ord > 0 else "min", extreme(wide, ord > 0), dims, keepdim)
        return call.to.convert(best, call.dtype)
    powers = size if ord == 1 else apply(call, "*", [x, x], wide) if ord == 2 else apply(call, "pow", [size, float(ord)], wide)
    total = call.to.sum(powers, dims, keepdim)
    if ord == 2:
        total = apply(call, "sqrt", [total], wide)
    elif ord != 1:
        total = apply(call, "pow", [total, 1 / ord], wide)
    return call.to.convert(total, call.dtype)


def moments(call: Call, x: Value, dims: Any, correction: float | None, keepdim: bool) -> tuple[Value, Value]:
    """The variance and the mean, in the type of the sums."""
    wide = wide_type(x.dtype)
    x, positions = call.to.convert(x, wide), dims_of(call, x, dims)
    count = prod(x.shape[it] for it in positions)
    average = apply(call, "/", [call.to.sum(x, positions, True), float(count)], wide)
    centered = apply(call, "-", [x, average], wide)
    squares = call.to.sum(apply(call, "*", [centered, centered], wide), positions, keepdim)
    divisor = float(max(0, count - (1 if correction is None else correction)))
    variance = apply(call, "/", [squares, divisor], wide)
    return variance, (average if keepdim else call.to.squeeze(average, positions))


@operator("aten.var.correction", counterpart="`reduction` of the squares of the differences from the mean")
def var(call: Call, x: Value, dims: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Value:
    return call.to.convert(moments(call, x, dims, correction, keepdim)[0], call.dtype)


@operator("aten.var_mean.correction", counterpart="that of `var`, and the mean")
def var_mean(
    call: Call, x: Value, dims: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    variance, average = moments(call, x, dims, correction, keepdim)
    return call.to.convert(variance, x.dtype), call.to.convert(average, x.dtype)


@operator("aten.native_layer_norm.default", counterpart="`reduction` for mean and variance, `rsqrt`, and products")
def layer_norm(
    call: Call, x: Value, normalized: tuple[int, ...], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    normal, average, scale = normalized_by(call, x, tuple(range(x.ndim - len(normalized), x.ndim)), eps)
    return in_types_of(call, scaled_and_shifted(call, normal, weight, bias), average, scale)


def normalized_by(call: Call, x: Value, dims: tuple[int, ...], eps: float) -> tuple[Value, Value, Value]:
    """Elements with mean 0 and variance 1 along dimensions, the mean, and the factor, in the type of the sums."""
    wide = wide_type(x.dtype)
    x = call.to.convert(x, wide)
    variance, average = moments(call, x, dims, 0, True)
    scale = apply(call, "rsqrt", [apply(call, "+", [variance, eps], wide)], wide)
    return apply(call, "*", [apply(call, "-", [x, average], wide), scale], wide), average, scale


def scaled_and_shifted(call: Call, x: Value, weight: Value | None, bias: Value | None) -> Value:
    x = x if weight is None else apply(call, "*", [x, weight], x.dtype)
    return x if bias is None else apply(call, "+", [x, bias], x.dtype)


def in_types_of(call: Call, *results: Value) -> tuple[Value, Value, Value]:
    """Results in the types of the call. On the CPU, PyTorch keeps the statistics in the type of the input, if those of the weights are the same."""
    first, second, third = (call.to.convert(it, expected.dtype) for it, expected in zip(results, call.types))
    return first, second, third


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
    wide = wide_type(dtype)
    grad, x, mean, rstd = (call.to.convert(it, wide) for it in (grad, x, mean, rstd))
    outer, dims = list(range(x.ndim - len(normalized))), list(range(x.ndim - len(normalized), x.ndim))
    normal = apply(call, "*", [apply(call, "-", [x, mean], wide), rstd], wide)
    results: list[Value | None] = [None, None, None]
    if wanted[0]:
        inner = grad if weight is None else apply(call, "*", [grad, weight], wide)
        count = float(prod(normalized))
        first = apply(call, "/", [call.to.sum(inner, dims, True), count], wide)
        product = call.to.sum(apply(call, "*", [inner, normal], wide), dims, True)
        second = apply(call, "*", [normal, apply(call, "/", [product, count], wide)], wide)
        rest = apply(call, "-", [apply(call, "-", [inner, first], wide), second], wide)
        results[0] = call.to.convert(apply(call, "*", [rest, rstd], wide), dtype)
    if wanted[1]:
        results[1] = call.to.convert(call.to.sum(apply(call, "*", [grad, normal], wide), outer), dtype)
    if wanted[2]:
        results[2] = call.to.convert(call.to.sum(grad, outer), dtype)
    return results[0], results[1], results[2]


@operator("aten.native_group_norm.default", counterpart="that of `native_layer_norm`, for each group")
def group_norm(
    call: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: int,
    channels: int,
    places: int,
    groups: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    to = call.to
    normal, average, scale = normalized_by(call, to.reshape(x, (batch, groups, channels // groups * places)), (2,), eps)
    factors = (None if it is None else to.insert_axes(it, [1]) for it in (weight, bias))
    result = scaled_and_shifted(call, to.reshape(normal, (batch, channels, places)), *factors)
    return in_types_of(call, to.reshape(result, x.shape), to.squeeze(average, [2]), to.squeeze(scale, [2]))


def softmax_parts(call: Call, x: Value, dim: int) -> tuple[Value, Value, Value]:
    """Differences to the maximum, their exponentials, and the sums of these. A tensor without dimensions is a row."""
    dim, x = dimension(call, dim, x.ndim), call.to.with_ndim(x, 1)
    best = call.to.reduce(x, "max", extreme(x.dtype, True), [dim], True)
    shifted = apply(call, "-", [x, best], x.dtype)
    powers = apply(call, "exp", [shifted], x.dtype)
    return shifted, powers, call.to.sum(powers, [dim], True)


def of_call(call: Call, result: Value) -> Value:
    """A result in the type and the shape of the call."""
    return call.to.reshape(call.to.convert(result, call.dtype), call.shape)


@operator("aten._softmax.default", counterpart="`reduction` with `max`, `exp`, `reduction` with `add`, `/`")
def softmax(call: Call, x: Value, dim: int, half_to_float: bool) -> Value:
    wide = wide_type(x.dtype)
    _, powers, total = softmax_parts(call, call.to.convert(x, wide), dim)
    return of_call(call, apply(call, "/", [powers, total], wide))


@operator("aten._log_softmax.default", counterpart="`reduction` with `max`, `exp`, `reduction` with `add`, `log`")
def log_softmax(call: Call, x: Value, dim: int, half_to_float: bool) -> Value:
    wide = wide_type(x.dtype)
    shifted, _, total = softmax_parts(call, call.to.convert(x, wide), dim)
    return of_call(call, apply(call, "-", [shifted, apply(call, "log", [total], wide)], wide))


@operator("aten._softmax_backward_data.default", counterpart="`y * (grad - sum(grad * y))`")
def softmax_backward(call: Call, grad: Value, y: Value, dim: int, dtype: DType) -> Value:
    wide = wide_type(y.dtype)
    grad, y = (call.to.with_ndim(call.to.convert(it, wide), 1) for it in (grad, y))
    total = call.to.sum(apply(call, "*", [grad, y], wide), [dimension(call, dim, y.ndim)], True)
    return of_call(call, apply(call, "*", [y, apply(call, "-", [grad, total], wide)], wide))


@operator("aten._log_softmax_backward_data.default", counterpart="`grad - exp(y) * sum(grad)`")
def log_softmax_backward(call: Call, grad: Value, y: Value, dim: int, dtype: DType) -> Value:
    wide = wide_type(y.dtype)
    grad, y = (call.to.with_ndim(call.to.convert(it, wide), 1) for it in (grad, y))
    total = call.to.sum(grad, [dimension(call, dim, y.ndim)], True)
    product = apply(call, "*", [apply(call, "exp", [y], wide), total], wide)
    return of_call(call, apply(call, "-", [grad, product], wide))
