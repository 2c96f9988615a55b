"""Attention on GPUs. PyTorch chooses among kernels that take and return different things beside the attention itself."""

from __future__ import annotations

from typing import Any

from .._builder import Value
from .._graph import TensorType
from ._products import attention, attention_backward
from ._registry import Call, operator


@operator("aten._scaled_dot_product_flash_attention.default", counterpart="`sdpa`")
def flash_attention(
    call: Call,
    q: Value,
    k: Value,
    v: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    return all_results(call, *attention(call, q, k, v, dropout_p, is_causal, scale=scale))


@operator(
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    counterpart="`sdpa`",
)
def attention_with_mask(
    call: Call,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    compute_sums: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    return all_results(call, *attention(call, q, k, v, dropout_p, is_causal, attn_mask=mask, scale=scale))


def all_results(call: Call, out: Value, sums: Value) -> tuple[Any, ...]:
    """The results of a kernel. What follows the first two, such as the state of random numbers, only its gradient takes."""
    types = call.node.result[1:] if isinstance(call.node.result, tuple) else ()
    # Without a gradient, some kernels compute no sums; some have an axis more.
    kept = call.to.reshape(sums, types[0].shape) if types[0].shape in (sums.shape, (*sums.shape, 1)) else None
    rest = [call.to.full(it.shape, 0, it.dtype) if isinstance(it, TensorType) and 0 not in it.shape else None for it in types[1:]]
    return (out, kept, *rest)


@operator("aten._scaled_dot_product_flash_attention_backward.default", counterpart="`sdpa_bwd`")
def flash_attention_backward(
    call: Call,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    sums: Value,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    *_: Any,
    scale: float | None = None,
) -> tuple[Value, Value, Value]:
    return attention_backward(call, grad, q, k, v, out, sums, dropout_p, is_causal, scale=scale)


@operator("aten._scaled_dot_product_cudnn_attention_backward.default", counterpart="`sdpa_bwd`")
def cudnn_attention_backward(
    call: Call,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    sums: Value,
    seed: Any,
    offset: Any,
    mask: Value | None,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[Value, Value, Value]:
    sums = call.to.reshape(sums, q.shape[:-1])
    return attention_backward(call, grad, q, k, v, out, sums, dropout_p, is_causal, attn_mask=mask, scale=scale)


@operator("aten._scaled_dot_product_efficient_attention_backward.default", counterpart="`sdpa_bwd`")
def efficient_attention_backward(
    call: Call,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    out: Value,
    sums: Value,
    seed: Any,
    offset: Any,
    dropout_p: float,
    wanted: tuple[bool, ...],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    if wanted[3]:
        raise call.error("hir does not compute the gradient of the mask of an attention")
    return (*attention_backward(call, grad, q, k, v, out, sums, dropout_p, is_causal, attn_mask=mask, scale=scale), None)
