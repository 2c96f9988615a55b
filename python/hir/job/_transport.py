"""The data of calls: each rank writes what it gives into a file of its own in memory, and the others read from there."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, Callable, Sequence

import torch

from ._calls import Elements

#: The largest number of pieces that the system writes at once.
MAX_AT_ONCE = 1024

#: Offsets are multiples of this.
ALIGNMENT = 64

#: How values of members are reduced, two at a time and in place.
REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a.add_(b),
    "avg": lambda a, b: a.add_(b),
    "premul_sum": lambda a, b: a.add_(b),
    "product": lambda a, b: a.mul_(b),
    "min": lambda a, b: torch.minimum(a, b, out=a),
    "max": lambda a, b: torch.maximum(a, b, out=a),
    "band": lambda a, b: a.bitwise_and_(b),
    "bor": lambda a, b: a.bitwise_or_(b),
    "bxor": lambda a, b: a.bitwise_xor_(b),
}


def elements_of(tensor: Any) -> Elements:
    return tensor.numel(), _name(tensor.dtype)


@functools.cache
def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(tensor: Any) -> memoryview:
    """Returns the memory of a contiguous tensor, which has to live longer."""
    # `numpy()` would forbid later changes of the size.
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


class Memory:
    """The file of this rank, and those of the others: descriptors by rank."""

    def __init__(self, rank: int, files: Sequence[int]) -> None:
        self._rank, self._files = rank, files
        self._end = 0
        #: The sizes of what is in use by offset, and what is free by size.
        self._used: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}

    def write(self, tensors: Sequence[Any]) -> int:
        """Writes tensors one after the other, and returns the offset of the first."""
        if not tensors:
            return 0
        whole = [_in_memory(it) for it in tensors if it.numel()]
        parts = [_bytes(it) for it in whole]
        size = -(-sum(it.nbytes for it in parts) // ALIGNMENT) * ALIGNMENT
        free = self._free.get(size)
        offset = free.pop() if free else self._end
        self._end = max(self._end, offset + size)
        self._used[offset] = size
        file, at = self._files[self._rank], offset
        if len(parts) < MAX_AT_ONCE and os.pwritev(file, parts, at) == sum(it.nbytes for it in parts):
            return offset
        for part in parts:
            _whole(os.pwrite, file, part, at)
            at += part.nbytes
        return offset

    def free(self, offset: int) -> None:
        size = self._used.pop(offset, None)
        if size is not None:
            self._free.setdefault(size, []).append(offset)

    def read(self, rank: int, offset: int, tensor: Any) -> None:
        """Reads the elements of a contiguous tensor."""
        if tensor.numel():
            _whole(lambda file, view, at: os.preadv(file, [view], at), self._files[rank], _bytes(tensor), offset)


def _in_memory(tensor: Any) -> Any:
    """Returns the elements of a tensor in their order."""
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _whole(move: Callable[[int, memoryview, int], int], file: int, view: memoryview, offset: int) -> None:
    """Moves all bytes: the system may move fewer at once."""
    moved = 0
    while moved < view.nbytes:
        count = move(file, view[moved:], offset + moved)
        if count <= 0:
            raise OSError("the data of another rank is incomplete")
        moved += count


def deliver(
    memory: Memory,
    parts: Sequence[tuple[int, int, Any]],
    sources: Sequence[tuple[int, int]],
    target: Any,
    reduction: str | None,
    factor: float,
) -> None:
    """Gives a tensor its new values: the pieces of members, reduced if there is a reduction."""

    def place(source: tuple[int, int]) -> tuple[int, int]:
        rank, offset, pieces = parts[source[0]]
        sizes = (count * getattr(torch, kind).itemsize for count, kind in pieces[: source[1]])
        return rank, offset + sum(sizes)

    is_whole = target.is_contiguous()
    if not is_whole or reduction is not None:
        # Values that a collective writes do not count as a change in place for autograd.
        target = target.detach().data
    whole = target if is_whole else torch.empty(target.shape, dtype=target.dtype)
    memory.read(*place(sources[0]), whole)
    if reduction is not None:
        other = torch.empty_like(whole) if len(sources) > 1 else whole
        for source in sources[1:]:
            memory.read(*place(source), other)
            whole = REDUCTIONS[reduction](whole, other)
        if reduction == "avg":
            whole.div_(len(sources)) if whole.dtype.is_floating_point or whole.dtype.is_complex else whole.floor_divide_(len(sources))
        elif reduction == "premul_sum":
            whole.mul_(factor)
    if whole is not target:
        target.copy_(whole)
