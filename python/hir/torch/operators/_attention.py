"""Attention on GPUs. PyTorch chooses among kernels that take and return different things beside the attention itself."""

from __future__ import annotations

from typing import Any

from .._builder import Value
from .._graph import TensorType
from ._products import attention, attention_backward
from ._registry import Call, operator

#: What the kernels for gradients take behind the gradient, the query, the keys and the values, by the names of their schemas.
TAKEN = {
    "flash": "out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal philox_seed philox_offset",
    "cudnn": "out logsumexp philox_seed philox_offset attn_bias cum_seq_q cum_seq_k max_q max_k dropout_p is_causal",
    "efficient": "attn_bias out logsumexp philox_seed philox_offset dropout_p grad_input_mask is_causal",
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
    names = TAKEN[kernel].split()
    given = {"attn_bias": None, "is_causal": False} | dict(zip(names, args)) | named
    for name in given.keys() - set(names) - {"attn_bias", "is_causal"}:
        raise call.error(f"hir does not know the argument `{name}` of the gradient of an attention")
    for name in set(names) - given.keys() - {"cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset"}:
        raise call.error(f"the gradient of an attention has no argument `{name}`")
    if kernel == "efficient" and given["grad_input_mask"][3]:
        raise call.error("hir does not compute the gradient of the mask of an attention")
    sums = given["logsumexp"]
    sums = call.to.reshape(sums, q.shape[:-1]) if kernel == "cudnn" else sums
    options: dict[str, Any] = {"attn_mask": given["attn_bias"], "scale": scale}
    grads = attention_backward(call, grad, q, k, v, given["out"], sums, given["dropout_p"], given["is_causal"], **options)
    return (*grads, None) if kernel == "efficient" else grads
