"""Values of tensors that the host reads, and Python's arithmetic on them."""

from __future__ import annotations

from typing import Any, Sequence

from .._builder import Value, is_float
from ._elementwise import converted
from ._registry import Call, operator

READS = ("aten._local_scalar_dense.default", "aten.item.default")
ASSERTIONS = (
    "aten._assert_scalar.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
)
#: Operators that take or give numbers which no example determines.
ON_HOST = READS + ASSERTIONS
#: Python's operators on numbers, and their spelling in the language.
ARITHMETIC = {
    "_operator.add": "+",
    "_operator.mul": "*",
    "_operator.neg": "-",
    "_operator.sub": "-",
    "_operator.truediv": "/",
}


@operator(*READS, counterpart="`Synchronize(host)`, and a conversion to `double` or `int64_t`, the types of Python's numbers")
def item(call: Call, x: Value) -> Value:
    """The host waits for the stream that computes the value. A tensor stands for the number."""
    call.to.add("Synchronize", None, target="host")
    return call.to.convert(call.to.reshape(x, ()), _number(x))


@operator(*ASSERTIONS, counterpart="none: what PyTorch asserts about a value")
def assertion(call: Call, *_: Any, **__: Any) -> None:
    return None


def arithmetic(call: Call, operands: Sequence[Any]) -> Value:
    """Computes on numbers of which some are values of tensors, as Python does."""
    spelling = ARITHMETIC[call.node.target]
    floats = spelling == "/" or any(_number(it) == "float64" for it in operands)
    dtype = "float64" if floats else "int64"
    return call.to.elementwise(spelling, [converted(call, it, dtype) for it in operands], dtype)


def _number(it: Any) -> str:
    """The element type of a number of Python."""
    if isinstance(it, Value):
        return "float64" if is_float(it.dtype) else "bool" if it.dtype == "bool" else "int64"
    return "float64" if isinstance(it, float) else "int64"
