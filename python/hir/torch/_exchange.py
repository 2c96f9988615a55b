"""The graphs of all ranks, exchanged through the store of the job: no collective is needed, and none is used."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from ._graph import Graph, TorchImportError
from ._recorded import recorded_graph, to_recorded

#: How long a rank waits with a piece of a model. What runs between the pieces may wait for this rank, so it must not wait long.
PIECE_TIMEOUT = 30.0

_exchanged = 0


class NotExchanged(TorchImportError):
    """Ranks have captured pieces of a model at different times, so their graphs were not compared."""


def graphs_of_all_ranks(graph: Graph, timeout: float) -> list[Graph]:
    """Returns the graphs that the ranks have captured, each rank its next one.

    Raises ``TorchImportError`` if a rank captures none within ``timeout`` seconds. If the graph is a piece of a model, it waits at
    most 30 seconds and raises ``NotExchanged``, on all ranks.
    """
    global _exchanged
    if graph.world == 1:
        return [graph]
    import torch.distributed as dist

    number = _exchanged
    _exchanged += 1
    store: Any = dist.distributed_c10d._get_default_store()
    store.set(f"hir/graph/{number}/{graph.rank}", json.dumps(to_recorded(graph)))
    missing: list[str] = []
    for rank in range(graph.world):
        # Only the first missing rank takes the whole time.
        limit = 0.1 if missing else min(timeout, PIECE_TIMEOUT) if graph.piece else timeout
        try:
            store.wait([f"hir/graph/{number}/{rank}"], timedelta(seconds=limit))
        except (RuntimeError, dist.DistStoreError):
            missing.append(str(rank))
    # All ranks agree: the first one that has all graphs, or has waited long enough, decides for all.
    decision = "left" if missing and graph.piece else "complete"
    if not missing or graph.piece:
        decision = store.compare_set(f"hir/graph/{number}/decision", "", decision).decode()
    if decision == "left":
        raise NotExchanged(
            f"the ranks capture different pieces of the model, and {graph.piece or 'that of another rank is one'}"
        )
    if missing:
        raise TorchImportError(
            f"rank {graph.rank} has captured its graph {number} (`{graph.name}`), but {'ranks' if len(missing) > 1 else 'rank'} "
            f"{', '.join(missing)} captured none within {timeout:g} s: it skips the call, runs it without torch.compile or with a "
            "graph that it has compiled before, or waits in communication that is not compiled, such as `dist.recv` (`irecv` is "
            'compiled); options={"check": False, "run": "torch"} compares no graphs'
        )
    return [recorded_graph(json.loads(store.get(f"hir/graph/{number}/{rank}"))) for rank in range(graph.world)]
