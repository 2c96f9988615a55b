"""Complex numbers: what makes them of real ones, and which other operators take them."""

from __future__ import annotations

from typing import Any

from .._builder import Value
from ._elementwise import apply
from ._registry import Call, operator

#: The type of both parts of a complex type.
PARTS = {"complex64": "float32", "complex128": "float64"}


def takes_complex(target: str) -> bool:
    """Whether the rule of an operator is right for complex numbers."""
    return target in TAKERS or target.startswith(("_c10d_functional.wait", "_c10d_functional.all_gather", "hir."))


#: Operators that move elements, and those whose spelling means the same for complex numbers.
TAKERS = frozenset(
    f"aten.{it}"
    for it in (
        "view.default _unsafe_view.default reshape.default view_copy.default detach.default clone.default alias.default t.default "
        "transpose.int permute.default expand.default unsqueeze.default squeeze.dim squeeze.dims slice.Tensor split.Tensor "
        "split_with_sizes.default select.int unbind.int cat.default stack.default index.Tensor index_select.default "
        "view_as_complex.default view_as_real.default _conj.default conj_physical.default complex.default polar.default "
        "_conj_physical.default _to_copy.default mul.Tensor add.Tensor sub.Tensor div.Tensor neg.default resolve_conj.default"
    ).split()
)


def pair(call: Call, real: Value, imaginary: Value, dtype: str) -> Value:
    part = PARTS[dtype]
    return call.to.elementwise("std::complex", [call.to.convert(it, part) for it in (real, imaginary)], dtype)


def parts(call: Call, x: Value) -> tuple[Value, Value]:
    real, imaginary = (call.to.elementwise(f"std::{it}", [x], PARTS[x.dtype]) for it in ("real", "imag"))
    return real, imaginary


def complex_copy(call: Call, x: Value) -> Value:
    """A conversion from or to complex numbers."""
    if x.dtype == call.dtype:
        return x
    real, imaginary = parts(call, x) if x.dtype in PARTS else (x, call.to.full((), 0, PARTS[call.dtype]))
    return pair(call, real, imaginary, call.dtype) if call.dtype in PARTS else call.to.convert(real, call.dtype)


@operator("aten.complex.default", counterpart="`std::complex(x, y)`")
def complex_(call: Call, real: Value, imaginary: Value) -> Value:
    return pair(call, real, imaginary, call.dtype)


@operator("aten.polar.default", counterpart="`std::complex(x * cos(y), x * sin(y))`")
def polar(call: Call, size: Value, angle: Value) -> Value:
    real, imaginary = (apply(call, "*", [size, apply(call, it, [angle], size.dtype)], size.dtype) for it in ("cos", "sin"))
    return pair(call, real, imaginary, call.dtype)


@operator("aten.view_as_complex.default", counterpart="`std::complex(x, y)` of the last axis")
def view_as_complex(call: Call, x: Value) -> Value:
    last = x.ndim - 1
    return pair(call, call.to.select(x, last, 0), call.to.select(x, last, 1), call.dtype)


@operator("aten.view_as_real.default", counterpart="`std::real(x)` and `std::imag(x)`, then `cat`")
def view_as_real(call: Call, x: Value) -> Value:
    return call.to.cat([call.to.insert_axes(it, [x.ndim]) for it in parts(call, x)], x.ndim)


@operator(
    "aten._conj.default",
    "aten.conj_physical.default",
    "aten._conj_physical.default",
    "aten.resolve_conj.default",
    counterpart="`std::complex(x, -y)`",
)
def conj(call: Call, x: Value, **_: Any) -> Value:
    if "resolve" in call.node.target or x.dtype not in PARTS:
        return x
    real, imaginary = parts(call, x)
    return pair(call, real, call.to.elementwise("-", [imaginary], imaginary.dtype), x.dtype)
