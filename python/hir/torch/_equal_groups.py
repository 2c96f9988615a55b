"""Process groups that have the same ranks. The language tells communicators apart by their ranks, so they are compared here."""

from __future__ import annotations

from itertools import zip_longest
from typing import Sequence

from ._graph import Graph, Node, TorchFaultError


def is_collective(target: str) -> bool:
    namespace, name = target.split(".")[:2] if target.count(".") > 1 else ("", "")
    return namespace in ("_c10d_functional", "_dtensor") and not name.startswith("wait_tensor")


def check_equal_groups(graphs: Sequence[Graph]) -> None:
    """Raises ``TorchFaultError`` if ranks use groups of the same ranks in different orders: they would wait for each other."""
    for ranks in sorted({ranks for graph in graphs for ranks in graph.groups.values()}):
        names = {name for rank in ranks for name, it in graphs[rank].groups.items() if it == ranks}
        if len(names) < 2:
            continue
        first, *others = (_calls(graphs[rank], names) for rank in ranks)
        for rank, calls in zip(ranks[1:], others):
            for ours, theirs in zip_longest(first, calls):
                if ours and theirs and ours.args[-1] != theirs.args[-1]:
                    raise TorchFaultError(
                        f"deadlock: the process groups `{ours.args[-1]}` and `{theirs.args[-1]}` have the same ranks {ranks}, and "
                        f"rank {ranks[0]} calls this on `{ours.args[-1]}` when rank {rank} calls `{theirs.target}` on "
                        f"`{theirs.args[-1]}` ({theirs.place or 'unknown line'}); call both groups in the same order on all ranks",
                        ours,
                    )


def _calls(graph: Graph, names: set[str]) -> list[Node]:
    return [node for node in graph.nodes if is_collective(node.target) and node.args[-1] in names]
