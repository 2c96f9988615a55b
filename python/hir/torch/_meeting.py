"""Which graphs the ranks call together. A graph without communication needs no other rank.

Calls of graphs that communicate are paired in their order, through the store of the job: no collective is needed, and none is used.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import pickle
from dataclasses import dataclass, field, replace
from time import monotonic, sleep
from typing import Any, Sequence

from ._communicating import communicating_nodes
from ._graph import TRANSFERS, Graph, Node, TorchImportError
from ._recorded import recorded_graph, to_recorded

#: How long a rank waits for the others with a call, in seconds. They may communicate outside of their graphs meanwhile.
WAIT = 30.0
#: How many calls later a rank deletes what it has posted.
KEPT = 64


@dataclass
class Job:
    """What this rank has posted in the store of a job."""

    store: Any
    #: The number of its calls, by the ranks that they communicate with.
    calls: dict[tuple[int, ...], int] = field(default_factory=dict)
    #: The graphs that it has posted, by their names.
    graphs: set[str] = field(default_factory=set)
    #: Why it waits for others no longer.
    left: str | None = None


_job: Job | None = None


def job() -> Job | None:
    """The job of this process; None if it has no other rank."""
    global _job
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    store = dist.distributed_c10d._get_default_store()
    if _job is None or _job.store is not store:
        _job = Job(store)
        atexit.register(_end, store, dist.get_rank())
    return _job


def _end(store: Any, rank: int) -> None:
    """Lets the other ranks know that this one has ended: it calls no graph."""
    try:
        store.set(f"hir/end/{rank}", "")
    except RuntimeError:
        pass  # The store has ended with the job.


def leave(reason: str) -> None:
    """Lets no rank wait for this one: it may communicate outside of its graphs."""
    import torch.distributed as dist

    it = job()
    if it is not None and it.left is None:
        it.left = reason
        it.store.set(f"hir/left/{dist.get_rank()}", reason)


def members_of(graph: Graph) -> tuple[int, ...]:
    """The ranks with which a graph communicates, with its own; only that one if it does not communicate."""
    members = {graph.rank}
    for node in communicating_nodes(graph):
        names = [it for it in (*node.args, *node.kwargs.values()) if isinstance(it, str) and it in graph.groups]
        members.update(*(graph.groups[it] for it in names) if names else [range(graph.world)])
    return tuple(sorted(members))


def among(graph: Graph, members: tuple[int, ...]) -> Graph:
    """The graph as that of a job of these ranks only."""
    groups = {
        name: tuple(members.index(it) for it in ranks) for name, ranks in graph.groups.items() if set(ranks) <= set(members)
    }
    return replace(graph, rank=members.index(graph.rank), world=len(members), groups=groups)


@dataclass(frozen=True)
class Together:
    """The graphs that the ranks call together."""

    graphs: tuple[Graph, ...]
    #: A name for each graph, by its contents.
    names: tuple[str, ...]
    #: Whether a rank leaves the run to PyTorch.
    leaves: bool
    #: The ranks of the job that have ended instead; their graphs are empty.
    ended: tuple[int, ...] = ()


class Meeting:
    """A call of a graph of this rank, which is paired with those of other ranks."""

    def __init__(self, job: Job, graph: Graph, members: tuple[int, ...], leaves: bool) -> None:
        """Posts the call. ``graph`` is that among the members; ``leaves`` tells the others that PyTorch runs it here."""
        self._members, self._rank, self._store = members, graph.rank, job.store
        self._call = job.calls.get(members, 0)
        job.calls[members] = self._call + 1
        self._name = graph.name
        text = json.dumps(to_recorded(graph))
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        if digest not in job.graphs:
            job.graphs.add(digest)
            self._store.set(f"hir/graph/{digest}", text)
        self._store.set(self._key("post"), pickle.dumps((digest, leaves, _sequences(graph))))
        if self._call >= KEPT:
            self._store.delete_key(self._key("post", call=self._call - KEPT))
            self._store.delete_key(self._key("decision", 0, self._call - KEPT))

    def _key(self, kind: str, rank: int | None = None, call: int | None = None) -> str:
        team = hashlib.sha256(repr(self._members).encode()).hexdigest()[:16]
        number = self._call if call is None else call
        return f"hir/call/{team}/{number}/{kind}/{self._rank if rank is None else rank}"

    def together(self, limit: float) -> Together | str:
        """Waits for the calls of the other ranks. Returns why they are not paired, the same on all ranks that wait."""
        missing, reason = self._wait(limit)
        ended = tuple(it for it in missing if self._store.check([f"hir/end/{it}"])) if missing else ()
        # All ranks agree: the first one that has all posts, or has waited long enough, decides for all.
        decision = self._store.compare_set(self._key("decision", 0), "", "left" if missing else "complete")
        if decision == b"left" and not ended:
            return reason or "another rank has not waited for this one"
        posts = {it: pickle.loads(self._store.get(self._key("post", it))) for it in self._others(ended)}
        counts: dict[str, int] = {}
        for rank, (_, _, sequences) in posts.items():
            for name, count in sequences.items():
                if counts.setdefault(name, count) != count:
                    return f"rank {self._members[rank]} has communicated with the group `{name}` outside of its graphs"
        graphs = {it: recorded_graph(json.loads(self._store.get(f"hir/graph/{digest}"))) for it, (digest, *_) in posts.items()}
        own = graphs[self._rank]
        nothing = (Node("output", "output", "output", ((),)),)
        everyone = [graphs.get(it) or replace(own, rank=it, nodes=nothing) for it in range(len(self._members))]
        return Together(tuple(everyone), tuple(it[0] for it in posts.values()), any(it[1] for it in posts.values()), ended)

    def _others(self, ended: Sequence[int] = ()) -> list[int]:
        return [it for it, rank in enumerate(self._members) if rank not in ended]

    def _wait(self, limit: float) -> tuple[list[int], str]:
        """Waits for the posts. Returns the ranks of the job that have posted none, and why this one waits no longer."""
        deadline, pause = monotonic() + limit, 0.0005
        while True:
            states = {kind: self._present(f"hir/{kind}/{{}}") for kind in ("end", "left")}
            # What a rank has posted before it ended or left is there now.
            missing = [rank for it, rank in enumerate(self._members) if not self._store.check([self._key("post", it)])]
            names = ", ".join(map(str, missing))
            if not missing:
                return [], ""
            if any(it in states["end"] for it in missing):
                return missing, f"rank {names} has ended"
            if any(it in states["left"] for it in missing):
                return missing, f"rank {names} runs its graphs on PyTorch"
            if monotonic() > deadline:
                return missing, f"rank {names} has called no graph with this rank within {limit:g} s"
            sleep(pause)
            pause = min(2 * pause, 0.02)

    def _present(self, key: str) -> set[int]:
        return {it for it in self._members if self._store.check([key.format(it)])}

    def inputs(self, arrays: list[Any], timeout: float) -> list[list[Any]]:
        """The inputs of all ranks. All of them call this."""
        self._store.set(self._key("inputs"), pickle.dumps(arrays))
        result = []
        for rank in self._others():
            key, deadline, pause = self._key("inputs", rank), monotonic() + timeout, 0.0005
            while not self._store.check([key]):
                if monotonic() > deadline or self._store.check([f"hir/end/{self._members[rank]}"]):
                    raise TorchImportError(f"rank {self._members[rank]} has ended or failed in the {self._name} graph")
                sleep(pause)
                pause = min(2 * pause, 0.02)
            result.append(pickle.loads(self._store.get(key)))
        # All ranks have read the inputs of the call before this one: they have posted those of this one since.
        if self._call > 0:
            self._store.delete_key(self._key("inputs", call=self._call - 1))
        return result


def _sequences(graph: Graph) -> dict[str, int]:
    """How many communications PyTorch has issued on each process group of a graph, by name."""
    import torch.distributed as dist

    found = {}
    for group, name in dist.distributed_c10d._world.pg_names.items():
        used = any(str(name) in node.args for node in communicating_nodes(graph))
        if used and not any(node.target.startswith(TRANSFERS) for node in graph.nodes):
            try:
                found[str(name)] = group._get_sequence_number_for_group()
            except RuntimeError:  # The backend does not count them.
                pass
    return found
