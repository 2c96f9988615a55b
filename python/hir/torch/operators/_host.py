"""Values of tensors that the host reads, and Python's arithmetic on them."""

from __future__ import annotations

from typing import Any, Sequence

from .._builder import Value, is_float
from ._elementwise import choose, converted
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


@operator("hir.cond", counterpart="both branches, and `where`", by_rank=True)
def cond(
    call: Call, condition: Value, yes: tuple[Any, ...], no: tuple[Any, ...], groups: tuple[Any, ...], fails: str | None
) -> tuple[Any, ...]:
    """Chooses between the results of two branches. ``groups`` are those that communicate in them; ``fails`` may fail in one."""
    to, place = call.to, call.node.place or "unknown line"
    alike = all(not condition.sharded[dim] for group in groups for dim in call.mesh_dims(group)) if to.mesh.shape else not groups
    if not alike:
        to.unknown.append(f"{place}: `cond`: its branches communicate, and hir does not know that all ranks decide alike")
    if fails:
        to.opaque.append(f"{place}: `cond` (hir computes both branches, and `{fails}` may fail in the one that is not chosen)")
    pick = to.reshape(condition, ())
    pairs = zip(yes, no)
    return tuple(a if a == b else choose(call, pick, a, b, a.dtype) for a, b in pairs)


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
