"""Calls with arguments that depend on the rank, such as a slice that begins at the rank's own row."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from ._align import PerRank
from ._builder import Value
from .operators import Call


def depends_on_rank(argument: Any) -> bool:
    if isinstance(argument, dict):
        return any(depends_on_rank(it) for it in argument.values())
    return isinstance(argument, PerRank) or (isinstance(argument, tuple) and any(depends_on_rank(it) for it in argument))


def chosen_by_rank(call: Call, rule: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the rule with the arguments of each rank, and lets each rank choose its own result."""
    ranks = range(call.to.mesh.size)
    own = [(_of_rank(args, rank), _of_rank(kwargs, rank)) for rank in ranks]
    different = [it for rank, it in enumerate(own) if it not in own[:rank]]
    results = [rule(call, *it[0], **it[1]) for it in different]
    return of_each_rank(call, [results[different.index(it)] for it in own])


def of_each_rank(call: Call, values: Sequence[Any]) -> Any:
    """Gives each rank its own one of some values."""
    different = [it for rank, it in enumerate(values) if it not in values[:rank]]
    result = different[-1]
    for it in different[:-1]:
        result = _chosen(call, PerRank(tuple(own == it for own in values)), it, result)
    return result


def _of_rank(argument: Any, rank: int) -> Any:
    if isinstance(argument, PerRank):
        return argument.values[rank]
    if isinstance(argument, dict):
        return {name: _of_rank(it, rank) for name, it in argument.items()}
    return tuple(_of_rank(it, rank) for it in argument) if isinstance(argument, tuple) else argument


def _chosen(call: Call, condition: PerRank, yes: Any, no: Any) -> Any:
    if isinstance(yes, tuple):
        return tuple(_chosen(call, condition, *them) for them in zip(yes, no))
    if not isinstance(yes, Value):
        return yes
    return call.to.elementwise("where", [condition, yes, no], yes.dtype)
