"""Runs programs on the GPU of this rank, by hir's executor inside of the PyTorch process."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections import Counter
from itertools import count
from math import prod
from time import monotonic, sleep
from typing import Any, Sequence

from .. import _hir
from .._diagnostic import HirError
from ._attention import library_of
from ._builder import Value
from ._graph import TorchImportError
from ._program import TorchProgram
from ._watch import WATCH

#: What CUDA reads when it starts: streams that wait for other ranks must not block the streams that they wait for.
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_DEVICE_MAX_COPY_CONNECTIONS": "32"}

#: What is copied and which libraries are used, for users who ask for messages of the level INFO.
LOG = logging.getLogger("hir.torch")

#: Bytes to which cuBLASLt and the executor want tensors to be aligned.
ALIGNMENT = 256


def set_environment() -> None:
    """Sets what CUDA reads when it starts, unless it has started or the variables are set."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)


#: Numbers keys of the store: also another process group may have the same store.
_rounds = count()


class Exchange:
    """Exchanges messages between the ranks through the store of the job. An error of one rank ends the waits of all."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self._store, self.rank, self.world = store, rank, world
        #: How many seconds a rank may let the others wait.
        self._timeout = 0.0
        self._prefix = ""
        self._count = 0
        #: The error of another rank that has ended a wait.
        self._heard: str | None = None

    def __call__(self, mine: bytes) -> list[bytes]:
        """Returns the messages of all ranks. All ranks have to call this."""
        number, self._count = self._count, self._count + 1
        return self._gather(f"{self._prefix}/{number}", mine)

    def together(self, work: Any, timeout: float) -> Any:
        """Does work with exchanges on all ranks. If it fails on a rank, all ranks raise the error of the first such rank."""
        if self.world == 1:
            return work()
        self._timeout = timeout
        self._prefix, self._count, self._heard = f"hir/gpu/{next(_rounds)}", 0, None
        result, text = None, ""
        try:
            result = work()
        except (HirError, TorchImportError) as error:
            text = self._heard or str(error) or type(error).__name__
            self._store.set(f"{self._prefix}/failed", text)
        ends = [it.decode() for it in self._gather(f"{self._prefix}/end", text.encode(), ends=True)]
        failed = next((it for it in ends if it), None)
        if failed:
            raise HirError(failed)
        return result

    def _gather(self, key: str, mine: bytes, ends: bool = False) -> list[bytes]:
        if self.world == 1:
            return [mine]
        self._store.set(f"{key}/{self.rank}", mine)
        return [self._message(f"{key}/{rank}", rank, ends) for rank in range(self.world)]

    def _message(self, key: str, rank: int, ends: bool) -> bytes:
        deadline, pause = monotonic() + self._timeout, 0.001
        # A wait of the store would print a warning each time that it ends without an answer.
        while not self._store.check([key]):
            if not ends and self._store.check([f"{self._prefix}/failed"]):
                self._heard = self._store.get(f"{self._prefix}/failed").decode()
                raise TorchImportError(self._heard)
            if monotonic() > deadline:
                raise TorchImportError(f"rank {rank} does not answer within {self._timeout:g} s")
            sleep(pause)
            pause = min(2 * pause, 0.05)
        return bytes(self._store.get(key))


#: The GPU of this process, for programs of all ranks (False) and of this rank alone (True), with the store and the ordinal for which it
#: was opened.
_opened: dict[bool, tuple[Any, int, _hir.Gpu, Exchange]] = {}


def gpu_of(ordinal: int, timeout: float, alone: bool = False) -> tuple[_hir.Gpu, Exchange]:
    """The GPU of this rank. Programs of the same ranks share it, because they share communicators and follow each other."""
    import torch.distributed as dist

    is_job = not alone and dist.is_available() and dist.is_initialized()
    store = dist.distributed_c10d._get_default_store() if is_job else None
    if alone not in _opened or _opened[alone][0] is not store or _opened[alone][1] != ordinal:
        rank, world = (dist.get_rank(), dist.get_world_size()) if is_job else (0, 1)
        exchange = Exchange(store, rank, world)
        gpu = exchange.together(lambda: _hir.Gpu(ordinal, rank, world, exchange, library_of(ordinal)), timeout)
        _opened[alone] = (store, ordinal, gpu, exchange)
    return _opened[alone][2:]


#: What runs need besides inputs and outputs, by ordinal of the GPU, and the stream on which it was allocated.
_temporary: dict[int, tuple[Any, int]] = {}

#: The programs of each GPU that are in use, by ordinal.
_in_use: Counter[int] = Counter()


def _end_program(ordinal: int) -> None:
    """Gives the memory of a GPU back to PyTorch's allocator behind its last program."""
    _in_use[ordinal] -= 1
    if not _in_use[ordinal]:
        _temporary.pop(ordinal, None)


def runs_with_others() -> bool:
    """Whether programs of this rank communicate on its GPU."""
    return False in _opened and _opened[False][3].world > 1


class GpuProgram:
    """A program that is ready to run on the GPU of this rank. All its ranks have to create it, and to run it equally often."""

    def __init__(
        self,
        program: TorchProgram,
        passes: str,
        rank: int,
        device: Any,
        *,
        returned: int,
        donated: Sequence[int],
        timeout: float,
        graph: bool,
    ) -> None:
        """The first ``returned`` outputs are those of the function. The others are only saved for the backward graph.

        A run may write to the inputs with the numbers ``donated``, which nothing needs afterwards and which share no memory with other inputs.
        """
        import torch

        self._device = device
        imported = program._imported
        self._inputs, self._outputs = imported.inputs[rank], imported.outputs[rank]
        #: The positions of the inputs by their names.
        self._positions = {it.name: i for i, it in enumerate(self._inputs) if isinstance(it, Value)}
        world = program.lowered(passes)._world(program.ranks)
        gpu, self._exchange = gpu_of(device.index, timeout, alone=program.ranks == 1)
        # The caching allocator may hold all memory.
        torch.cuda.empty_cache()
        self._timeout = timeout
        given = [it.name for it in (self._inputs[number] for number in donated) if isinstance(it, Value)]
        self._native: _hir.GpuProgram = self._exchange.together(lambda: gpu.load(world, graph, given), timeout)
        self._buffers = self._native.buffers()
        self._input_ports = {it[0]: it for it in self._native.inputs() if it}
        self._output_ports = {it[0]: it for it in self._native.outputs() if it}
        ports = [*self._input_ports.values(), *self._output_ports.values()]
        #: The buffers that are no inputs or outputs.
        self._temporary = sorted(set(range(len(self._buffers))) - {it[1] for it in ports})
        #: The outputs that are only saved for the backward graph, which may share memory with each other.
        self._saved = self._shareable(returned)
        self._has_run = False
        self._name = imported.name
        #: The inputs that runs have copied, by number.
        self._copied: set[int] = set()
        for note in self._native.notes():
            LOG.info("%s: %s", self._name, note)
        WATCH.add(f"the program `{self._name}`", self._native.progress, timeout)
        _in_use[device.index] += 1
        weakref.finalize(self, _end_program, device.index)

    def saved(self) -> dict[int, tuple[tuple[int, ...], bool]]:
        """The outputs that are saved for the backward graph, by number: the strides in memory, and whether no other tensor has this memory."""
        ports = [*self._input_ports.values(), *self._output_ports.values()]
        found = {}
        for number in self._saved:
            value = self._outputs[number]
            buffer = self._output_ports[value.name][1]
            found[number] = (self._strides(value), sum(it[1] == buffer for it in ports) == 1)
        return found

    def run(self, args: Sequence[Any], expected: Sequence[Any]) -> list[Any]:
        """Runs the program behind the work on the current stream, and returns its outputs, on which this stream may work.

        ``expected`` are the outputs of the graph: tensors whose type, shape and strides those of the results are, but what is
        only saved has other strides and is a part of other tensors. An output that is an input is that object.
        """
        import torch

        tensors: list[Any] = [None] * len(self._buffers)
        for i, (value, tensor) in enumerate(zip(self._inputs, args)):
            if isinstance(value, Value):
                tensors[self._input_ports[value.name][1]] = self._bindable(i, tensor)
        # First, so that outputs get the memory that a smaller program before this one had.
        for number in self._temporary:
            tensors[number] = self._temporary_memory(self._buffers[number][1])
        owners = self._allocate(tensors, expected)
        stream = self._stream()
        addresses = [0 if it is None else it.data_ptr() for it in tensors]
        if self._has_run:
            self._native.run(addresses, stream)
        else:
            # The first run prepares libraries together with the other ranks, for a moment in memory that the allocator has not.
            torch.cuda.empty_cache()
            self._exchange.together(lambda: self._native.run(addresses, stream), self._timeout)
            self._has_run = True
        results: list[Any] = []
        for number, (value, like) in enumerate(zip(self._outputs, expected)):
            if not isinstance(value, Value):
                results.append(value)
            elif value.name in self._positions:
                results.append(args[self._positions[value.name]])
            else:
                results.append(self._result(value, like, tensors, owners, number in self._saved))
        return results

    def _temporary_memory(self, size: int) -> Any:
        """Memory for a run. All programs of the GPU use the same: their runs follow each other.

        Taken from the allocator anew for each run, it would be split for other tensors, and the next run would need more.
        """
        import torch

        known, stream = _temporary.get(self._device.index, (None, 0))
        if known is None or known.numel() < size:
            # The allocator may give the memory of the last program to this one.
            del known
            _temporary.pop(self._device.index, None)
            known, stream = _temporary[self._device.index] = self._new((size,), (1,), torch.uint8), self._stream()
        elif stream != self._stream():
            # Once a larger program takes its place, its memory is free behind this run.
            self._keep(known)
        return known

    def _keep(self, tensor: Any) -> None:
        """Keeps memory, once nothing refers to it, until the work so far on the current stream is done."""
        import torch

        tensor.record_stream(torch.cuda.current_stream(self._device))

    def _bindable(self, number: int, tensor: Any) -> Any:
        """The tensor of an input, or a copy that is contiguous, aligned and on this GPU."""
        tensor = tensor.detach()
        is_here = tensor.device == self._device and tensor.is_contiguous()
        if is_here and (tensor.data_ptr() % ALIGNMENT == 0 or tensor.numel() == 0):
            return tensor
        if number not in self._copied:
            self._copied.add(number)
            LOG.info("%s: input %d is copied in each run: strides %s, device %s", self._name, number, tensor.stride(), tensor.device)
        return self._new(tensor.shape, contiguous_strides(tensor.shape), tensor.dtype).copy_(tensor)

    def _stream(self) -> int:
        import torch

        stream: int = torch.cuda.current_stream(self._device).cuda_stream
        return stream

    def _new(self, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
        import torch

        return torch.empty_strided(shape, strides, dtype=dtype, device=self._device)

    def _allocate(self, tensors: list[Any], expected: Sequence[Any]) -> dict[int, str]:
        """Allocates the buffers of outputs. Returns those that are exactly one output, with its name."""
        owners: dict[int, str] = {}
        for value, like in zip(self._outputs, expected):
            if not isinstance(value, Value) or value.name not in self._output_ports:
                continue
            _, buffer, offset, _, _ = self._output_ports[value.name]
            if tensors[buffer] is not None:
                continue
            length = self._buffers[buffer][1]
            strides = self._strides(value)
            if offset == 0 and prod(value.shape) == length and is_dense(value.shape, strides):
                tensors[buffer] = self._new(value.shape, strides, like.dtype)
                owners[buffer] = value.name
            else:
                tensors[buffer] = self._new((length,), (1,), like.dtype)
        return owners

    def _shareable(self, returned: int) -> set[int]:
        """The outputs behind the first ones that share no memory with what the function returns, which its caller may change."""
        own = {
            number: self._output_ports[value.name][1]
            for number, value in enumerate(self._outputs)
            if isinstance(value, Value) and value.name in self._output_ports and value.name not in self._positions
        }
        taken = {buffer for number, buffer in own.items() if number < returned}
        return {number for number, buffer in own.items() if number >= returned and buffer not in taken}

    def _strides(self, value: Value) -> tuple[int, ...]:
        """The strides of an output, without the axes of the mesh."""
        _, _, _, shape, strides = self._output_ports[value.name]
        first = len(shape) - value.ndim
        if tuple(shape[first:]) != value.shape:
            raise TorchImportError(f"the output `{value.name}` has the shape {shape[first:]}, not {list(value.shape)}")
        return tuple(strides[first:])

    def _result(self, value: Value, like: Any, tensors: list[Any], owners: dict[int, str], is_saved: bool) -> Any:
        _, buffer, offset, _, _ = self._output_ports[value.name]
        tensor = tensors[buffer]
        is_own = owners.get(buffer) == value.name
        if not is_own:
            tensor = tensor.as_strided(value.shape, self._strides(value), tensor.storage_offset() + offset)
        if is_saved or same_strides(value.shape, tensor.stride(), like.stride()) and (is_own or self._buffers[buffer][3]):
            return tensor
        return self._new(like.shape, like.stride(), like.dtype).copy_(tensor)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(max(it, 1) for it in shape[dim + 1 :]) for dim in range(len(shape)))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor fills its memory without gaps and overlaps."""
    step = 1
    for stride, extent in sorted((stride, extent) for stride, extent in zip(strides, shape) if extent != 1):
        if stride != step:
            return False
        step *= extent
    return True


def same_strides(shape: Sequence[int], some: Sequence[int], others: Sequence[int]) -> bool:
    """Whether strides are the same where they have an effect."""
    return all(extent == 1 or a == b for extent, a, b in zip(shape, some, others))
