"""The device mesh that the process groups of a program form."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Iterable

from ._graph import DifferentRanks

#: A partition of all ranks into groups of equal size.
Groups = frozenset[tuple[int, ...]]


@dataclass(frozen=True)
class Mesh:
    """A mesh of all ranks, in their order. The last dimension is the fastest, ``deviceIdx.x``."""

    shape: tuple[int, ...]
    #: The only rank, of a mesh without dimensions.
    only: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def text(self) -> str:
        """As the language writes it: ``DeviceMesh{{0 1}{2 3}}``."""

        def rows(first: int, shape: tuple[int, ...]) -> str:
            if not shape:
                return str(first)
            step = prod(shape[1:])
            separator = " " if len(shape) == 1 else ""
            return "{" + separator.join(rows(first + i * step, shape[1:]) for i in range(shape[0])) + "}"

        return f"(DeviceMesh{rows(0, self.shape)})" if self.shape else f"(DeviceMesh{{{self.only}}})"

    def parallel_type(self, dim: int) -> str:
        return "deviceIdx." + "xyz"[self.ndim - 1 - dim]

    def coordinates(self, rank: int) -> tuple[int, ...]:
        result = []
        for extent in reversed(self.shape):
            result.append(rank % extent)
            rank //= extent
        return tuple(reversed(result))

    def dims_of(self, groups: Groups) -> tuple[int, ...] | None:
        """Returns the dimensions along which the groups lie, or None if they do not lie along dimensions."""
        for count in range(self.ndim + 1):
            for start in range(self.ndim - count + 1):
                dims = tuple(range(start, start + count))
                if self.groups_along(dims) == groups:
                    return dims
        return None

    def groups_along(self, dims: Iterable[int]) -> Groups:
        along = set(dims)
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            others = tuple(c for dim, c in enumerate(self.coordinates(rank)) if dim not in along)
            groups.setdefault(others, []).append(rank)
        return frozenset(tuple(it) for it in groups.values())


def mesh_of(world: int, partitions: Iterable[Groups]) -> Mesh:
    """Returns the mesh whose dimensions are the groups of all given partitions."""
    cuts = {1, world}
    for groups in partitions:
        ranks = min(groups)
        stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        cuts |= {stride, stride * len(ranks)}
    ordered = sorted(cuts)
    if any(large % small for small, large in zip(ordered, ordered[1:])):
        raise DifferentRanks(f"the process groups do not form a mesh: {_show(partitions)}")
    shape = tuple(reversed([large // small for small, large in zip(ordered, ordered[1:])])) or (1,)
    mesh = Mesh(shape)
    if mesh.ndim > 3 or any(mesh.dims_of(groups) is None for groups in partitions):
        raise DifferentRanks(f"the process groups do not form a mesh of at most three dimensions: {_show(partitions)}")
    return mesh


def _show(partitions: Iterable[Groups]) -> str:
    return "; ".join(" ".join(str(group) for group in sorted(groups)) for groups in partitions)
