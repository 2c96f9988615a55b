"""Products of matrices, and attention."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

from .._builder import Axis, Value
from ._elementwise import apply
from ._reductions import along
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


def scores(call: Call, q: Value, k: Value, causal: bool, mask: Value | None, scale: float) -> Value:
    """The scores of an attention, with those that do not count at minus infinity."""
    product = call.to.matmul(q, call.to.permute(k, [0, 1, 3, 2]))
    product = apply(call, "*", [product, scale], q.dtype)
    if mask is not None and mask.dtype == "bool":
        product = call.to.elementwise("where", [mask, product, -math.inf], q.dtype)
    elif mask is not None:
        product = apply(call, "+", [product, mask], q.dtype)
    if causal:
        rows, columns = along(call, 2, 4, q.shape[2]), along(call, 3, 4, k.shape[2])
        seen = call.to.elementwise("<=", [columns, rows], "bool")
        product = call.to.elementwise("where", [seen, product, -math.inf], q.dtype)
    return product


def check_dropout(call: Call, dropout: float) -> None:
    if dropout != 0:
        raise call.error("hir imports attention only without dropout")


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
    check_dropout(call, dropout_p)
    to = call.to
    sharded = [x or y or z for x, y, z in zip(q.sharded, k.sharded, v.sharded)]
    q, k, v = (to.expand(it, it.shape, sharded) for it in (q, k, v))
    out = to.value(q.dtype, (*q.shape[:-1], v.shape[-1]), sharded)
    sums = to.value("float64" if q.dtype == "float64" else "float32", q.shape[:-1], sharded)
    state = [to.declare("uint64", axes) for axes in ([Axis("i", "S", 0, 2)], [])]
    optional: dict[str, Any] = {} if scale is None else {"scale": ("double", repr(scale))}
    if attn_mask is not None:
        optional["mask" if attn_mask.dtype == "bool" else "bias"] = attn_mask
    to.add("sdpa", [out, sums, *state], q, k, v, dropout_p=("double", "0.0"), is_causal=is_causal, **optional)
    return out, sums


@operator(
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
    counterpart="`matmul`, `exp`, `reduction` and products",
)
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
    """With P = exp(scores - sums), dV = Pᵀ·dO, dS = P ∘ (dO·Vᵀ - rowsum(dO ∘ O)), dQ = s·dS·K, dK = s·dSᵀ·Q
    (Dao et al., FlashAttention, 2022, appendix B)."""
    check_dropout(call, dropout_p)
    to, dtype, wide = call.to, q.dtype, sums.dtype
    shared, heads = q.shape[1] // k.shape[1], q.shape[1]
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    grad, q, k, v, out = (to.convert(it, wide) for it in (grad, q, k, v, out))
    k, v = for_each_head(call, k, heads), for_each_head(call, v, heads)
    table = scores(call, q, k, is_causal, attn_mask, factor)
    weights = apply(call, "exp", [apply(call, "-", [table, to.insert_axes(sums, [3])], wide)], wide)
    grad_v = to.matmul(to.permute(weights, [0, 1, 3, 2]), grad)
    grad_weights = to.matmul(grad, to.permute(v, [0, 1, 3, 2]))
    rows = to.sum(apply(call, "*", [grad, out], wide), [3], True)
    grad_scores = apply(call, "*", [weights, apply(call, "-", [grad_weights, rows], wide)], wide)
    grad_scores = apply(call, "*", [grad_scores, factor], wide)
    grad_q = to.matmul(grad_scores, k)
    grad_k = of_shared_heads(call, to.matmul(to.permute(grad_scores, [0, 1, 3, 2]), q), shared)
    return to.convert(grad_q, dtype), to.convert(grad_k, dtype), to.convert(of_shared_heads(call, grad_v, shared), dtype)


def for_each_head(call: Call, x: Value, heads: int) -> Value:
    """Keys or values for each head of the query: consecutive heads share them."""
    count = heads // x.shape[1]
    if count == 1:
        return x
    wide = call.to.expand(call.to.insert_axes(x, [2]), (*x.shape[:2], count, *x.shape[2:]))
    return call.to.reshape(wide, (x.shape[0], heads, *x.shape[2:]))


def of_shared_heads(call: Call, grad: Value, count: int) -> Value:
    """The gradient of keys or values that consecutive heads share."""
    if count == 1:
        return grad
    return call.to.sum(call.to.reshape(grad, (grad.shape[0], grad.shape[1] // count, count, *grad.shape[2:])), [2])


@operator("aten.mv.default", counterpart="`matmul`")
def mv(call: Call, a: Value, x: Value) -> Value:
    return call.to.squeeze(call.to.matmul(a, call.to.insert_axes(x, [1])), [1])


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
    if transposed or x.ndim != weight.ndim:
        raise call.error("hir imports only batches, and no transposed convolutions")
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
