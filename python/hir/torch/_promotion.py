"""The type in which PyTorch computes on operands of different types (``torch.result_type``)."""

from __future__ import annotations

from typing import Any, Iterable

from ._builder import Value, is_float

#: The type of Python's floats beside tensors without floats: PyTorch's default type.
DEFAULT = "float32"


def common_dtype(operands: Iterable[Any]) -> str:
    """The type to which operands are converted, such as those of a comparison.

    Tensors without dimensions count only among themselves, or if their kind of number (boolean, integer, float) is a higher one; so do
    numbers, beside all tensors.
    """
    with_dims, without, numbers = "", "", ""
    for it in operands:
        if isinstance(it, Value):
            with_dims, without = (
                (promoted(with_dims, it.dtype), without) if it.ndim else (with_dims, promoted(without, it.dtype))
            )
        elif isinstance(it, (bool, int, float)):
            numbers = promoted(numbers, "bool" if isinstance(it, bool) else "int64" if isinstance(it, int) else DEFAULT)
    return _or_higher(with_dims, _or_higher(without, numbers))


def promoted(a: str, b: str) -> str:
    """The type that holds the numbers of both types. The empty text is no type."""
    if not a or not b or a == b:
        return a or b
    if _kind(a) != _kind(b):
        return max(a, b, key=_kind)
    if _bits(a) != _bits(b):
        return max(a, b, key=_bits)
    # Of one size: `bfloat16` and `float16`, `uint8` and `int8`.
    return "float32" if is_float(a) else f"int{2 * _bits(a)}"


def _or_higher(dtype: str, other: str) -> str:
    """The first type, unless the numbers of the second one are of a higher kind."""
    return promoted(dtype, other) if not dtype or (other and _kind(other) > _kind(dtype)) else dtype


def _kind(dtype: str) -> int:
    return 2 if is_float(dtype) else 0 if dtype == "bool" else 1


def _bits(dtype: str) -> int:
    return int(dtype.removeprefix("b").lstrip("floatuin").split("_")[0])
