"""Where plain local tensors are in the whole: a tensor of another shape than the whole is a slice of it, which the values tell."""

from __future__ import annotations

import itertools
from typing import Any, Iterator, Mapping, Sequence

import torch

#: For each dimension the indices of the whole that a rank has; None is all.
Slice = tuple[Any, ...]

#: The largest number of combinations of slices that are tried for a tensor.
MOST = 64


def take(whole: Any, at: Slice) -> Any:
    for dimension, indices in enumerate(at):
        if indices is not None:
            whole = whole.index_select(dimension, indices)
    return whole


def error(value: Any, expected: Any) -> float:
    """The largest difference of two elements. NaN agrees with NaN, and infinity with itself."""
    if not value.numel():
        return 0.0
    difference = (value - expected).abs()
    difference = difference.masked_fill((value == expected) | (value.isnan() & expected.isnan()), 0.0)
    return float(difference.nan_to_num(nan=float("inf"), posinf=float("inf")).max())


class Slices:
    """Remembers which parts of a dimension the ranks have: rows of a batch have the same in all tensors."""

    def __init__(self, ranks: int) -> None:
        #: By rank: sizes of the local and the whole dimension, with indices.
        self._known: list[dict[tuple[int, int], list[Any]]] = [{} for _ in range(ranks)]

    def find(self, rank: int, shapes: Mapping[int, Sequence[int]], whole: Any, value: Any, tolerance: float, is_noted: bool) -> Slice | None:
        """Returns which slice of the whole a rank has: the first that agrees, or else the most probable one. None: it can be none."""
        if tuple(value.shape) == tuple(whole.shape):
            everything: Slice = (None,) * whole.dim()
            return everything
        if value.dim() != whole.dim() or not all(0 < one <= all_ for one, all_ in zip(value.shape, whole.shape)):
            return None
        first: Slice | None = None
        for at in self._candidates(rank, shapes, whole, value):
            if error(value, take(whole, at)) <= tolerance:
                if is_noted:
                    self._note(rank, at, whole.shape)
                return at
            first = first or at
        return first

    def _note(self, rank: int, at: Slice, whole: Sequence[int]) -> None:
        for indices, size in zip(at, whole):
            if indices is not None:
                known = self._known[rank].setdefault((len(indices), size), [])
                if not any(torch.equal(it, indices) for it in known):
                    known.append(indices)

    def _candidates(self, rank: int, shapes: Mapping[int, Sequence[int]], whole: Any, value: Any) -> Iterator[Slice]:
        """Yields the slices that the tensor of a rank may be, the most probable first. The first is what a finding names."""
        shape = shapes[rank]
        by_dimension = [
            [None] if one == size else list(self._of_dimension(rank, {it: shapes[it][dimension] for it in shapes}, size))
            for dimension, (one, size) in enumerate(zip(shape, whole.shape))
        ]
        yield from itertools.islice(itertools.product(*by_dimension), MOST)
        sliced = [it for it, found in enumerate(by_dimension) if found != [None]]
        if len(sliced) == 1:
            yield tuple(_nearest(value, whole, it) if it in sliced else None for it in range(len(shape)))

    def _of_dimension(self, rank: int, sizes: Mapping[int, int], whole: int) -> Iterator[Any]:
        own = sizes[rank]
        for (local, size), known in self._known[rank].items():
            if (local, size) == (own, whole):
                yield from known
            elif whole % size == 0 and own == local * (whole // size):
                # Rows are flattened with another dimension, which is inside or outside.
                factor = whole // size
                for it in known:
                    yield (it[:, None] * factor + torch.arange(factor)).flatten()
                    yield (it + size * torch.arange(factor)[:, None]).flatten()
        if sum(sizes.values()) == whole:
            begin = sum(size for other, size in sizes.items() if other < rank)
            yield torch.arange(begin, begin + own)
            if len(set(sizes.values())) == 1:
                yield torch.arange(sorted(sizes).index(rank), whole, len(sizes))
        if whole % own == 0:
            count = whole // own
            for block in range(count):
                begin = (rank + block) % count * own
                yield torch.arange(begin, begin + own)


def _nearest(value: Any, whole: Any, dimension: int) -> Any:
    """Returns for each part of a dimension the part of the whole that is nearest."""
    if value.numel() * whole.shape[dimension] > 50_000_000:
        return torch.arange(value.shape[dimension])
    parts, of_whole = (it.movedim(dimension, 0).reshape(it.shape[dimension], -1) for it in (value, whole))
    return torch.stack([(of_whole - it).abs().sum(1).nan_to_num(nan=float("inf")).argmin() for it in parts])
