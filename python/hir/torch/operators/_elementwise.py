"""Elementwise operators."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Sequence

from .._builder import Operand, Value, is_float
from ._registry import Call, operator

#: Operators of one tensor: PyTorch's name, and the spelling of the language.
UNARY = {
    "abs": "abs({})",
    "acos": "acos({})",
    "acosh": "acosh({})",
    "asin": "asin({})",
    "asinh": "asinh({})",
    "atan": "atan({})",
    "atanh": "atanh({})",
    "bitwise_not": "~{}",
    "ceil": "ceil({})",
    "cos": "cos({})",
    "cosh": "cosh({})",
    "erf": "erf({})",
    "erfc": "erfc({})",
    "erfinv": "erfinv({})",
    "exp": "exp({})",
    "exp2": "exp2({})",
    "expm1": "expm1({})",
    "floor": "floor({})",
    "frac": "frac({})",
    "isinf": "isinf({})",
    "isnan": "isnan({})",
    "lgamma": "lgamma({})",
    "log": "log({})",
    "log10": "log10({})",
    "log1p": "log1p({})",
    "log2": "log2({})",
    "logical_not": "!{}",
    "neg": "-{}",
    "reciprocal": "reciprocal({})",
    "relu": "relu({})",
    "round": "round({})",
    "rsqrt": "rsqrt({})",
    "sigmoid": "sigmoid({})",
    "silu": "silu({})",
    "sin": "sin({})",
    "sinh": "sinh({})",
    "sqrt": "sqrt({})",
    "tan": "tan({})",
    "tanh": "tanh({})",
    "trunc": "trunc({})",
}
#: Operators of two operands.
BINARY = {
    "atan2": "atan2({}, {})",
    "__lshift__": "{} << {}",
    "__rshift__": "{} >> {}",
    "bitwise_and": "{} & {}",
    "bitwise_left_shift": "{} << {}",
    "bitwise_right_shift": "{} >> {}",
    "bitwise_or": "{} | {}",
    "bitwise_xor": "{} ^ {}",
    "div": "{} / {}",
    "fmod": "fmod({}, {})",
    "logical_and": "{} && {}",
    "logical_or": "{} || {}",
    "maximum": "max({}, {})",
    "minimum": "min({}, {})",
    "mul": "{} * {}",
    "pow": "pow({}, {})",
    "remainder": "remainder({}, {})",
    "true_divide": "{} / {}",
}
#: Comparisons.
COMPARISON = {"eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}", "ge": "{} >= {}"}
#: Registers an operator whose numbers may depend on the rank.
elementwise = partial(operator, by_rank=True)
OVERLOADS = ("Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor", "Tensor_Scalar_out", "default")


def converted(call: Call, operand: Any, dtype: str) -> Operand:
    """An operand in the type in which PyTorch computes."""
    if isinstance(operand, Value):
        return call.to.convert(operand, dtype)
    if isinstance(operand, int) and not isinstance(operand, bool) and is_float(dtype):
        return float(operand)
    result: Operand = operand
    return result


def apply(call: Call, spelling: str, operands: Sequence[Any], dtype: str | None = None) -> Value:
    """Applies an operator to operands in the element type of the result."""
    dtype = dtype or call.dtype
    return call.to.elementwise(spelling, [converted(call, it, dtype) for it in operands], dtype)


def common_dtype(operands: list[Any]) -> str:
    """The type in which operands are compared, as PyTorch promotes types."""

    def rank(dtype: str) -> tuple[int, int]:
        if is_float(dtype):
            return 2, 64 if dtype == "float64" else 32 if dtype == "float32" else 16
        return (0, 0) if dtype == "bool" else (1, int("".join(filter(str.isdigit, dtype))))

    tensors = [it for it in operands if isinstance(it, Value)]
    # Tensors without dimensions count only among themselves, or if their kind of number is a higher one.
    result = max((it.dtype for it in tensors if it.ndim), key=rank, default="")
    for it in tensors:
        if not result or (it.ndim == 0 and rank(it.dtype)[0] > rank(result)[0]):
            result = it.dtype
    for it in operands:
        if isinstance(it, float) and rank(result)[0] < 2:
            result = "float32"
        if isinstance(it, int) and not isinstance(it, bool) and result == "bool":
            result = "int64"
    return result


def _unary(name: str, spelling: str) -> None:
    @elementwise(f"aten.{name}.default", counterpart=f"`{spelling.format('x')}`")
    def rule(call: Call, x: Value) -> Value:
        if name == "logical_not":
            return call.to.elementwise("!{}", [call.to.convert(x, "bool")], "bool")
        if name in ("isinf", "isnan"):
            return call.to.elementwise(spelling, [x], "bool")
        if name == "bitwise_not" and x.dtype == "bool":
            return call.to.elementwise("!{}", [x], "bool")
        return apply(call, spelling, [x])


def _binary(name: str, spelling: str) -> None:
    @elementwise(*(f"aten.{name}.{it}" for it in OVERLOADS), counterpart=f"`{spelling.format('x', 'y')}`")
    def rule(call: Call, x: Any, y: Any) -> Value:
        if name.startswith("logical"):
            return apply(call, spelling, [x, y], "bool")
        if name == "pow" and isinstance(y, (int, float)):
            return power(call, x, y)
        return apply(call, spelling, [x, y])


def _comparison(name: str, spelling: str) -> None:
    @elementwise(*(f"aten.{name}.{it}" for it in OVERLOADS), counterpart=f"`{spelling.format('x', 'y')}`")
    def rule(call: Call, x: Any, y: Any) -> Value:
        dtype = common_dtype([x, y])
        return call.to.elementwise(spelling, [converted(call, it, dtype) for it in (x, y)], "bool")


for _name, _spelling in UNARY.items():
    _unary(_name, _spelling)
for _name, _spelling in BINARY.items():
    _binary(_name, _spelling)
for _name, _spelling in COMPARISON.items():
    _comparison(_name, _spelling)


def power(call: Call, x: Value, exponent: int | float) -> Value:
    """Small powers are products, as in PyTorch."""
    if exponent == 1:
        return call.to.convert(x, call.dtype)
    if exponent == 2:
        return apply(call, "{} * {}", [x, x])
    if exponent == 3:
        return apply(call, "{} * {}", [apply(call, "{} * {}", [x, x]), x])
    return apply(call, "pow({}, {})", [x, exponent])


@elementwise("aten.add.Tensor", "aten.add.Scalar", counterpart="`x + y`; with `alpha`: `x + y * alpha`")
def add(call: Call, x: Any, y: Any, alpha: float = 1) -> Value:
    return apply(call, "{} + {}", [x, y if alpha == 1 else scaled(call, y, alpha)])


@elementwise("aten.sub.Tensor", "aten.sub.Scalar", counterpart="`x - y`; with `alpha`: `x - y * alpha`")
def sub(call: Call, x: Any, y: Any, alpha: float = 1) -> Value:
    return apply(call, "{} - {}", [x, y if alpha == 1 else scaled(call, y, alpha)])


@elementwise("aten.rsub.Tensor", "aten.rsub.Scalar", counterpart="`y - x`")
def rsub(call: Call, x: Any, y: Any, alpha: float = 1) -> Value:
    return sub(call, y, x, alpha)


def scaled(call: Call, x: Any, factor: float) -> Operand:
    return apply(call, "{} * {}", [x, factor]) if isinstance(x, Value) else x * factor


@elementwise("aten.div.Tensor_mode", "aten.div.Scalar_mode", counterpart="`x / y`, then `trunc`; as `floor_divide`")
def div_mode(call: Call, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return floor_divide(call, x, y)
    quotient = apply(call, "{} / {}", [x, y])
    return apply(call, "trunc({})", [quotient]) if rounding_mode == "trunc" and is_float(call.dtype) else quotient


@elementwise(
    "aten.floor_divide.default", "aten.floor_divide.Scalar", counterpart="`(x - remainder(x, y)) / y`, rounded to an integer"
)
def floor_divide(call: Call, x: Any, y: Any) -> Value:
    multiple = apply(call, "{} - {}", [x, apply(call, "remainder({}, {})", [x, y])])
    quotient = apply(call, "{} / {}", [multiple, y])
    return apply(call, "round({})", [quotient]) if is_float(call.dtype) else quotient


@elementwise("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", counterpart="`where(c, x, y)`")
def where(call: Call, condition: Value, x: Any, y: Any) -> Value:
    values = [converted(call, it, call.dtype) for it in (x, y)]
    return call.to.elementwise("where({}, {}, {})", [condition, *values], call.dtype)


@elementwise("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", counterpart="`where(mask, value, x)`")
def masked_fill(call: Call, x: Value, mask: Value, fill: Any) -> Value:
    return call.to.elementwise("where({}, {}, {})", [mask, converted(call, fill, call.dtype), x], call.dtype)


@elementwise("aten.sign.default", "aten.sgn.default", counterpart="`(x > 0) - (x < 0)`, and NaN for NaN")
def sign(call: Call, x: Value) -> Value:
    if x.dtype == "bool":
        return x
    one, none = converted(call, 1, x.dtype), converted(call, 0, x.dtype)
    positive = call.to.elementwise("{} > {}", [x, none], "bool")
    negative = call.to.elementwise("{} < {}", [x, none], "bool")
    rest = call.to.elementwise("{} * {}", [x, none], x.dtype) if is_float(x.dtype) else none
    other = call.to.elementwise("where({}, {}, {})", [negative, converted(call, -1, x.dtype), rest], x.dtype)
    return call.to.elementwise("where({}, {}, {})", [positive, one, other], x.dtype)


@elementwise("aten.clamp.default", "aten.clamp.Tensor", counterpart="`max(min(x, high), low)`")
def clamp(call: Call, x: Value, low: Any = None, high: Any = None) -> Value:
    if high is not None:
        x = apply(call, "min({}, {})", [x, high])
    return x if low is None else apply(call, "max({}, {})", [x, low])


@elementwise("aten.clamp_min.default", "aten.clamp_min.Tensor", counterpart="`max(x, low)`")
def clamp_min(call: Call, x: Value, low: Any) -> Value:
    return clamp(call, x, low)


@elementwise("aten.clamp_max.default", "aten.clamp_max.Tensor", counterpart="`min(x, high)`")
def clamp_max(call: Call, x: Value, high: Any) -> Value:
    return clamp(call, x, None, high)


@elementwise("aten.lerp.Scalar", "aten.lerp.Tensor", counterpart="`lerp(x, y, weight)`")
def lerp(call: Call, x: Value, y: Value, weight: Any) -> Value:
    return apply(call, "lerp({}, {}, {})", [x, y, weight])


@elementwise("prims.fma.default", counterpart="`x * y + z`, which rounds twice")
def fma(call: Call, x: Any, y: Any, z: Any) -> Value:
    return apply(call, "{} + {}", [apply(call, "{} * {}", [x, y]), z])


@elementwise("aten.addcmul.default", counterpart="`x + y * z * value`")
def addcmul(call: Call, x: Any, y: Any, z: Any, value: float = 1) -> Value:
    return apply(call, "{} + {}", [x, apply(call, "{} * {}", [scaled(call, y, value) if value != 1 else y, z])])


@elementwise("aten.addcdiv.default", counterpart="`x + y / z * value`")
def addcdiv(call: Call, x: Any, y: Any, z: Any, value: float = 1) -> Value:
    return apply(call, "{} + {}", [x, apply(call, "{} / {}", [scaled(call, y, value) if value != 1 else y, z])])


@elementwise("aten.threshold_backward.default", counterpart="`where(x <= threshold, 0, grad)`")
def threshold_backward(call: Call, grad: Value, x: Value, threshold: float) -> Value:
    below = call.to.elementwise("{} <= {}", [x, converted(call, threshold, x.dtype)], "bool")
    return call.to.elementwise("where({}, {}, {})", [below, converted(call, 0, grad.dtype), grad], call.dtype)


@elementwise("aten.tanh_backward.default", counterpart="`grad * (1 - y * y)`")
def tanh_backward(call: Call, grad: Value, y: Value) -> Value:
    rest = apply(call, "{} - {}", [1.0, apply(call, "{} * {}", [y, y])])
    return apply(call, "{} * {}", [grad, rest])


@elementwise("aten.sigmoid_backward.default", counterpart="`grad * (1 - y) * y`")
def sigmoid_backward(call: Call, grad: Value, y: Value) -> Value:
    rest = apply(call, "{} * {}", [apply(call, "{} - {}", [1.0, y]), y])
    return apply(call, "{} * {}", [grad, rest])


@elementwise("aten.silu_backward.default", counterpart="`grad * s * (1 + x * (1 - s))` with `s = sigmoid(x)`")
def silu_backward(call: Call, grad: Value, x: Value) -> Value:
    wide = "float32" if call.dtype in ("bfloat16", "float16") else call.dtype
    grad, x = call.to.convert(grad, wide), call.to.convert(x, wide)
    s = apply(call, "sigmoid({})", [x], wide)
    rest = apply(call, "{} * {}", [x, apply(call, "{} - {}", [1.0, s], wide)], wide)
    factor = apply(call, "{} * {}", [s, apply(call, "{} + {}", [rest, 1.0], wide)], wide)
    return call.to.convert(apply(call, "{} * {}", [grad, factor], wide), call.dtype)


@elementwise("aten.gelu.default", counterpart="`x / 2 * (1 + erf(x / sqrt(2)))`, or with `tanh`")
def gelu(call: Call, x: Value, approximate: str = "none") -> Value:
    wide = "float32" if call.dtype in ("bfloat16", "float16") else call.dtype
    x = call.to.convert(x, wide)
    result = apply(call, "{} * {}", [apply(call, "{} * {}", [x, 0.5], wide), gelu_gate(call, x, approximate)], wide)
    return call.to.convert(result, call.dtype)


def gelu_gate(call: Call, x: Value, approximate: str) -> Value:
    """Twice the factor of x: ``1 + erf(x / sqrt(2))`` or ``1 + tanh(…)``."""
    inner = apply(call, "{} * {}", [x, math.sqrt(0.5)], x.dtype)
    if approximate == "tanh":
        return apply(call, "{} + {}", [gelu_tanh(call, x), 1.0], x.dtype)
    return apply(call, "{} + {}", [apply(call, "erf({})", [inner], x.dtype), 1.0], x.dtype)


def gelu_tanh(call: Call, x: Value) -> Value:
    cube = apply(call, "{} * {}", [apply(call, "{} * {}", [x, x], x.dtype), x], x.dtype)
    inner = apply(call, "{} + {}", [x, apply(call, "{} * {}", [cube, 0.044715], x.dtype)], x.dtype)
    return apply(call, "tanh({})", [apply(call, "{} * {}", [inner, math.sqrt(2 / math.pi)], x.dtype)], x.dtype)


@elementwise("aten.gelu_backward.default", counterpart="elementwise, with `erf` and `exp`, or with `tanh`")
def gelu_backward(call: Call, grad: Value, x: Value, approximate: str = "none") -> Value:
    wide = "float32" if call.dtype in ("bfloat16", "float16") else call.dtype
    grad, x = call.to.convert(grad, wide), call.to.convert(x, wide)
    cdf = apply(call, "{} * {}", [gelu_gate(call, x, approximate), 0.5], wide)
    square = apply(call, "{} * {}", [x, x], wide)
    if approximate == "tanh":
        t = gelu_tanh(call, x)
        slope = apply(call, "{} - {}", [1.0, apply(call, "{} * {}", [t, t], wide)], wide)
        inner = apply(call, "{} + {}", [apply(call, "{} * {}", [square, 3 * 0.044715], wide), 1.0], wide)
        inner = apply(call, "{} * {}", [inner, math.sqrt(2 / math.pi) / 2], wide)
        density = apply(call, "{} * {}", [slope, inner], wide)
    else:
        density = apply(call, "exp({})", [apply(call, "{} * {}", [square, -0.5], wide)], wide)
        density = apply(call, "{} * {}", [density, 1 / math.sqrt(2 * math.pi)], wide)
    slope = apply(call, "{} + {}", [cdf, apply(call, "{} * {}", [x, density], wide)], wide)
    return call.to.convert(apply(call, "{} * {}", [grad, slope], wide), call.dtype)
