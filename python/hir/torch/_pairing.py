"""Which graphs the ranks call together. A graph without communication needs no other rank.

Calls of graphs that communicate are paired in their order, through the store of the job: no collective is needed, and none is used.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import pickle
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from socket import gethostname
from time import monotonic, sleep
from typing import Any, Callable, Iterator, Sequence

from ._communicating import communicating_nodes
from ._fx import groups_by_name
from ._graph import TRANSFERS, Graph, Node, TorchImportError
from ._recorded import recorded_graph, to_recorded

#: How long a rank waits for the others with a call, in seconds. They may communicate outside of their graphs meanwhile.
WAIT = 30.0
#: How much longer they have while another backend compiles, in seconds.
BUSY = 600.0
#: How many calls later a rank deletes what it has posted.
KEPT = 64


class Store:
    """The store of a job, by a client of its own: calls of others may block theirs. Names the cause if the process that hosts it has ended."""

    def __init__(self, shared: Any) -> None:
        self.shared, self._own = shared, shared.clone()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        import torch.distributed as dist

        def call(*args: Any) -> Any:
            try:
                return getattr(self._own, name)(*args)
            except (dist.DistNetworkError, dist.DistStoreError) as error:
                cause = str(error).partition("\n")[0]
                raise TorchImportError(f"the store of the job is lost, with the process that hosts it, torchrun or rank 0: {cause}") from error

        return call


@dataclass
class Job:
    """What this rank has posted in the store of a job."""

    store: Store
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
    if _job is None or _job.store.shared is not store:
        _job = Job(Store(store))
        _job.store.set(f"hir/process/{dist.get_rank()}", f"{os.getpid()} {gethostname()}")
        atexit.register(_end, _job.store, dist.get_rank())
    return _job


def _end(store: Store, rank: int) -> None:
    """Lets the other ranks know that this one has ended: it calls no graph."""
    with suppress(TorchImportError):  # The store may have ended with the job.
        store.set(f"hir/end/{rank}", "")


def leave(reason: str) -> None:
    """Lets no rank wait for this one: it may communicate outside of its graphs."""
    import torch.distributed as dist

    it = job()
    if it is not None and it.left is None:
        it.left = reason
        it.store.set(f"hir/left/{dist.get_rank()}", reason)


@contextmanager
def busy() -> Iterator[None]:
    """Lets the other ranks wait longer for this one, while another backend compiles, which may take minutes."""
    import torch.distributed as dist

    it = job()
    if it is None:
        yield
        return
    key = f"hir/busy/{dist.get_rank()}"
    it.store.set(key, "")
    try:
        yield
    finally:
        it.store.delete_key(key)


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


def graphs_of_all_ranks(graph: Graph, timeout: float) -> Sequence[Graph]:
    """The graphs that the ranks of the job have captured, each rank its next one."""
    this_job = job()
    if this_job is None:
        return [graph]
    pairing = Caller(graph, tuple(range(graph.world))).call(this_job, leaves=False)
    together = pairing.together(timeout)
    if isinstance(together, str):
        raise TorchImportError(f"the graphs of the ranks cannot be compared: {together}")
    return pairing.graphs(together)


@dataclass(frozen=True)
class Together:
    """The graphs that the ranks call together."""

    #: A name for each graph, by its contents; None if the rank has ended instead.
    names: tuple[str | None, ...]
    #: Whether a rank leaves the run to PyTorch.
    leaves: bool


class Caller:
    """A graph of this rank that it calls together with others."""

    def __init__(self, graph: Graph, members: tuple[int, ...]) -> None:
        """``graph`` is that among the members."""
        self.graph, self.members = graph, members
        self.text = json.dumps(to_recorded(graph))
        self.name = hashlib.sha256(self.text.encode()).hexdigest()[:32]
        self.team = hashlib.sha256(repr(members).encode()).hexdigest()[:16]
        calls = [it for it in communicating_nodes(graph) if not it.target.startswith(TRANSFERS)]
        self._groups = {it for node in calls for it in node.args if isinstance(it, str) and it in graph.groups}

    def call(self, job: Job, leaves: bool) -> Pairing:
        """Posts a call. ``leaves`` tells the other ranks that PyTorch runs it here."""
        number = job.calls.get(self.members, 0)
        job.calls[self.members] = number + 1
        if self.name not in job.graphs:
            job.graphs.add(self.name)
            job.store.set(f"hir/graph/{self.name}", self.text)
        pairing = Pairing(job.store, self, number)
        job.store.set(pairing.key("post"), pickle.dumps((self.name, leaves, self._communications())))
        if number >= KEPT:
            for key in (pairing.key("post", call=number - KEPT), pairing.key("decision", 0, number - KEPT)):
                job.store.delete_key(key)
        return pairing

    def _communications(self) -> dict[str, int]:
        """How many communications PyTorch has issued on each process group of the graph, by name."""
        found = {}
        for name, group in groups_by_name().items():
            if name in self._groups:
                with suppress(RuntimeError):  # Not all backends count them.
                    found[name] = group._get_sequence_number_for_group()
        return found


class Pairing:
    """A call of this rank, which is paired with those of other ranks."""

    def __init__(self, store: Store, caller: Caller, call: int) -> None:
        self._store, self._caller, self._call, self._members = store, caller, call, caller.members
        self._everyone = range(len(self._members))

    def key(self, kind: str, rank: int | None = None, call: int | None = None) -> str:
        number, rank = self._call if call is None else call, self._caller.graph.rank if rank is None else rank
        return f"hir/call/{self._caller.team}/{number}/{kind}/{rank}"

    def together(self, limit: float) -> Together | str:
        """Waits for the calls of the other ranks. Returns why they are not paired, the same on all ranks that wait."""
        missing, reason = self._wait(limit)
        has_ended = bool(missing) and all(self._has("end", it) for it in missing)
        # All ranks agree: the first one that has all posts, or has waited long enough, decides for all.
        decision = self._store.compare_set(self.key("decision", 0), "", "left" if missing else "complete")
        if decision == b"left" and not has_ended:
            return reason or "another rank has not waited for this one"
        present = [it for it in self._everyone if not has_ended or it not in missing]
        posts = {it: pickle.loads(self._store.get(self.key("post", it))) for it in present}
        counts: dict[str, int] = {}
        for rank, (_, _, communications) in posts.items():
            for name, count in communications.items():
                if counts.setdefault(name, count) != count:
                    return f"rank {self._members[rank]} has communicated with the group `{name}` outside of its graphs"
        names = tuple(posts[it][0] if it in posts else None for it in self._everyone)
        return Together(names, any(it[1] for it in posts.values()))

    def _has(self, state: str, rank: int) -> bool:
        """Whether a rank has said that it has ended (`end`), waits for others no longer (`left`), or compiles (`busy`)."""
        return bool(self._store.check([f"hir/{state}/{self._members[rank]}"]))

    def _end_killed(self, rank: int) -> None:
        """Says for a rank of this machine that it has ended, if its process was killed."""
        key = f"hir/process/{self._members[rank]}"
        number, _, host = self._store.get(key).decode().partition(" ") if self._store.check([key]) else ("", "", "")
        if host == gethostname():
            try:
                os.kill(int(number), 0)
            except ProcessLookupError:
                _end(self._store, self._members[rank])

    def _wait(self, limit: float) -> tuple[list[int], str]:
        """Waits for the posts. Returns the ranks that have posted none, and why this one waits no longer."""
        deadline, latest, pause = monotonic() + limit, monotonic() + limit + BUSY, 0.0005
        while not self._store.check([self.key("post", it) for it in self._everyone]):
            states = {state: [it for it in self._everyone if self._has(state, it)] for state in ("end", "left")}
            # What a rank has posted before it ended or left is there now.
            missing = [it for it in self._everyone if not self._store.check([self.key("post", it)])]
            names = "rank " + ", ".join(str(self._members[it]) for it in missing)
            for it in missing:
                self._end_killed(it)
            if set(missing) & set(states["end"]):
                return missing, f"{names} has ended"
            if set(missing) & set(states["left"]):
                return missing, f"{names} runs its graphs on PyTorch"
            if any(self._has("busy", it) for it in missing):
                deadline = max(deadline, min(monotonic() + limit, latest))
            if missing and monotonic() > deadline:
                return missing, f"{names} has called no graph with this rank within {limit:g} s"
            sleep(pause)
            pause = min(2 * pause, 0.02)
        return [], ""

    def graphs(self, together: Together) -> list[Graph]:
        """The graphs that ranks call together; that of a rank that has ended is empty."""

        def graph(rank: int, name: str | None) -> Graph:
            if name is None:
                return replace(self._caller.graph, rank=rank, nodes=(Node("output", "output", "output", ((),)),))
            return recorded_graph(json.loads(self._store.get(f"hir/graph/{name}")))

        return [graph(rank, name) for rank, name in enumerate(together.names)]

    def inputs(self, arrays: list[Any], timeout: float) -> list[list[Any]]:
        """The inputs of all ranks. All of them call this."""
        self._store.set(self.key("inputs"), pickle.dumps(arrays))
        deadline, pause = monotonic() + timeout, 0.0005
        keys = [self.key("inputs", it) for it in self._everyone]
        while not self._store.check(keys):
            if monotonic() > deadline or any(self._has("end", it) for it in self._everyone):
                raise TorchImportError(f"another rank has ended or failed in the {self._caller.graph.name} graph")
            sleep(pause)
            pause = min(2 * pause, 0.02)
        result = [pickle.loads(self._store.get(it)) for it in keys]
        # All ranks have read the inputs of the call before this one: they have posted those of this one since.
        if self._call > 0:
            self._store.delete_key(self.key("inputs", call=self._call - 1))
        return result
