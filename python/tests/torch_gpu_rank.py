"""A rank whose model `torch.compile(model, backend="hir")` runs on an emulated GPU. `test_torch_gpu.py` starts it by torchrun.

PyTorch works on the CPU. The emulated GPU takes all memory of the process for its own (HIR_EMULATED_ANY_MEMORY).
"""

import ctypes
import gc
import logging
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn

import hir.torch
from hir.torch import _attention, _backend, _gpu

logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


class Device:
    """The device of all tensors, as PyTorch's device of a GPU."""

    index = rank

    def __eq__(self, _):
        return True

    def __hash__(self):
        return 0


class EmulatedProgram(_gpu.GpuProgram):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._cuda = ctypes.CDLL(os.environ["HIR_CUDA"])
        self._context, self._own = ctypes.c_void_p(), ctypes.c_void_p()
        assert self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), rank) == 0
        self._cuda.cuCtxSetCurrent(self._context)
        assert self._cuda.cuStreamCreateWithPriority(ctypes.byref(self._own), 1, 0) == 0
        native, self._native = self._native, self
        self._issue = native.run

    def run(self, *args):
        if isinstance(args[1], int):
            # The call of the compiled part: PyTorch reads the results at once.
            self._issue(*args)
            self._cuda.cuCtxSetCurrent(self._context)
            assert self._cuda.cuStreamSynchronize(self._own) == 0
            return None
        return super().run(*args)

    def _stream(self):
        return self._own.value

    def _new(self, shape, strides, dtype):
        return aligned(shape, strides, dtype)

    def _keep(self, tensor):
        kept.append(tensor)


kept = []


def aligned(shape, strides, dtype):
    """Memory as PyTorch allocates it on GPUs, with garbage."""
    count = 0 if 0 in shape else 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
    size = torch.empty((), dtype=dtype).element_size()
    memory = torch.full((count * size + _gpu.ALIGNMENT,), 0xFF, dtype=torch.uint8)
    start = -memory.data_ptr() % _gpu.ALIGNMENT
    return memory[start : start + count * size].view(dtype).as_strided(shape, strides)


def moved(tensor):
    return aligned(tensor.shape, tensor.stride(), tensor.dtype).copy_(tensor)


class MLP(nn.Module):
    """A tensor- and sequence-parallel MLP."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64 // ranks), nn.Linear(64 // ranks, 32, bias=False)
        for layer in (self.up, self.down):
            layer.weight = nn.Parameter(moved(layer.weight.detach()))

    def forward(self, x):
        x = fc.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
        y = self.down(torch.relu(self.up(x)))
        return fc.reduce_scatter_tensor_autograd(y, "sum", 0, dist.group.WORLD), y.sum(), x.t()


class Attention(nn.Module):
    """Attention by matrix products, which saves permuted parts of one tensor for its gradient."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 48, bias=False), nn.Linear(16, 32, bias=False)
        for layer in (self.qkv, self.out):
            layer.weight = nn.Parameter(moved(layer.weight.detach()))

    def forward(self, x):
        x = fc.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
        q, k, v = self.qkv(x).view(2, -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        y = self.out(y.transpose(1, 2).reshape(x.shape[0], -1))
        return fc.reduce_scatter_tensor_autograd(y, "sum", 0, dist.group.WORLD), y.sum(), q.relu()


class CausalAttention(nn.Module):
    """Attention whose heads share keys, for which PyTorch has a kernel."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 64, bias=False, dtype=torch.bfloat16)
        self.qkv.weight = nn.Parameter(moved(self.qkv.weight.detach()))

    def forward(self, x):
        qkv = self.qkv(x.to(torch.bfloat16)).view(1, -1, 8, 8).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(
            qkv[:, :4], qkv[:, 4:6], qkv[:, 6:], is_causal=True, scale=0.3, enable_gqa=True
        )
        return y, y.sum(), x.t()


def scores_of(query, key, is_causal, scale):
    """The scores of all heads of the query, which may share keys."""
    scores = query.float() @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).float().transpose(-1, -2) * scale
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf) if is_causal else scores


def flash_attention(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    """The operator of FlashAttention on the CPU, by matrix products."""
    scores = scores_of(query, key, is_causal, scale)
    out = scores.softmax(-1) @ value.repeat_interleave(query.shape[1] // value.shape[1], 1).float()
    none = torch.empty(0)
    return out.to(query.dtype), scores.logsumexp(-1), none, none, query.shape[2], key.shape[2], none, none, none


def flash_attention_backward(
    grad, query, key, value, out, sums, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, seed, offset, *, scale=None
):
    assert (cum_q, cum_k, max_q, max_k) == (None, None, query.shape[2], key.shape[2])
    count = query.shape[1] // key.shape[1]
    weights = (scores_of(query, key, is_causal, scale) - sums[..., None]).exp()
    dots = (grad.float() * out.float()).sum(-1, keepdim=True)
    of_weights = grad.float() @ value.repeat_interleave(count, 1).float().transpose(-1, -2)
    of_scores = weights * (of_weights - dots) * scale
    d_query = of_scores @ key.repeat_interleave(count, 1).float()
    d_key, d_value = of_scores.transpose(-1, -2) @ query.float(), weights.transpose(-1, -2) @ grad.float()
    d_key, d_value = (it.unflatten(1, (-1, count)).sum(2) for it in (d_key, d_value))
    return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype)


class EmulatedLibrary(_attention.Library):
    """The kernels of PyTorch on the CPU, in the memory of the emulated GPU."""

    #: Whether PyTorch cannot say which kernel it has.
    is_old = False

    def __init__(self, ordinal):
        self._device, self._kernels, self._state = torch.device("cpu"), {}, torch.zeros((), dtype=torch.int64)
        self._cuda = ctypes.CDLL(os.environ["HIR_CUDA"])
        self.issued = []

    def issue(self, task, stream):
        assert self._cuda.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
        self.issued.append("gradient" if task[1] else "attention")
        *rest, (address, size) = task
        assert size == 5000 and address % _gpu.ALIGNMENT == 0, (address, size)
        # What the kernel keeps there destroys nothing that is in use.
        ctypes.memset(address, 0xFF, size)
        with torch.no_grad():
            self._compute(self._kernels[_attention._without_addresses(task)], *rest)

    def workspace(self, task):
        return 5000

    def _chosen(self, rows, is_gradient, is_causal, scale):
        if self.is_old:
            raise AttributeError("module 'torch' has no attribute '_fused_sdp_choice'")
        assert (is_causal, scale) == (True, 0.3)
        return "FlashAttention"

    def _tensor(self, row):
        address, name, shape, strides = row
        dtype = _attention._dtype(name)
        count = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


implementations = torch.library.Library("aten", "IMPL")
implementations.impl("_scaled_dot_product_flash_attention", flash_attention, "CPU")
implementations.impl("_scaled_dot_product_flash_attention_backward", flash_attention_backward, "CPU")

library = None


def library_of(ordinal):
    global library
    library = EmulatedLibrary(ordinal)
    return library


_gpu.library_of = library_of
_backend._device_of = lambda module: Device()
_backend.GpuProgram = EmulatedProgram
torch.manual_seed(rank)


def step(model, function, x):
    x = moved(x).requires_grad_()
    for parameter in model.parameters():
        parameter.grad = None
    y, total, whole = function(x)
    (y.square().sum() + total).backward()
    return [y, total, whole, x.grad, *(it.grad for it in model.parameters())]


for model in (MLP(), Attention()):
    compiled = torch.compile(model, backend="hir", options={"run": "hir", "timeout": 120.0})
    for run in range(4):
        x = torch.randn(8, 32)
        for result, expected in zip(step(model, compiled, x), step(model, model, x), strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-4)
# PyTorch's kernels compute attentions, and their gradients. Where it has none, hir's do.
model = CausalAttention()
for EmulatedLibrary.is_old in (True, False):
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="hir", options={"run": "hir", "timeout": 120.0, "graph": False})
    for run in range(2):
        x = torch.randn(8, 32)
        for result, expected in zip(step(model, compiled, x), step(model, model, x), strict=True):
            # Elements of bfloat16 are rounded at other places.
            assert (result.float() - expected.float()).norm() <= 1e-2 * expected.float().norm(), (result, expected)
    issued = 0 if EmulatedLibrary.is_old else 3
    assert library.issued.count("attention") == library.issued.count("gradient") == issued, library.issued
# A graph without communication needs no other rank.
if rank == 0:
    metric = torch.compile(lambda x: (x * 2).relu(), backend="hir", options={"run": "hir", "timeout": 5.0})
    for _ in range(2):
        x = torch.randn(8, 32)
        torch.testing.assert_close(metric(moved(x)), (x * 2).relu())
    assert _gpu._opened[True][3].world == 1
    del metric
# Behind the last program, its memory is free.
assert rank in _gpu._temporary
del compiled
torch._dynamo.reset()
gc.collect()
assert rank not in _gpu._temporary, _gpu._in_use
# A fault of one rank is the error of all.
exchange = _gpu._opened[False][3]


def fails():
    exchange(b"")
    if rank == 1:
        raise hir.HirError("rank 1 is out of memory")
    exchange(b"")


try:
    exchange.together(fails, 120.0)
except hir.HirError as error:
    print("error:", error)
