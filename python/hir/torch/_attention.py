"""PyTorch's own kernels for attentions, which programs call on GPUs: where PyTorch would choose cuDNN or FlashAttention, hir does, too."""

from __future__ import annotations

import atexit
import logging
from typing import Any, Sequence

from .. import _hir

LOG = logging.getLogger("hir.torch")

#: Address, short name of the type, shape, strides in elements.
Row = tuple[int, str, Sequence[int], Sequence[int]]
#: The tensors (`AttentionTask` of hir-executor), whether gradients are computed, whether it is causal, the factor of the scores, address
#: and bytes of memory for what kernels allocate.
Task = tuple[Sequence[Row], bool, bool, float, tuple[int, int]]

#: Bytes that kernels may need besides twice the size of their tensors, with what PyTorch's allocator rounds up.
_MOST_BESIDES = 128 << 20

#: How many pools are kept: the memory of a program may have another address in each run.
_MOST_POOLS = 64

#: Bytes before what is lent to PyTorch's allocator, which knows its blocks by their addresses: the memory may begin where a block does.
_ASIDE = 512

#: NumPy's notation of the bytes of an element, by the short name of a type. It has none for bfloat16.
_NOTATION = {"bf16": "<i2", "f16": "<f2", "f32": "<f4"}


class Library:
    """Computes attentions on the streams of hir, whose addresses stay the same when a run is captured as a CUDA graph.

    What the kernels allocate comes from memory of the program, where it has some for them. Otherwise it comes from a pool of its own: nothing
    else gets this memory while graphs use it. The runs of one GPU follow each other, so all programs share the pool.
    """

    def __init__(self, ordinal: int) -> None:
        import torch

        self._device = torch.device("cuda", ordinal)
        self._pool = torch.cuda.MemPool()
        #: The pools in memory of programs, by task, stream and address. A captured call needs its pool no more.
        self._lent: dict[Any, _LentPool] = {}
        # Pools end before their allocators do.
        atexit.register(self._lent.clear)
        #: The libraries whose kernels compute tasks, and the bytes that these allocate.
        self._kernels: dict[Any, str | None] = {}
        self._workspaces: dict[Any, int] = {}
        #: The state of random numbers, which kernels without a dropout take and do not read.
        self._state = torch.zeros((), dtype=torch.int64, device=self._device)

    def computes(self, task: Task) -> bool:
        """Whether PyTorch chooses a kernel that is known here."""
        shape, key = list(task[0][0][2]), _without_addresses(task)
        if key in self._kernels:
            return self._kernels[key] is not None
        try:
            # PyTorch's gradients of keys are sums over the heads that share them.
            is_alike = not task[1] or list(task[0][7][2]) == list(task[0][1][2])
            kernel = self._chosen(*task[:4]) if shape[-1] % 8 == 0 and is_alike else None
        except (RuntimeError, AttributeError, TypeError) as error:
            # An older PyTorch lacks the function, or an argument of it.
            LOG.info("PyTorch has no kernel for an attention of %s: %s", shape, error)
            return False
        self._kernels[key] = kernel
        what = "the gradients of an attention" if task[1] else "an attention"
        LOG.info("%s of %s: the kernel of %s", what, shape, kernel or "hir")
        return kernel is not None

    def workspace(self, task: Task) -> int:
        """The bytes that the kernels of a task allocate, found by a first run with other tensors; 0 if that is not possible."""
        import torch

        key = _without_addresses(task)
        if key not in self._workspaces:
            rows, is_gradient, is_causal, scale, _ = task
            try:
                tensors = [self._zeros(it) for it in rows]
                bytes = 2 * sum(it.numel() for it in tensors) + _MOST_BESIDES
                memory = torch.empty(bytes, dtype=torch.uint8, device=self._device)
                others = [(it.data_ptr(), *row[1:]) for it, row in zip(tensors, rows)]
                pool, lent = _LentPool(), (memory.data_ptr(), bytes)
                self._run((others, is_gradient, is_causal, scale, lent), torch.cuda.current_stream(self._device), pool)
                torch.cuda.synchronize(self._device)
                self._workspaces[key] = _ASIDE + pool.taken
                del pool
            except (RuntimeError, AttributeError, TypeError) as error:
                LOG.info("an attention allocates memory of its own: %s", error)
                self._workspaces[key] = 0
        return self._workspaces[key]

    def issue(self, task: Task, stream: int) -> None:
        """Issues an attention or its gradients on a stream. Results are copied to where the program has them."""
        import torch

        address, bytes = task[-1]
        key, pool = (_without_addresses(task), stream, address), None
        if bytes:
            if key not in self._lent and len(self._lent) >= _MOST_POOLS:
                self._lent.clear()
            pool = self._lent[key] = self._lent.get(key) or _LentPool()
        self._run(task, torch.cuda.ExternalStream(stream, device=self._device), pool)

    def _run(self, task: Task, stream: Any, pool: _LentPool | None) -> None:
        import torch

        rows, is_gradient, is_causal, scale, (address, bytes) = task
        kernel = self._kernels[_without_addresses(task)]
        if pool:
            _hir.lend_memory(address + _ASIDE, bytes - _ASIDE, pool.taken)
        try:
            # Outside of a captured stream, PyTorch does not look for a graph of its own to keep the pool.
            with torch.no_grad(), torch.cuda.use_mem_pool(pool.pool if pool else self._pool, self._device):
                with torch.cuda.stream(stream):
                    self._compute(kernel, rows, is_gradient, is_causal, scale)
        finally:
            if pool:
                pool.taken = _hir.end_loan()

    def _compute(self, kernel: str | None, rows: Sequence[Row], is_gradient: bool, is_causal: bool, scale: float) -> None:
        import torch

        aten = torch.ops.aten
        tensors = [self._tensor(it) for it in rows]
        query, key, value, out, *sums = tensors[:5]
        options: dict[str, Any] = {"scale": scale}
        if not is_gradient:
            if kernel == "cuDNN":
                results = aten._scaled_dot_product_cudnn_attention(
                    query, key, value, None, bool(sums), 0.0, is_causal, False, **options
                )
            else:
                results = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, False, **options)
            targets = [out, *sums]
        else:
            (found,), result = sums, tensors[5]
            extents, state = (query.shape[2], key.shape[2]), (self._state, self._state)
            if kernel == "cuDNN":
                results = aten._scaled_dot_product_cudnn_attention_backward(
                    *(result, query, key, value, out, found.unsqueeze(-1), *state),
                    *(None, None, None, *extents, 0.0, is_causal),
                    **options,
                )
            else:
                results = aten._scaled_dot_product_flash_attention_backward(
                    *(result, query, key, value, out, found, None, None, *extents, 0.0, is_causal, *state), **options
                )
            targets = tensors[6:]
        for target, result in zip(targets, results):
            target.copy_(result.view(target.shape) if result.ndim != target.ndim else result)

    def _chosen(self, rows: Sequence[Row], is_gradient: bool, is_causal: bool, scale: float) -> str | None:
        """The library whose kernel PyTorch chooses for such tensors; None if it is another one."""
        import torch

        def like(row: Row) -> Any:
            return torch.empty_strided(
                row[2], row[3], dtype=_dtype(row[1]), device=self._device, requires_grad=is_gradient
            )

        query, key, value = (like(it) for it in rows[:3])
        shares_keys = query.shape[1] != key.shape[1]
        choice = torch._fused_sdp_choice(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=shares_keys)
        backends = torch.nn.attention.SDPBackend
        return {backends.CUDNN_ATTENTION.value: "cuDNN", backends.FLASH_ATTENTION.value: "FlashAttention"}.get(choice)

    def _zeros(self, row: Row) -> Any:
        """The bytes of a tensor of its own."""
        import torch

        _, name, shape, strides = row
        elements = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
        return torch.zeros(elements * int(_NOTATION[name][-1]), dtype=torch.uint8, device=self._device)

    def _tensor(self, row: Row) -> Any:
        """The tensor at an address of the GPU."""
        import torch

        address, name, shape, strides = row
        notation = _NOTATION[name]
        size = int(notation[-1])
        memory = type("Memory", (), {})()
        memory.__cuda_array_interface__ = {
            "shape": tuple(shape),
            "strides": tuple(it * size for it in strides),
            "typestr": notation,
            "data": (address, False),
            "version": 3,
        }
        return torch.as_tensor(memory, device=self._device).view(_dtype(name))


class _LentPool:
    """A pool of PyTorch's allocator in memory of a program. The same task takes the same parts of it each time."""

    def __init__(self) -> None:
        import torch

        # One for each pool: it remembers what it has given by address, and pools have the same addresses in turn.
        # PyTorch's class for it takes the name of a library, this function the addresses of two functions.
        self._allocator = torch._C._cuda_customAllocator(*_hir.loan_functions())
        self.pool = torch.cuda.MemPool(self._allocator)
        self.taken = 0


def library_of(ordinal: int) -> Library | None:
    """The kernels of PyTorch for a GPU; None if PyTorch has no GPUs."""
    import torch

    return Library(ordinal) if torch.cuda.is_available() and hasattr(torch.cuda, "MemPool") else None


def _without_addresses(task: Task) -> Any:
    rows, *rest, _ = task
    return tuple((name, tuple(shape), tuple(strides)) for _, name, shape, strides in rows), *rest


def _dtype(name: str) -> Any:
    import torch

    return {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[name]
