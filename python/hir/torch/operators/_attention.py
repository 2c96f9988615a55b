"""Attention on GPUs. PyTorch chooses among kernels that take and return different things beside the attention itself."""

from __future__ import annotations

from typing import Any

from .._builder import Value
from .._graph import TensorType
from ._products import attention, attention_backward
from ._registry import Call, operator

#: What the kernels for gradients take behind the gradient, the query, the keys and the values.
TAKEN = {
    "flash": "out sums cum_seq_q cum_seq_k max_q max_k dropout is_causal seed offset",
    "cudnn": "out sums seed offset mask cum_seq_q cum_seq_k max_q max_k dropout is_causal",
    "efficient": "mask out sums seed offset dropout wanted is_causal",
}


@operator("aten._scaled_dot_product_flash_attention.default", counterpart="`sdpa`")
def flash_attention(
    call: Call, q: Value, k: Value, v: Value, dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False,
    *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    return all_results(call, *attention(call, q, k, v, dropout_p, is_causal, scale=scale))


@operator(
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    counterpart="`sdpa`",
)
def attention_with_mask(
    call: Call, q: Value, k: Value, v: Value, mask: Value | None, compute_sums: bool, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    return all_results(call, *attention(call, q, k, v, dropout_p, is_causal, attn_mask=mask, scale=scale))


def all_results(call: Call, out: Value, sums: Value) -> tuple[Any, ...]:
    """The results of a kernel. What follows the first two, such as the state of random numbers, only its gradient takes."""
    types = call.node.result[1:] if isinstance(call.node.result, tuple) else ()
    # Without a gradient, some kernels compute no sums; some have an axis more.
    kept = call.to.reshape(sums, types[0].shape) if types[0].shape in (sums.shape, (*sums.shape, 1)) else None
    rest = [call.to.full(it.shape, 0, it.dtype) if isinstance(it, TensorType) and 0 not in it.shape else None for it in types[1:]]
    return (out, kept, *rest)


@operator(*(f"aten._scaled_dot_product_{it}_attention_backward.default" for it in TAKEN), counterpart="`sdpa_bwd`")
def backward(call: Call, grad: Value, q: Value, k: Value, v: Value, *args: Any, scale: float | None = None, **named: Any) -> tuple[Value | None, ...]:
    kernel = call.node.target.split("_")[4]
    given = dict(zip(TAKEN[kernel].split(), args)) | named
    if kernel == "efficient" and given["wanted"][3]:
        raise call.error("hir does not compute the gradient of the mask of an attention")
    sums = call.to.reshape(given["sums"], q.shape[:-1]) if kernel == "cudnn" else given["sums"]
    options: dict[str, Any] = {"attn_mask": given.get("mask"), "scale": scale}
    grads = attention_backward(call, grad, q, k, v, given["out"], sums, given["dropout"], given.get("is_causal", False), **options)
    return (*grads, None) if kernel == "efficient" else grads
