"""Values of tensors that the host reads."""

from __future__ import annotations

from typing import Any

from .._builder import Value
from ._registry import Call, operator

#: Operators whose result is a value that no example determines.
READS = ("aten._local_scalar_dense.default", "aten.item.default")


@operator(*READS, counterpart="`Synchronize(host)`; the tensor itself stands for the value")
def item(call: Call, x: Value) -> Value:
    """The host waits for the stream that computes the value. Operators that take the value read the tensor."""
    call.to.statement("Synchronize(host)")
    return call.to.reshape(x, ())


@operator(
    "aten._assert_scalar.default",
    "aten._assert_async.msg",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
    counterpart="none: what PyTorch asserts about a value",
)
def assertion(call: Call, *_: Any, **__: Any) -> None:
    return None
