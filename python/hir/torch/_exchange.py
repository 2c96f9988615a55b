"""The graphs of all ranks, exchanged through the store of the job: no collective is needed, and none is used."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from ._graph import TRANSFERS, Graph, TorchImportError
from ._recorded import recorded_graph, to_recorded

#: How long a rank waits with a graph for which another rank may wait outside of its graphs: it must not wait long.
SHORT_TIMEOUT = 30.0

_exchanged = 0


class NotExchanged(TorchImportError):
    """The ranks have captured graphs at different times, so their graphs were not compared."""


def leave_exchange() -> None:
    """Tells the other ranks that this one has no graph to compare with their next ones."""
    global _exchanged
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        number = _exchanged
        _exchanged += 1
        store: Any = dist.distributed_c10d._get_default_store()
        store.compare_set(f"hir/graph/{number}/decision", "", "left")
        store.set(f"hir/graph/{number}/{dist.get_rank()}", "left")


def graphs_of_all_ranks(graph: Graph, timeout: float) -> list[Graph]:
    """Returns the graphs that the ranks have captured, each rank its next one.

    Raises ``TorchImportError`` if a rank captures none within ``timeout`` seconds. If the graph is a piece of a model or transfers
    to single ranks, another rank may run its side outside of its graphs: then it waits at most 30 seconds and raises
    ``NotExchanged``, on all ranks.
    """
    global _exchanged
    if graph.world == 1:
        return [graph]
    import torch.distributed as dist

    number = _exchanged
    _exchanged += 1
    store: Any = dist.distributed_c10d._get_default_store()
    store.set(f"hir/graph/{number}/{graph.rank}", json.dumps(to_recorded(graph)))
    transfers = any(it.target.startswith(TRANSFERS) for it in graph.nodes)
    reason = graph.piece or ("it transfers to single ranks" if transfers else None)
    limit = min(timeout, SHORT_TIMEOUT) if reason else timeout
    missing: list[str] = []
    for rank in range(graph.world):
        try:
            # Only the first missing rank takes the whole time.
            store.wait([f"hir/graph/{number}/{rank}"], timedelta(seconds=0.1 if missing else limit))
        except (RuntimeError, dist.DistStoreError):
            missing.append(str(rank))
    # All ranks agree: the first one that has all graphs, or has waited long enough, decides for all.
    if reason or not missing:
        decision = store.compare_set(f"hir/graph/{number}/decision", "", "left" if missing else "complete")
        if decision == b"left":
            others = f"rank {', '.join(missing)} captured no graph within {limit:g} s, and {reason}"
            raise NotExchanged(others if missing else "another rank has not compared its graph with that of this rank")
        missing = []
    if missing:
        raise TorchImportError(
            f"rank {graph.rank} has captured its graph {number} (`{graph.name}`), but {'ranks' if len(missing) > 1 else 'rank'} "
            f"{', '.join(missing)} captured none within {timeout:g} s: it skips the call, runs it without torch.compile or with a "
            "graph that it has compiled before, or waits in communication that is not compiled, such as `dist.recv` (`irecv` is "
            'compiled); options={"check": False, "run": "torch"} compares no graphs'
        )
    return [recorded_graph(json.loads(store.get(f"hir/graph/{number}/{rank}"))) for rank in range(graph.world)]
