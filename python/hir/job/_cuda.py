"""A stand-in for GPUs (``--cuda``): what a script puts on a GPU is on the CPU, and streams and events order what waits for communications.

The functions of ``torch.cuda`` that the stand-in lacks fail as they do without a GPU: kernels of CUDA or Triton.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import threading
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from ._uses import Seen, Uses, enter_in_all_threads

#: What the functions of `torch.cuda` and `torch.accelerator` return that tell something of a device.
CONSTANTS: dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "is_bf16_supported": True,
    "get_device_name": "stand-in of hir job",
    "get_device_capability": (9, 0),
    "mem_get_info": (1 << 36, 1 << 36),
    "is_current_stream_capturing": False,
    "memory_stats": {},
    "memory_summary": "",
}
#: The functions that return 0 or nothing.
ZEROS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "utilization")
NOTHING = (
    "init", "_lazy_init", "set_device", "set_device_index", "empty_cache", "manual_seed", "manual_seed_all", "seed", "seed_all", "reset_peak_memory_stats",
    "reset_max_memory_allocated", "ipc_collect", "set_per_process_memory_fraction",
)  # fmt: skip


class Stream:
    """A stream. What it starts is complete at once, but what it has waited for is known."""

    uses: Uses
    count = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        # As in PyTorch, there are 32 besides the default one: then they are used again.
        self.cuda_stream = self.stream_id = min(Stream.count, 1 + (Stream.count - 1) % 32)
        Stream.count += 1
        self.uses.add_stream(self.stream_id)
        self._before: list[Stream] = []

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, other: Stream) -> None:
        other.record_event().wait(self)

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> Stream:
        self._before.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_stream(self._before.pop())


class Event:
    """An event: what its stream had done and waited for when it was recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._seen = Seen(frozenset(), {})

    def record(self, stream: Stream | None = None) -> None:
        self._seen = Stream.uses.seen_by((stream or current_stream()).stream_id)

    def wait(self, stream: Stream | None = None) -> None:
        Stream.uses.follow((stream or current_stream()).stream_id, self._seen)

    def synchronize(self) -> None:
        Stream.uses.synchronize(self._seen)

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Event) -> float:
        return 0.0


_threads = threading.local()


def current_stream(*_: Any, **__: Any) -> Stream:
    """Returns the stream of this thread."""
    return getattr(_threads, "stream", None) or _default[0]


def set_stream(stream: Stream | None) -> None:
    _threads.stream = stream


#: The default stream, which `stand_in` makes.
_default: list[Stream] = []


def _is_gpu(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda" or isinstance(value, str) and value.partition(":")[0] == "cuda"


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Replaces the GPU by the CPU in the arguments of PyTorch's functions."""

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.pin_memory:
            return args[0]
        if function is torch.Tensor.cuda:
            function, args = torch.Tensor.to, (args[0], "cuda")
        if function is torch.Tensor.record_stream:
            return None
        if function in (torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist):
            # The host waits for the values.
            Stream.uses.read(args[0], function.__name__)
            result = function(*args, **(kwargs or {}))
            current_stream().synchronize()
            return result.clone() if result is args[0] else result
        if function is torch.device:
            return function(*args, **(kwargs or {}))
        if function is torch.nn.functional.scaled_dot_product_attention and isinstance(args[0], DTensor):
            # DTensor distributes the kernels of GPUs only. They communicate nothing.
            query = args[0]
            result = function(*(it.to_local() if isinstance(it, DTensor) else it for it in args), **(kwargs or {}))
            return DTensor.from_local(result, query.device_mesh, query.placements, run_check=False)
        if function is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cuda", *args[2:])
        is_moved = function is torch.Tensor.to and any(map(_is_gpu, (*args, *(kwargs or {}).values())))
        if any(_is_gpu(it) for it in args):
            args = tuple("cpu" if _is_gpu(it) else it for it in args)
        if kwargs:
            kwargs = {name: "cpu" if _is_gpu(it) or name == "device" and type(it) is int else it for name, it in kwargs.items()}
            kwargs.pop("pin_memory", None)
        result = function(*args, **(kwargs or {}))
        if is_moved and result is args[0]:
            Stream.uses.moved(result)
        return result


def stand_in(rank: int, ranks: int, uses: Uses, synchronize: Callable[[], None]) -> None:
    """Replaces the GPUs in this process."""
    Stream.uses = uses
    _default.append(Stream())
    uses.current = lambda: current_stream().stream_id

    def constant(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    values = {**CONSTANTS, **dict.fromkeys(ZEROS, 0), **dict.fromkeys(NOTHING), "device_count": ranks}
    values |= {"current_device": rank, "current_device_index": rank, "current_accelerator": torch.device("cuda")}
    values |= {"default_stream": _default[0], "device": contextlib.nullcontext()}
    values |= {"get_device_properties": type("Properties", (), {"total_memory": 1 << 36, "multi_processor_count": 132, "major": 9, "minor": 0, "name": ""})}
    replaced = {name: constant(value) for name, value in values.items()}
    replaced |= {"current_stream": current_stream, "set_stream": set_stream, "synchronize": lambda *_, **__: synchronize()}
    replaced["get_rng_state"] = lambda *_, **__: torch.get_rng_state()
    replaced["set_rng_state"] = lambda state, *_, **__: torch.set_rng_state(state)
    replaced["get_rng_state_all"] = lambda: [torch.get_rng_state()] * ranks
    replaced["set_rng_state_all"] = lambda states: torch.set_rng_state(states[rank])
    for module in (torch.cuda, torch.cuda.random, torch.cuda.memory, getattr(torch, "accelerator", torch.cuda)):
        for name, function in replaced.items():
            if hasattr(module, name):
                setattr(module, name, function)
    torch.cuda.default_generators = (torch.default_generator,) * ranks
    torch.cuda.Stream = torch.Stream = Stream
    torch.cuda.Event = torch.Event = Event
    torch.cuda.stream = lambda stream: contextlib.nullcontext() if stream is None else stream
    for owner, name in (
        (torch.autocast, "__init__"),
        (torch.amp.GradScaler, "__init__"),
        (dist.device_mesh, "init_device_mesh"),
        (dist, "init_device_mesh"),
        (dist.device_mesh.DeviceMesh, "__init__"),
        (torch, "load"),
    ):
        setattr(owner, name, _on_cpu(getattr(owner, name)))
    for name in ("CUDAGraph", "graph", "make_graphed_callables"):
        setattr(torch.cuda, name, _outside("CUDA graphs"))
    # It refuses gradients on the CPU, which its eager form computes.
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    setattr(flex, "_validate_device", constant(None))
    torch.nn.Module.cuda = lambda module, device=None: module
    ddp, fsdp = torch.nn.parallel.DistributedDataParallel, FullyShardedDataParallel
    ddp.__init__ = _with(ddp.__init__, device_ids=None, output_device=None)
    fsdp.__init__ = _with(fsdp.__init__, device_id=torch.device("cpu"))
    enter_in_all_threads(OnCpu())


def _outside(what: str) -> type:
    """Returns a class, which scripts may name in types, that says what the stand-in does not run."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"`hir job --cuda` does not run {what}: turn them off in the script")

    return type(what, (), {"__init__": refuse})


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return function(*("cpu" if _is_gpu(it) else it for it in args), **{name: "cpu" if _is_gpu(it) else it for name, it in kwargs.items()})

    return replaced


def _with(function: Callable[..., Any], **values: Any) -> Callable[..., Any]:
    """Returns a function with these arguments, whatever is passed."""
    signature = inspect.signature(function)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments.update(values)
        return function(*bound.args, **bound.kwargs)

    return replaced
