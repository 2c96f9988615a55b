"""A process group that reports its calls: what PyTorch's calls of each group give and receive."""

from __future__ import annotations

import sys
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist

from ._calls import RECEIVE, SEND, Group
from ._rank import Issued, Rank

#: The output of a call with where it comes from.
Output = tuple[Any, tuple[tuple[int, int], ...]]


class RecordedWork(dist._Work):  # type: ignore[misc]
    """The handle of a call."""

    def __init__(self, rank: Rank, issued: Sequence[Issued], result: list[Any]) -> None:
        super().__init__()
        self._rank, self._calls, self._tensors = rank, issued, result

    def wait(self, timeout: Any = None) -> bool:
        for it in self._calls:
            self._rank.wait(it)
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        is_completed = all(it.event.is_set() for it in self._calls)
        if is_completed:
            self.wait()
        return is_completed

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        return None

    def result(self) -> list[Any]:
        return self._tensors

    def get_future(self) -> Any:
        if len(self._calls) == 1:
            # The frame of the caller does not name this function if C++ calls it.
            return self._rank.future(self._calls[0], "get_future" in sys._getframe(1).f_code.co_names)
        # A batch: it is waited for here.
        self.wait()
        future = torch.futures.Future()
        future.set_result(self._tensors)
        return future

    def source_rank(self) -> int:
        return self._source_rank()

    def _source_rank(self) -> int:
        self.wait()
        return self._calls[0].source


class RecordedGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group whose calls go to the recorder, and whose data goes through the files of the ranks."""

    def __init__(self, rank: Rank, about: Group, asked: str) -> None:
        super().__init__(about.ranks.index(rank.rank), len(about.ranks))
        self._recorder = rank
        self._asked = asked
        self._about = about
        self._batch: list[Issued] | None = None
        self._batches = 0

    # What PyTorch asks.

    def getBackendName(self) -> str:
        # Under the name of a backend of its own, the C++ of PyTorch looks for that.
        return "hir_job"

    def name(self) -> str:
        return self._asked

    def getGroupName(self) -> str:
        return self._about.name

    def setGroupName(self, name: str) -> None:
        pass

    def _set_group_name(self, name: str) -> None:
        pass

    def getGroupDesc(self) -> str:
        return self._about.description

    def setGroupDesc(self, description: str) -> None:
        self._set_group_desc(description)

    def _set_group_desc(self, description: str) -> None:
        self._about = self._about._replace(description=description)
        self._recorder.send("group", self._about)

    @property
    def group_name(self) -> str:
        return self._about.name

    @property
    def group_desc(self) -> str:
        return self._about.description

    @property
    def bound_device_id(self) -> None:
        return None

    @bound_device_id.setter
    def bound_device_id(self, device: Any) -> None:
        pass

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device("cpu")]

    def _get_backend(self, device: Any) -> RecordedGroup:
        return self

    def get_backend(self, device: Any) -> RecordedGroup:
        return self

    @property
    def supports_coalescing(self) -> bool:
        # Versions differ in whether they ask this of a group in Python: `batch` begins and ends a batch itself.
        return False

    @property
    def supports_splitting(self) -> bool:
        return False

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False

    def shutdown(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def set_timeout(self, timeout: Any) -> None:
        pass

    def _set_default_timeout(self, timeout: Any) -> None:
        pass

    # How calls are reported.

    def _issue(
        self,
        name: str,
        kind: str,
        pieces: Sequence[Any],
        outputs: Sequence[Output],
        options: Any,
        *,
        inputs: Sequence[Any],
        results: Sequence[Any],
        root: int | None = None,
        reduction: Any = None,
        **more: Any,
    ) -> RecordedWork:
        for tensor in (*inputs, *results):
            if tensor.layout != torch.strided or tensor.is_meta:
                raise NotImplementedError(f"hir job: {name} of a tensor that is not dense (layout {tensor.layout}, device {tensor.device})")
        in_batch = self._batch is not None
        issued = self._recorder.issue(
            self._about,
            name,
            kind,
            pieces,
            outputs,
            inputs=inputs,
            results=results,
            root=root,
            reduction=_reduction(reduction) if reduction is not None else None,
            batch=self._batches if in_batch else None,
            is_blocking=not in_batch and getattr(options, "asyncOp", True) is False,
            value=list(results),
            **more,
        )
        if self._batch is not None:
            self._batch.append(issued)
        return RecordedWork(self._recorder, [issued], list(results))

    def _start_coalescing(self, device: Any = None) -> None:
        self._batches += 1
        self._batch = []

    start_coalescing = startCoalescing = _start_coalescing

    def _end_coalescing(self, device: Any = None) -> RecordedWork:
        batch, self._batch = self._batch or [], None
        self._recorder.end_batch(self._batches)
        return RecordedWork(self._recorder, batch, [target for it in batch for target, _ in it.outputs])

    end_coalescing = endCoalescing = _end_coalescing

    def batch(self, issue: Callable[[], list[Any]]) -> list[Any]:
        """Issues messages as ``batch_isend_irecv`` does."""
        if not self._about.is_nccl:
            return issue()
        self._start_coalescing()
        try:
            issue()
        finally:
            work = self._end_coalescing()
        return [work]

    def _all(self, piece: int = 0) -> tuple[tuple[int, int], ...]:
        return tuple((member, piece) for member in range(self.size()))

    # Collectives.

    def allreduce(self, tensors: Any, options: Any = None, **_: Any) -> RecordedWork:
        tensors = _list(tensors)
        options = options or dist.AllreduceOptions()
        outputs = [(it, self._all(at)) for at, it in enumerate(tensors)]
        return self._issue("all_reduce", "all_reduce", tensors, outputs, options, inputs=tensors, results=tensors, reduction=options.reduceOp)

    def allreduce_coalesced(self, tensors: Any, options: Any = None) -> RecordedWork:
        options = options or dist.AllreduceCoalescedOptions()
        outputs = [(it, self._all(at)) for at, it in enumerate(tensors)]
        return self._issue(
            "allreduce_coalesced", "all_reduce", tensors, outputs, options, inputs=tensors, results=tensors, reduction=options.reduceOp
        )

    def broadcast(self, tensors: Any, options: Any = None, **more: Any) -> RecordedWork:
        tensors = _list(tensors)
        root = _root(options, more)
        is_root = root == self.rank()
        outputs = [] if is_root else [(it, ((root, at),)) for at, it in enumerate(tensors)]
        return self._issue("broadcast", "broadcast", tensors if is_root else [], outputs, options, inputs=tensors, results=tensors, root=root)

    def reduce(self, tensors: Any, options: Any = None, **more: Any) -> RecordedWork:
        tensors = _list(tensors)
        options = options or dist.ReduceOptions()
        root = _root(options, more)
        outputs = [(it, self._all(at)) for at, it in enumerate(tensors)] if root == self.rank() else []
        return self._issue(
            "reduce", "reduce", tensors, outputs, options, inputs=tensors, results=tensors, root=root, reduction=options.reduceOp
        )

    def allgather(self, outputs: Any, inputs: Any, options: Any = None, **_: Any) -> RecordedWork:
        outputs, inputs = ([outputs], [inputs]) if isinstance(inputs, torch.Tensor) else (outputs, inputs)
        taken = [(it, ((member, at),)) for at, several in enumerate(outputs) for member, it in enumerate(several)]
        return self._issue("all_gather", "all_gather", inputs, taken, options, inputs=inputs, results=[it for several in outputs for it in several])

    def allgather_coalesced(self, outputs: Any, inputs: Any, options: Any = None) -> RecordedWork:
        return self.allgather(outputs, inputs, options)

    def _gather_whole(self, name: str, outputs: Sequence[Any], inputs: Sequence[Any], options: Any) -> RecordedWork:
        taken = [(it, ((member, at),)) for at, whole in enumerate(outputs) for member, it in enumerate(self._parts(whole))]
        return self._issue(name, "all_gather", inputs, taken, options, inputs=inputs, results=outputs)

    def all_gather_single(self, output: Any, input: Any, options: Any = None, **_: Any) -> RecordedWork:
        return self._gather_whole("_all_gather_base", [output], [input], options)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, options: Any = None) -> RecordedWork:
        return self._gather_whole("all_gather_into_tensor_coalesced", outputs, inputs, options)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Any, options: Any = None, **_: Any) -> RecordedWork:
        outputs, inputs = ([outputs], [inputs]) if isinstance(outputs, torch.Tensor) else (outputs, inputs)
        options = options or dist.ReduceScatterOptions()
        size, own = self.size(), self.rank()
        given = [it for several in inputs for it in several]
        taken = [(it, self._all(at * size + own)) for at, it in enumerate(outputs)]
        return self._issue(
            "reduce_scatter", "reduce_scatter", given, taken, options, inputs=given, results=outputs, reduction=options.reduceOp
        )

    def _scatter_whole(self, name: str, outputs: Sequence[Any], inputs: Sequence[Any], options: Any) -> RecordedWork:
        options = options or dist.ReduceScatterOptions()
        given = [part for it in inputs for part in self._parts(it)]
        taken = [(it, self._all(at * self.size() + self.rank())) for at, it in enumerate(outputs)]
        return self._issue(name, "reduce_scatter", given, taken, options, inputs=inputs, results=outputs, reduction=options.reduceOp)

    def reduce_scatter_single(self, output: Any, input: Any, options: Any = None, **_: Any) -> RecordedWork:
        return self._scatter_whole("_reduce_scatter_base", [output], [input], options)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, options: Any = None) -> RecordedWork:
        return self._scatter_whole("reduce_scatter_tensor_coalesced", outputs, inputs, options)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, outputs: Any, inputs: Any, options: Any = None, **more: Any) -> RecordedWork:
        root = _root(options, more)
        inputs = _list(inputs)
        taken = [(it, ((member, at),)) for at, several in enumerate(outputs or ()) for member, it in enumerate(several)] if root == self.rank() else []
        return self._issue("gather", "gather", inputs, taken, options, inputs=inputs, results=[it for it, _ in taken], root=root)

    def gather_single(self, output: Any, input: Any, options: Any = None, **more: Any) -> RecordedWork:
        return self.gather([self._parts(output)] if output is not None else [], [input], options, **more)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, inputs: Any, options: Any = None, **more: Any) -> RecordedWork:
        root = _root(options, more)
        given = [it for several in inputs for it in several] if root == self.rank() else []
        outputs = _list(outputs)
        taken = [(it, ((root, self.rank()),)) for it in outputs]
        return self._issue("scatter", "scatter", given, taken, options, inputs=given, results=outputs, root=root)

    def alltoall(self, outputs: Any, inputs: Any, options: Any = None, **_: Any) -> RecordedWork:
        taken = [(it, ((member, self.rank()),)) for member, it in enumerate(outputs)]
        return self._issue("all_to_all", "all_to_all", inputs, taken, options, inputs=inputs, results=outputs)

    def all_to_all_single(self, output: Any, input: Any, output_sizes: Any, input_sizes: Any, options: Any = None, **_: Any) -> RecordedWork:
        given, parts = self._parts(input, input_sizes), self._parts(output, output_sizes)
        taken = [(it, ((member, self.rank()),)) for member, it in enumerate(parts)]
        return self._issue("all_to_all_single", "all_to_all", given, taken, options, inputs=[input], results=[output])

    alltoall_base = all_to_all_single

    def barrier(self, options: Any = None, **more: Any) -> RecordedWork:
        return self._issue("barrier", "barrier", [], [], options or more.get("opts"), inputs=[], results=[])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self.barrier().wait()

    # Messages.

    def send(self, tensors: Any, to: int, tag: int = 0) -> RecordedWork:
        tensors = _list(tensors)
        return self._issue(f"send {self.rank()}->{to}", SEND, tensors, [], None, inputs=tensors, results=[], peer=to, tag=tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> RecordedWork:
        tensors = _list(tensors)
        outputs = [(it, ((0, at),)) for at, it in enumerate(tensors)]
        return self._issue(f"recv {self.rank()}<-{source}", RECEIVE, [], outputs, None, inputs=[], results=tensors, peer=source, tag=tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> RecordedWork:
        if self._about.is_nccl:
            raise RuntimeError("NCCL does not receive from any rank: `recv` needs `src`")
        tensors = _list(tensors)
        outputs = [(it, ((0, at),)) for at, it in enumerate(tensors)]
        return self._issue(f"recv {self.rank()}<-?", RECEIVE, [], outputs, None, inputs=[], results=tensors, peer=None, tag=tag)

    recvAnysource = recv_anysource

    def _parts(self, whole: Any, sizes: Any = None) -> list[Any]:
        """Returns the parts of a tensor for the members: of given sizes along the first axis, or equal."""
        count = self.size()
        if not sizes and whole.numel() % count:
            raise ValueError(f"a tensor of {whole.numel()} elements has no equal parts for {count} ranks")
        with self._recorder.uses.quiet():
            whole = whole.detach()
            if sizes:
                return list(torch.split(whole, [int(it) for it in sizes]))
            if whole.is_contiguous() and whole.numel():
                return list(whole.view(-1).split(whole.numel() // count))
            return list(whole.chunk(count)) if whole.numel() else [whole.view(-1)] * count


def _list(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _root(options: Any, more: dict[str, Any]) -> int:
    return int(options.rootRank if options is not None and hasattr(options, "rootRank") else more.get("root", options or 0))


def _reduction(reduction: Any) -> tuple[str, float]:
    op = getattr(reduction, "op", reduction)
    name = str(op).rpartition(".")[2].lower()
    factor = getattr(reduction, "factor", None) if name == "premul_sum" else None
    return name, float(factor) if factor is not None else 1.0
