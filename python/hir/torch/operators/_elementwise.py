"""Elementwise operators."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Callable, Sequence

from .._align import PerRank
from .._builder import Number, Operand, Value, is_float
from .._numbers import limited, rounded, wide_type, wrapped
from .._promotion import common_dtype
from ._registry import Call, operator

#: Operators of one tensor that the language names as PyTorch does.
SAME = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfinv exp exp2 expm1 floor frac isinf isnan "
    "lgamma log log10 log1p log2 reciprocal relu round rsqrt sigmoid silu sin sinh sqrt tan tanh trunc"
)
#: Operators of one tensor: PyTorch's name, and that of the language.
UNARY = {it: it for it in SAME.split()} | {"bitwise_not": "~", "logical_not": "!", "neg": "-"}
#: Operators of two operands.
BINARY = {
    "atan2": "atan2",
    "__lshift__": "<<",
    "__rshift__": ">>",
    "bitwise_and": "&",
    "bitwise_left_shift": "<<",
    "bitwise_right_shift": ">>",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "div": "/",
    "fmod": "fmod",
    "logical_and": "&&",
    "logical_or": "||",
    "maximum": "max",
    "minimum": "min",
    "mul": "*",
    "pow": "pow",
    "remainder": "remainder",
    "true_divide": "/",
}
#: Operators of two operands before which PyTorch rounds numbers to the type of the tensor, on all devices.
ROUNDING = ("atan2", "fmod", "pow", "remainder")
#: Comparisons.
COMPARISON = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
#: Registers an operator whose numbers may depend on the rank.
elementwise = partial(operator, by_rank=True)
OVERLOADS = ("Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor", "Tensor_Scalar_out", "default")


def converted(call: Call, operand: Any, dtype: str, change: Callable[[Number, str], Number] = wrapped) -> Operand:
    """An operand in the type in which PyTorch computes. ``change`` says what becomes of numbers that the type does not have."""
    if isinstance(operand, Value):
        return call.to.convert(operand, dtype)
    if isinstance(operand, PerRank):
        return PerRank(tuple(change(it, dtype) for it in operand.values))
    return change(operand, dtype)


def apply(call: Call, op: str, operands: Sequence[Any], dtype: str | None = None) -> Value:
    """Applies an operator to operands in the element type of the result."""
    dtype = dtype or call.dtype
    return call.to.elementwise(op, [converted(call, it, dtype) for it in operands], dtype)


def compare(call: Call, op: str, operands: Sequence[Any], dtype: str) -> Value:
    """Compares in an element type, to which numbers are rounded first."""
    return call.to.elementwise(op, [converted(call, it, dtype, rounded) for it in operands], "bool")


def choose(call: Call, condition: Value, x: Operand, y: Operand, dtype: str) -> Value:
    return call.to.elementwise("where", [condition, x, y], dtype)


def tensor(call: Call, it: Any, dtype: str) -> Value:
    """An operand as a tensor: a number has no dimensions."""
    it = converted(call, it, dtype, rounded)
    if isinstance(it, PerRank):
        return choose(call, call.to.full((), True, "bool"), it, it, dtype)
    return it if isinstance(it, Value) else call.to.full((), it, dtype)


def spelled(op: str, *operands: str) -> str:
    """An operator with operands, as in a program."""
    if op.isidentifier():
        return f"{op}({', '.join(operands)})"
    return f" {op} ".join(operands) if len(operands) > 1 else op + operands[0]


def _unary(name: str, op: str) -> None:
    @elementwise(f"aten.{name}.default", counterpart=f"`{spelled(op, 'x')}`")
    def rule(call: Call, x: Value) -> Value:
        if name == "logical_not":
            return call.to.elementwise("!", [call.to.convert(x, "bool")], "bool")
        if name in ("isinf", "isnan"):
            return call.to.elementwise(op, [x], "bool")
        if name == "bitwise_not" and x.dtype == "bool":
            return call.to.elementwise("!", [x], "bool")
        return apply(call, op, [x])


def _binary(name: str, op: str) -> None:
    @elementwise(*(f"aten.{name}.{it}" for it in OVERLOADS), counterpart=f"`{spelled(op, 'x', 'y')}`")
    def rule(call: Call, x: Any, y: Any) -> Value:
        if name.startswith("logical"):
            return apply(call, op, [x, y], "bool")
        if name == "pow" and isinstance(y, (int, float)):
            return power(call, x, y)
        if name in ROUNDING:
            return apply(call, op, [converted(call, it, call.dtype, rounded) for it in (x, y)])
        return apply(call, op, [x, y])


def _comparison(name: str, op: str) -> None:
    @elementwise(*(f"aten.{name}.{it}" for it in OVERLOADS), counterpart=f"`{spelled(op, 'x', 'y')}`")
    def rule(call: Call, x: Any, y: Any) -> Value:
        return compare(call, op, [x, y], common_dtype([x, y]))


for _name, _spelling in UNARY.items():
    _unary(_name, _spelling)
for _name, _spelling in BINARY.items():
    _binary(_name, _spelling)
for _name, _spelling in COMPARISON.items():
    _comparison(_name, _spelling)


def power(call: Call, x: Value, exponent: int | float) -> Value:
    """Small powers are products and roots, as in PyTorch: `(-inf) ** 0.5` is NaN."""
    if exponent == 1:
        return call.to.convert(x, call.dtype)
    if exponent == 2:
        return apply(call, "*", [x, x])
    if exponent == 3:
        return narrowed(call, lambda it: apply(call, "*", [apply(call, "*", [x, x], it), x], it))
    if abs(exponent) == 0.5 and is_float(call.dtype):
        return apply(call, "sqrt" if exponent > 0 else "rsqrt", [x])
    return apply(call, "pow", [x, rounded(exponent, call.dtype)])


def narrowed(call: Call, compute: Callable[[str], Value]) -> Value:
    """What is computed in binary32 if the result has 16 bits, and rounded once."""
    return call.to.convert(compute(wide_type(call.dtype)), call.dtype)


@elementwise("aten.add.Tensor", "aten.add.Scalar", counterpart="`x + y`; with `alpha`: `x + y * alpha`")
def add(call: Call, x: Any, y: Any, alpha: float = 1) -> Value:
    return combined(call, "+", x, y, alpha)


@elementwise("aten.sub.Tensor", "aten.sub.Scalar", counterpart="`x - y`; with `alpha`: `x - y * alpha`")
def sub(call: Call, x: Any, y: Any, alpha: float = 1) -> Value:
    return combined(call, "-", x, y, alpha)


@elementwise("aten.rsub.Tensor", "aten.rsub.Scalar", counterpart="`y - x`")
def rsub(call: Call, x: Any, y: Any, alpha: float = 1) -> Value:
    return sub(call, y, x, alpha)


def combined(call: Call, op: str, x: Any, y: Any, alpha: float) -> Value:
    if alpha == 1:
        return apply(call, op, [x, y])
    return narrowed(call, lambda it: apply(call, op, [x, scaled(call, y, alpha, it)], it))


def scaled(call: Call, x: Any, factor: float, dtype: str) -> Operand:
    if factor == 1:
        return converted(call, x, dtype)
    return apply(call, "*", [x, factor], dtype) if isinstance(x, Value) else converted(call, x, dtype, lambda it, _: it * factor)


@elementwise("aten.div.Tensor_mode", "aten.div.Scalar_mode", counterpart="`x / y`, then `trunc`; as `floor_divide`")
def div_mode(call: Call, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return floor_divide(call, x, y)
    if rounding_mode != "trunc" or not is_float(call.dtype):
        return apply(call, "/", [x, y])
    dtype = type_of_quotient(call, y)
    return call.to.convert(apply(call, "trunc", [apply(call, "/", [x, y], dtype)], dtype), call.dtype)


@elementwise(
    "aten.floor_divide.default",
    "aten.floor_divide.Scalar",
    counterpart="`(x - fmod(x, y)) / y`, less 1 where the remainder and `y` have different signs; `x / y` where `y` is 0",
)
def floor_divide(call: Call, x: Any, y: Any) -> Value:
    dtype = type_of_quotient(call, y)
    return call.to.convert(quotient(call, tensor(call, x, dtype), tensor(call, y, dtype)), call.dtype)


def type_of_quotient(call: Call, y: Any) -> str:
    """Beside a number, PyTorch computes in binary32; beside a tensor, it rounds each step to 16 bits."""
    return call.dtype if isinstance(y, Value) else wide_type(call.dtype)


def quotient(call: Call, x: Value, y: Value) -> Value:
    """The steps of PyTorch's `div_floor_floating` and `div_floor_integer`, which see to rounding, infinities and overflow."""
    dtype = x.dtype
    rest = apply(call, "fmod", [x, y], dtype)
    is_positive, is_negative = (compare(call, it, [rest, 0], dtype) for it in (">", "<"))
    is_above = choose(call, compare(call, "<", [y, 0], dtype), is_positive, is_negative, "bool")
    divided = apply(call, "/", [x, y], dtype)
    whole = apply(call, "/", [apply(call, "-", [x, rest], dtype), y], dtype) if is_float(dtype) else divided
    whole = choose(call, is_above, apply(call, "-", [whole, 1], dtype), whole, dtype)
    if not is_float(dtype):
        return whole
    # Division has rounded; a zero has the sign of the quotient.
    down = apply(call, "floor", [whole], dtype)
    is_far = compare(call, ">", [apply(call, "-", [whole, down], dtype), 0.5], dtype)
    nearest = choose(call, is_far, apply(call, "+", [down, 1], dtype), down, dtype)
    zero = apply(call, "*", [divided, 0], dtype)
    nearest = choose(call, compare(call, "==", [whole, 0], dtype), zero, nearest, dtype)
    return choose(call, compare(call, "==", [y, 0], dtype), divided, nearest, dtype)


@elementwise("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", counterpart="`where(c, x, y)`")
def where(call: Call, condition: Value, x: Any, y: Any) -> Value:
    values = [converted(call, it, call.dtype) for it in (x, y)]
    return call.to.elementwise("where", [condition, *values], call.dtype)


@elementwise("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", counterpart="`where(mask, value, x)`")
def masked_fill(call: Call, x: Value, mask: Value, fill: Any) -> Value:
    return call.to.elementwise("where", [mask, converted(call, fill, call.dtype), x], call.dtype)


@elementwise("aten.sign.default", "aten.sgn.default", counterpart="`(x > 0) - (x < 0)`, which is 0 for NaN")
def sign(call: Call, x: Value) -> Value:
    if x.dtype == "bool":
        return x
    positive, negative = (compare(call, it, [x, 0], x.dtype) for it in (">", "<"))
    rest = choose(call, negative, converted(call, -1, x.dtype), converted(call, 0, x.dtype), x.dtype)
    return choose(call, positive, converted(call, 1, x.dtype), rest, x.dtype)


@elementwise("aten.clamp.default", "aten.clamp.Tensor", counterpart="`min(max(x, low), high)`")
def clamp(call: Call, x: Value, low: Any = None, high: Any = None) -> Value:
    if low is not None:
        x = apply(call, "max", [x, converted(call, low, call.dtype, limited)])
    return x if high is None else apply(call, "min", [x, converted(call, high, call.dtype, limited)])


@elementwise("aten.clamp_min.default", "aten.clamp_min.Tensor", counterpart="`max(x, low)`")
def clamp_min(call: Call, x: Value, low: Any) -> Value:
    return clamp(call, x, low)


@elementwise("aten.clamp_max.default", "aten.clamp_max.Tensor", counterpart="`min(x, high)`")
def clamp_max(call: Call, x: Value, high: Any) -> Value:
    return clamp(call, x, None, high)


@elementwise("aten.lerp.Scalar", "aten.lerp.Tensor", counterpart="`lerp(x, y, weight)`")
def lerp(call: Call, x: Value, y: Value, weight: Any) -> Value:
    return apply(call, "lerp", [x, y, weight])


@elementwise("prims.fma.default", counterpart="`x * y + z`, which rounds twice")
def fma(call: Call, x: Any, y: Any, z: Any) -> Value:
    return apply(call, "+", [apply(call, "*", [x, y]), z])


def _added(name: str, op: str) -> None:
    @elementwise(f"aten.{name}.default", counterpart=f"`x + y {op} z * value`")
    def rule(call: Call, x: Any, y: Any, z: Any, value: float = 1) -> Value:
        return narrowed(call, lambda it: apply(call, "+", [x, apply(call, op, [scaled(call, y, value, it), z], it)], it))


_added("addcmul", "*")
_added("addcdiv", "/")


@elementwise("aten.threshold.default", counterpart="`where(x <= threshold, value, x)`")
def threshold(call: Call, x: Value, limit: float, value: float, other: Value | None = None) -> Value:
    """Replaces elements up to a limit. ``other`` has the elements for the others."""
    below = call.to.elementwise("<=", [x, converted(call, limit, x.dtype)], "bool")
    other = x if other is None else other
    return choose(call, below, converted(call, value, other.dtype), other, call.dtype)


@elementwise("aten.threshold_backward.default", counterpart="`where(x <= threshold, 0, grad)`")
def threshold_backward(call: Call, grad: Value, x: Value, limit: float) -> Value:
    return threshold(call, x, limit, 0, grad)


@elementwise("aten.native_dropout_backward.default", counterpart="`grad * mask * scale`")
def native_dropout_backward(call: Call, grad: Value, mask: Value, scale: float) -> Value:
    kept = apply(call, "*", [grad, call.to.convert(mask, grad.dtype)], grad.dtype)
    return apply(call, "*", [kept, scale], call.dtype)


@elementwise("aten.tanh_backward.default", counterpart="`grad * (1 - y * y)`")
def tanh_backward(call: Call, grad: Value, y: Value) -> Value:
    def product(dtype: str) -> Value:
        rest = apply(call, "-", [1.0, apply(call, "*", [y, y], dtype)], dtype)
        return apply(call, "*", [grad, rest], dtype)

    return narrowed(call, product)


@elementwise("aten.sigmoid_backward.default", counterpart="`grad * (1 - y) * y`")
def sigmoid_backward(call: Call, grad: Value, y: Value) -> Value:
    def product(dtype: str) -> Value:
        rest = apply(call, "-", [1.0, y], dtype)
        return apply(call, "*", [apply(call, "*", [grad, rest], dtype), y], dtype)

    return narrowed(call, product)


@elementwise("aten.silu_backward.default", counterpart="`grad * s * (1 + x * (1 - s))` with `s = sigmoid(x)`")
def silu_backward(call: Call, grad: Value, x: Value) -> Value:
    wide = wide_type(call.dtype)
    grad, x = call.to.convert(grad, wide), call.to.convert(x, wide)
    s = apply(call, "sigmoid", [x], wide)
    rest = apply(call, "*", [x, apply(call, "-", [1.0, s], wide)], wide)
    factor = apply(call, "*", [s, apply(call, "+", [rest, 1.0], wide)], wide)
    return call.to.convert(apply(call, "*", [grad, factor], wide), call.dtype)


@elementwise("aten.gelu.default", counterpart="`x / 2 * (1 + erf(x / sqrt(2)))`, or with `tanh`")
def gelu(call: Call, x: Value, approximate: str = "none") -> Value:
    wide = wide_type(call.dtype)
    x = call.to.convert(x, wide)
    result = apply(call, "*", [apply(call, "*", [x, 0.5], wide), gelu_gate(call, x, approximate)], wide)
    return call.to.convert(result, call.dtype)


def gelu_gate(call: Call, x: Value, approximate: str) -> Value:
    """Twice the factor of x: ``1 + erf(x / sqrt(2))`` or ``1 + tanh(…)``."""
    inner = apply(call, "*", [x, math.sqrt(0.5)], x.dtype)
    if approximate == "tanh":
        return apply(call, "+", [gelu_tanh(call, x), 1.0], x.dtype)
    return apply(call, "+", [apply(call, "erf", [inner], x.dtype), 1.0], x.dtype)


def gelu_tanh(call: Call, x: Value) -> Value:
    cube = apply(call, "*", [apply(call, "*", [x, x], x.dtype), x], x.dtype)
    inner = apply(call, "+", [x, apply(call, "*", [cube, 0.044715], x.dtype)], x.dtype)
    return apply(call, "tanh", [apply(call, "*", [inner, math.sqrt(2 / math.pi)], x.dtype)], x.dtype)


@elementwise("aten.gelu_backward.default", counterpart="elementwise, with `erf` and `exp`, or with `tanh`")
def gelu_backward(call: Call, grad: Value, x: Value, approximate: str = "none") -> Value:
    wide = wide_type(call.dtype)
    grad, x = call.to.convert(grad, wide), call.to.convert(x, wide)
    cdf = apply(call, "*", [gelu_gate(call, x, approximate), 0.5], wide)
    square = apply(call, "*", [x, x], wide)
    if approximate == "tanh":
        t = gelu_tanh(call, x)
        slope = apply(call, "-", [1.0, apply(call, "*", [t, t], wide)], wide)
        inner = apply(call, "+", [apply(call, "*", [square, 3 * 0.044715], wide), 1.0], wide)
        inner = apply(call, "*", [inner, math.sqrt(2 / math.pi) / 2], wide)
        density = apply(call, "*", [slope, inner], wide)
    else:
        density = apply(call, "exp", [apply(call, "*", [square, -0.5], wide)], wide)
        density = apply(call, "*", [density, 1 / math.sqrt(2 * math.pi)], wide)
    slope = apply(call, "+", [cdf, apply(call, "*", [x, density], wide)], wide)
    return call.to.convert(apply(call, "*", [grad, slope], wide), call.dtype)
