"""The numbers that element types have, and what PyTorch makes of others."""

from __future__ import annotations

import math
import struct

from ._builder import Number, is_float


def wide_type(dtype: str) -> str:
    """The type in which PyTorch computes what it rounds to a type of 16 bits once."""
    return "float32" if dtype in ("bfloat16", "float16") else dtype


def limits(dtype: str) -> tuple[int, int] | None:
    """The least and the largest number of an integer type."""
    if is_float(dtype) or dtype == "bool" or dtype.startswith("complex"):
        return None
    bits = int(dtype.lstrip("uint"))
    return (0, (1 << bits) - 1) if dtype.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)


def wrapped(value: Number, dtype: str) -> Number:
    """A number as PyTorch converts it to an integer type: without its fraction, modulo the number of values."""
    ends = limits(dtype)
    if ends is None or not math.isfinite(value):
        return value
    return (int(value) - ends[0]) % (ends[1] - ends[0] + 1) + ends[0]


def limited(value: Number, dtype: str) -> Number:
    """The nearest number of an integer type."""
    ends = limits(dtype)
    return value if ends is None else max(ends[0], min(value, ends[1]))


def rounded(value: Number, dtype: str) -> Number:
    """A number as an element of any type. PyTorch makes those of 16 bits from binary32."""
    if dtype not in ("bfloat16", "float16") or not math.isfinite(value):
        return wrapped(value, dtype)
    try:
        single = struct.pack("<f", value)
        if dtype == "float16":
            return float(struct.unpack("<e", struct.pack("<e", struct.unpack("<f", single)[0]))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
    [bits] = struct.unpack("<I", single)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])
