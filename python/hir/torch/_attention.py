"""PyTorch's own kernels for attentions, which programs call on GPUs: where PyTorch would choose cuDNN or FlashAttention, hir does, too."""

from __future__ import annotations

import logging
from typing import Any, Sequence

LOG = logging.getLogger("hir.torch")

#: Address, short name of the type, shape, strides in elements.
Row = tuple[int, str, Sequence[int], Sequence[int]]
#: The tensors (`AttentionTask` of hir-executor), whether gradients are computed, whether it is causal, the factor of the scores.
Task = tuple[Sequence[Row], bool, bool, float]

#: NumPy's notation of the bytes of an element, by the short name of a type. It has none for bfloat16.
_NOTATION = {"bf16": "<i2", "f16": "<f2", "f32": "<f4"}


class Library:
    """Computes attentions on the streams of hir, whose addresses stay the same when a run is captured as a CUDA graph.

    What the kernels allocate comes from a pool of its own: nothing else gets this memory while graphs use it. The runs of one GPU follow each
    other, so all programs share the pool.
    """

    def __init__(self, ordinal: int) -> None:
        import torch

        self._device = torch.device("cuda", ordinal)
        self._pool = torch.cuda.MemPool()
        #: The libraries whose kernels compute tasks.
        self._kernels: dict[Any, str | None] = {}
        #: The state of random numbers, which kernels without a dropout take and do not read.
        self._state = torch.zeros((), dtype=torch.int64, device=self._device)

    def computes(self, task: Task) -> bool:
        """Whether PyTorch chooses a kernel that is known here."""
        shape = list(task[0][0][2])
        try:
            kernel = self._chosen(*task) if shape[-1] % 8 == 0 else None
        except RuntimeError as error:
            LOG.info("PyTorch has no kernel for an attention of %s: %s", shape, error)
            return False
        self._kernels[_without_addresses(task)] = kernel
        what = "the gradients of an attention" if task[1] else "an attention"
        LOG.info("%s of %s: the kernel of %s", what, shape, kernel or "hir")
        return kernel is not None

    def issue(self, task: Task, stream: int) -> None:
        """Issues an attention or its gradients on a stream. Results are copied to where the program has them."""
        import torch

        kernel = self._kernels[_without_addresses(task)]
        # Outside of a captured stream, PyTorch does not look for a graph of its own to keep the pool.
        with torch.no_grad(), torch.cuda.use_mem_pool(self._pool, self._device):
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=self._device)):
                self._compute(kernel, *task)

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


def library_of(ordinal: int) -> Library | None:
    """The kernels of PyTorch for a GPU; None if PyTorch has no GPUs."""
    import torch

    return Library(ordinal) if torch.cuda.is_available() and hasattr(torch.cuda, "MemPool") else None


def _without_addresses(task: Task) -> Any:
    rows, *rest = task
    return tuple((name, tuple(shape), tuple(strides)) for _, name, shape, strides in rows), *rest


def _dtype(name: str) -> Any:
    import torch

    return {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[name]
