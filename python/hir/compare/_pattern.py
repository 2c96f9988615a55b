"""What a difference looks like: which fault of a parallel program makes such values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

import torch

from ..job._explain import numbers
from ._slices import Slice, error, take


@dataclass
class Values:
    """The values of a tensor that differs, as float64: the whole of one device, and by rank what it has and what it should have."""

    whole: Any
    slices: Mapping[int, Slice]
    actual: Mapping[int, Any]
    #: The ranks that differ.
    wrong: tuple[int, ...]
    tolerance: float
    ranks: int
    #: By rank, the local tensor before the reduction of a partial placement, and the rank's share of the input.
    local: Mapping[int, Any]
    shares: Mapping[int, float]
    #: By rank, the gradient of the rank's own data, if it is a gradient.
    own: Mapping[int, Any] = field(default_factory=dict)
    #: The same of all parameters by name, and their gradients on one device.
    gradients: Mapping[str, tuple[Any, Mapping[int, Any]]] = field(default_factory=dict)
    #: The parameters of the module whose result it is.
    addends: Mapping[str, Any] = field(default_factory=dict)

    def expected(self, rank: int) -> Any:
        return take(self.whole, self.slices[rank])

    def is_near(self, value: Any, expected: Any, factor: float = 1.0) -> bool:
        return bool(value.shape == expected.shape) and error(value, expected) <= self.tolerance * max(1.0, abs(factor))


def pattern_of(it: Values) -> tuple[str, str]:
    """Returns the name of the pattern, and a sentence."""
    for find in (_nothing, _other_slice, _weights, _crossed, _local_mean, _drift, _factor, _partial, _addend, _factors, _apart):
        found = find(it)
        if found:
            return found
    return "unknown", "it is no known pattern"


def _nothing(it: Values) -> tuple[str, str] | None:
    zero = [rank for rank in it.wrong if not it.actual[rank].any()]
    if zero and len(zero) == len(it.wrong):
        return "zero", f"it is zero on {numbers(zero)}: it is not computed there, or lost"
    return None


def _is_whole(it: Values) -> bool:
    return all(index is None for at in it.slices.values() for index in at)


def _other_slice(it: Values) -> tuple[str, str] | None:
    if _is_whole(it):
        return None
    found = []
    for rank in it.wrong:
        others = [other for other in it.slices if other != rank and it.is_near(it.actual[rank], it.expected(other))]
        if others:
            found.append(f"rank {rank} has the slice of rank {others[0]}")
    return ("shard", f"a shard is in the wrong place: {', '.join(found)}") if len(found) == len(it.wrong) else None


def _ratio(value: Any, expected: Any) -> float | None:
    square = float((expected * expected).sum())
    return float((value * expected).sum()) / square if square else None


def _said(factor: float) -> str:
    return f"{factor:.4g}"


def _factor(it: Values) -> tuple[str, str] | None:
    """All elements of all ranks have one factor."""
    if len(it.wrong) < len(it.actual):
        return None
    joined = torch.cat([it.actual[rank].flatten() for rank in it.actual])
    wanted = torch.cat([it.expected(rank).flatten() for rank in it.actual])
    factor = _ratio(joined, wanted)
    if not factor or not it.is_near(joined, factor * wanted, factor) or it.whole.numel() < 2 and not _is_count(max(factor, 1 / factor), it.ranks):
        return None
    if _is_count(factor, it.ranks):
        count = round(factor)
        return "twice", f"it is {count} times the value of one device: a sum over {count} ranks is taken twice, or a mean is missing"
    if _is_count(1 / factor, it.ranks):
        count = round(1 / factor)
        return "divided", f"it is 1/{count} of the value of one device: divided by {count} ranks once too often, or a sum over them is missing"
    return "factor", f"it is {_said(factor)} times the value of one device in all elements: another count, norm or rate is used"


def _is_count(factor: float, ranks: int) -> bool:
    """Whether it is the size of a group."""
    count = round(factor)
    return count > 1 and ranks % count == 0 and abs(factor - count) < 1e-3 * count


def _partial(it: Values) -> tuple[str, str] | None:
    if not _is_whole(it) or len(it.actual) < 2 or not it.whole.numel():
        return None
    values = torch.stack([it.actual[rank] for rank in it.actual])
    if all(it.is_near(value, values[0]) for value in values):
        return None
    if it.is_near(values.sum(0), it.whole, len(values)):
        what = "each rank has the gradient of its own data" if it.own else "partial results are used as whole ones"
        return "partial", f"{what}: the sum over the ranks is the value of one device, so a reduction is missing"
    if it.is_near(values.mean(0), it.whole):
        return "unreduced", "each rank has its own value, and their mean is the value of one device: a reduction is missing"
    return None


def _drift(it: Values) -> tuple[str, str] | None:
    right = [rank for rank in it.actual if rank not in it.wrong]
    if not right or not _is_whole(it):
        return None
    return "drift", f"replicas drift: {numbers(right, 'agree')} with one device, and {numbers(it.wrong, 'differ')}"


def _apart(it: Values) -> tuple[str, str] | None:
    first = it.actual[it.wrong[0]]
    if not _is_whole(it) or all(it.is_near(value, first) for value in it.actual.values()):
        return None
    return "drift", "ranks that should have one value have values of their own"


def _local_mean(it: Values) -> tuple[str, str] | None:
    """The values of the ranks, weighted by their shares of the input, are the value of one device."""
    shares = {rank: it.shares.get(rank, 0.0) for rank in it.local}
    if abs(sum(shares.values()) - 1) > 1e-6 or any(value.shape != it.whole.shape for value in it.local.values()) or len(set(shares.values())) < 2:
        return None
    if not it.is_near(sum(share * it.local[rank] for rank, share in shares.items()), it.whole):
        return None
    told = ", ".join(_said(share) for share in shares.values())
    return "local mean", f"a mean over local tokens: ranks count alike, but their shares of the input are {told}"


def _addend(it: Values) -> tuple[str, str] | None:
    """A parameter is added on each rank before the sum over them."""
    for name, value in it.addends.items():
        if value.dim() == 1 and it.whole.dim() and value.shape[0] == it.whole.shape[-1] and _is_whole(it):
            if all(it.is_near(it.actual[rank], it.whole + (it.ranks - 1) * value) for rank in it.wrong):
                return "twice", f"`{name}` is added on each of {it.ranks} ranks before their sum"
    return None


def _crossed(it: Values) -> tuple[str, str] | None:
    """A rank has given the gradient of another parameter of the same shape."""
    if set(it.own) != set(range(it.ranks)) or not _is_whole(it):
        return None
    for rank in it.wrong:
        for name, (_, values) in it.gradients.items():
            for other in it.own:
                if values is not it.own and other in values and values[other].shape == it.own[other].shape:
                    total = sum(it.own.values()) - it.own[other] + values[other]
                    if it.is_near(it.actual[rank], total, it.ranks) or it.is_near(it.actual[rank] * it.ranks, total, it.ranks):
                        why = f"rank {other} has given the gradient of `{name}`: ranks make collectives of one size in another order"
                        return "crossed", why
    return None


def _solve(parts: Any, value: Any, tolerance: float) -> list[float] | None:
    """Returns the weights with which a value is the sum of parts, if it is: one column for each part."""
    if parts.shape[0] < 2 * parts.shape[1] or torch.linalg.matrix_rank(parts) < parts.shape[1]:
        return None
    weights = torch.linalg.lstsq(parts, value[:, None]).solution[:, 0]
    return [float(w) for w in weights] if error(parts @ weights, value) <= 4 * tolerance else None


def _weights(it: Values) -> tuple[str, str] | None:
    """The value of one device and that of the ranks are sums of the ranks' own gradients, with other weights."""
    if set(it.own) != set(range(it.ranks)) or it.ranks < 2 or any(value.shape != it.whole.shape for value in it.own.values()):
        return None
    rank = it.wrong[0]
    parts = torch.stack([take(value, it.slices[rank]).flatten() for _, value in sorted(it.own.items())], 1)
    actual = it.actual[rank].flatten()
    uniform = next((weight for weight in (1 / it.ranks, 1.0) if it.is_near(parts.sum(1) * weight, actual, it.ranks)), None)
    used = [uniform] * it.ranks if uniform else _solve(parts, actual, it.tolerance)
    if used is None:
        return None
    missing = [other for other, weight in enumerate(used) if abs(weight) < 1e-4 * max(map(abs, used))]
    if missing:
        return "unreduced", f"the gradients of {numbers(missing)} are not in that of rank {rank}: a reduction is missing"
    # The right weights are those of all parameters.
    all_ = it.gradients.values()
    known = [(whole, own) for whole, own in all_ if set(own) == set(it.own) and all(one.shape == whole.shape for one in own.values())]
    columns = torch.stack([torch.cat([own[other].flatten() for _, own in known]) for other in range(it.ranks)], 1)
    right = _solve(columns, torch.cat([whole.flatten() for whole, _ in known]), it.tolerance)
    if right is None or not sum(right):
        return None
    shares = [weight / sum(right) for weight in right]
    if max(used) - min(used) < 1e-3 * max(used) and max(shares) - min(shares) > 1e-3:
        told = ", ".join(_said(share) for share in shares)
        return "local mean", f"a mean over local tokens: ranks count alike, but on one device they count as {told}, as their numbers of tokens may"
    return None


def _factors(it: Values) -> tuple[str, str] | None:
    """Each rank has a factor of its own."""
    found = []
    for rank in it.actual:
        wanted = it.expected(rank)
        factor = _ratio(it.actual[rank], wanted)
        if factor is None or wanted.numel() < 2 or not it.is_near(it.actual[rank], factor * wanted, factor):
            return None
        found.append(factor)
    told = ", ".join(_said(factor) for factor in found)
    return "factors", f"each rank has a factor of its own: {told}. Ranks divide by their own numbers of tokens, or their own norm"
