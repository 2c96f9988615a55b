"""Products of matrices, and attention."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

from .._builder import Axis, Value
from ._elementwise import apply
from ._registry import Call, operator
from ._shape import padded


@operator("aten.mm.default", "aten.bmm.default", counterpart="`matmul`")
def mm(call: Call, a: Value, b: Value) -> Value:
    return call.to.matmul(a, b)


@operator("aten.addmm.default", "aten.baddbmm.default", counterpart="`matmul` and `+`")
def addmm(call: Call, bias: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    product = call.to.matmul(a, b)
    if alpha != 1:
        product = apply(call, "*", [product, alpha])
    # PyTorch does not read what is multiplied with 0.
    if beta == 0:
        return call.to.expand(product, call.shape)
    return apply(call, "+", [product, bias if beta == 1 else apply(call, "*", [bias, beta])])


@operator("aten.linear.default", counterpart="`Set.Permute`, `matmul`, and `+` for the bias")
def linear(call: Call, x: Value, weight: Value, bias: Value | None = None) -> Value:
    rows = call.to.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    product = call.to.reshape(call.to.matmul(rows, call.to.permute(weight, [1, 0])), call.shape)
    return product if bias is None else apply(call, "+", [product, bias])


@operator("aten.dot.default", counterpart="`*` and `reduction`")
def dot(call: Call, a: Value, b: Value) -> Value:
    return call.to.sum(apply(call, "*", [a, b]), [0])


@operator("aten._scaled_dot_product_flash_attention_for_cpu.default", counterpart="`sdpa`")
def attention(
    call: Call,
    q: Value,
    k: Value,
    v: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value]:
    to, optional = call.to, options(call, dropout_p, is_causal, attn_mask, scale)
    q, k, v = to.with_equal_sharding([q, k, v])
    out = to.value(q.dtype, (*q.shape[:-1], v.shape[-1]), q.sharded)
    sums = to.value("float64" if q.dtype == "float64" else "float32", q.shape[:-1], q.sharded)
    state = [to.declare("uint64", axes) for axes in ([Axis("i", "S", 0, 2)], [])]
    to.add("sdpa", [out, sums, *state], q, k, v, **optional)
    return out, sums


def options(call: Call, dropout: float, is_causal: bool, mask: Value | None, scale: float | None) -> dict[str, Any]:
    """The attributes of an attention and of its gradient."""
    if dropout != 0:
        raise call.error("hir imports attention only without dropout")
    optional: dict[str, Any] = {} if scale is None else {"scale": ("double", repr(scale))}
    if mask is not None:
        optional["mask" if mask.dtype == "bool" else "bias"] = mask
    return {"dropout_p": ("double", "0.0"), "is_causal": is_causal, **optional}


@operator("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", counterpart="`sdpa_bwd`")
def attention_backward(
    call: Call,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    sums: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value, Value]:
    to, optional = call.to, options(call, dropout_p, is_causal, attn_mask, scale)
    grad, q, k, v, out, sums = to.with_equal_sharding([grad, q, k, v, out, sums])
    grads = [to.like(q), to.like(k), to.like(v)]
    to.add("sdpa_bwd", grads, grad, q, k, v, out, logsum_exp=sums, **optional)
    return grads[0], grads[1], grads[2]


@operator("aten.mv.default", counterpart="`matmul`")
def mv(call: Call, a: Value, x: Value) -> Value:
    return call.to.squeeze(call.to.matmul(a, call.to.insert_axes(x, [1])), [1])


@operator("aten._grouped_mm.default", counterpart="`matmul` for each group, and `where` with the offsets")
def grouped_mm(call: Call, a: Value, b: Value, ends: Value | None = None, bias: Value | None = None, dtype: Any = None) -> Value:
    """A group is a range of rows of the first matrix, of columns of the second one, or of the summed axis of both."""
    to, product = call.to, None
    if bias is not None:
        raise call.error("hir imports it only without a bias")
    if ends is None:
        return to.convert(to.matmul(a, b), call.dtype)
    ends = to.convert(ends, "int64")
    products: list[Value] = []
    for group in range(ends.shape[0]):
        factors = [to.select(it, 0, group) if it.ndim == 3 else it for it in (a, b)]
        dim = 1 if a.ndim == 3 or a.ndim == b.ndim else 0
        places = to.iota(a.shape[1] if a.ndim == b.ndim else call.shape[dim])
        inside = to.elementwise("<", [places, to.select(ends, 0, group)], "bool")
        if group > 0:
            behind = to.elementwise(">=", [places, to.select(ends, 0, group - 1)], "bool")
            inside = to.elementwise("&&", [inside, behind], "bool")
        if a.ndim == b.ndim:
            masks = [inside, to.insert_axes(inside, [1])]
            factors = [to.elementwise("where", [mask, it, to.full((), 0, it.dtype)], it.dtype) for mask, it in zip(masks, factors)]
            products.append(to.insert_axes(to.matmul(*factors), [0]))
            continue
        mask = to.insert_axes(inside, [1]) if dim == 0 else inside
        rest = to.full((), 0, a.dtype) if product is None else product
        product = to.elementwise("where", [mask, to.matmul(*factors), rest], a.dtype)
    return to.convert(to.cat(products, 0) if product is None else product, call.dtype)


@operator("aten._scaled_mm.default", counterpart="`matmul` of conversions to `float`, and `*`")
def scaled_mm(
    call: Call, a: Value, b: Value, scale_a: Value, scale_b: Value, bias: Value | None = None, scale: Value | None = None, *_: Any, **__: Any
) -> Value:
    """A scale is one number, or one for each row of the first matrix and for each column of the second one."""
    product = call.to.matmul(*(call.to.convert(it, "float32") for it in (a, b)))
    for it, of_each in ((scale_a, (call.shape[0], 1)), (scale_b, (1, call.shape[1]))):
        if math.prod(it.shape) != 1 and it.shape != of_each or it.dtype != "float32" or scale is not None:
            raise call.error("hir imports it with scales of matrices, of rows and of columns")
        product = apply(call, "*", [product, it], "float32")
    product = product if bias is None else apply(call, "+", [product, bias], "float32")
    return call.to.convert(product, call.dtype)


def check_convolution(call: Call, x: Value, weight: Value, transposed: bool) -> None:
    if transposed or x.ndim != weight.ndim:
        raise call.error("hir imports only batches, and no transposed convolutions")


@operator("aten.convolution.default", counterpart="`matmul` of the weights of each place of the kernel, and `+`")
def convolution(
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
) -> Value:
    check_convolution(call, x, weight, transposed)
    to, extents, out = call.to, weight.shape[2:], call.shape[2:]
    for d, width in enumerate(padding):
        x = padded(call, x, 2 + d, width, width)
    batch, channels, results = x.shape[0], x.shape[1] // groups, weight.shape[0] // groups
    total: Value | None = None
    for place in product(*(range(it) for it in extents)):
        part, factors = x, weight
        for d, at in enumerate(place):
            start = at * dilation[d]
            part = to.slice(part, 2 + d, start, start + (out[d] - 1) * strides[d] + 1, strides[d])
            factors = to.select(factors, 2, at)
        part = to.reshape(part, (batch, groups, channels, math.prod(out)))
        factors = to.reshape(factors, (1, groups, results, channels))
        term = to.matmul(factors, part)
        total = term if total is None else apply(call, "+", [total, term])
    if total is None:
        raise call.error("the kernel is empty")
    result = to.reshape(total, call.shape)
    if bias is not None:
        result = apply(call, "+", [result, to.insert_axes(bias, range(1, 1 + len(out)))])
    return result
