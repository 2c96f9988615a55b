"""The graphs of all ranks, exchanged through the store of the job: no collective is needed, and none is used."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from ._graph import Graph, TorchImportError
from ._recorded import recorded_graph, to_recorded

_exchanged = 0


def graphs_of_all_ranks(graph: Graph, timeout: float) -> list[Graph]:
    """Returns the graphs that the ranks have captured, each rank its next one.

    Raises ``TorchImportError`` if a rank captures none within ``timeout`` seconds.
    """
    global _exchanged
    if graph.world == 1:
        return [graph]
    import torch.distributed as dist

    number = _exchanged
    _exchanged += 1
    store: Any = dist.distributed_c10d._get_default_store()
    store.set(f"hir/graph/{number}/{graph.rank}", json.dumps(to_recorded(graph)))
    graphs: list[Graph] = []
    missing: list[str] = []
    for rank in range(graph.world):
        key = f"hir/graph/{number}/{rank}"
        try:
            # Only the first missing rank takes the whole time.
            store.wait([key], timedelta(seconds=0.1 if missing else timeout))
        except (RuntimeError, dist.DistStoreError):
            missing.append(str(rank))
            continue
        graphs.append(recorded_graph(json.loads(store.get(key))))
    if missing:
        raise TorchImportError(
            f"rank {graph.rank} has captured its graph {number} (`{graph.name}`), but {'ranks' if len(missing) > 1 else 'rank'} "
            f"{', '.join(missing)} captured none within {timeout:g} s"
        )
    return graphs
