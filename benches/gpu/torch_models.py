"""Tensor- and sequence-parallel models, whose forward and backward passes `torch_compile.py` measures.

`llama` is a block of Llama 3, parallel by `parallelize_module`; a number behind it is that of its layers.
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn

#: Heads and sequences of the attention of a block, as those of `cases.py`.
HEADS, SEQUENCES = 64, 8


def whole(x):
    return fc.all_gather_tensor_autograd(x, 0, dist.group.WORLD)


def parts(x):
    return fc.reduce_scatter_tensor_autograd(x, "sum", 0, dist.group.WORLD)


class MLP(nn.Module):
    """All-gather, a linear layer h -> 4 h, relu, a linear layer 4 h -> h, reduce-scatter."""

    def __init__(self, h, ranks):
        super().__init__()
        self.up, self.down = nn.Linear(h, 4 * h // ranks, bias=False), nn.Linear(4 * h // ranks, h, bias=False)

    def forward(self, x):
        return parts(self.down(torch.relu(self.up(whole(x)))))


class Block(nn.Module):
    """Attention and an MLP, each with a residual. `attention` is `sdpa` or `products`."""

    def __init__(self, h, ranks, attention, heads=HEADS, sequences=SEQUENCES):
        super().__init__()
        self.qkv, self.out = nn.Linear(h, 3 * h // ranks, bias=False), nn.Linear(h // ranks, h, bias=False)
        self.mlp = MLP(h, ranks)
        self.attention, self.heads, self.sequences, self.extent = attention, heads // ranks, sequences, h // heads

    def attend(self, x):
        q, k, v = x.view(self.sequences, -1, 3, self.heads, self.extent).permute(2, 0, 3, 1, 4)
        if self.attention == "sdpa":
            y = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-1, -2) * self.extent**-0.5, -1) @ v
        return y.transpose(1, 2).reshape(x.shape[0], -1)

    def forward(self, x):
        x = x + parts(self.out(self.attend(self.qkv(whole(x)))))
        return x + self.mlp(x)


#: Heads, heads of keys and hidden elements of Llama 3 8B and 70B, by width.
LLAMA = {4096: (32, 8, 14336), 8192: (64, 8, 28672)}


class Norm(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(h))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class LlamaAttention(nn.Module):
    def __init__(self, h, heads, key_heads):
        super().__init__()
        self.extent = h // heads
        self.q, self.o = nn.Linear(h, h, bias=False), nn.Linear(h, h, bias=False)
        self.k, self.v = (nn.Linear(h, key_heads * self.extent, bias=False) for _ in range(2))

    def forward(self, x, cos, sin):
        batch, rows, _ = x.shape
        q, k, v = (it(x).view(batch, rows, -1, self.extent) for it in (self.q, self.k, self.v))

        def rotated(z):
            a, b = z.float().chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(z.dtype)

        q, k = rotated(q), rotated(k)
        count = q.shape[2] // k.shape[2]
        k, v = (it.repeat_interleave(count, 2) for it in (k, v))
        y = nn.functional.scaled_dot_product_attention(*(it.transpose(1, 2) for it in (q, k, v)), is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, rows, -1))


class LlamaMLP(nn.Module):
    def __init__(self, h, hidden):
        super().__init__()
        self.gate, self.up = nn.Linear(h, hidden, bias=False), nn.Linear(h, hidden, bias=False)
        self.down = nn.Linear(hidden, h, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    def __init__(self, h):
        super().__init__()
        heads, key_heads, hidden = LLAMA[h]
        self.before, self.attention = Norm(h), LlamaAttention(h, heads, key_heads)
        self.between, self.mlp = Norm(h), LlamaMLP(h, hidden)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.before(x), cos, sin)
        return x + self.mlp(self.between(x))


class Llama(nn.Module):
    """Blocks for one sequence, of which each rank has a part of the rows: `[1, rows / ranks, h]`."""

    def __init__(self, h, rows, layers):
        super().__init__()
        self.layers = nn.ModuleList(LlamaBlock(h) for _ in range(layers))
        extent = h // LLAMA[h][0]
        angles = torch.outer(torch.arange(rows).float(), 500000.0 ** -(torch.arange(0, extent, 2).float() / extent))
        self.cos, self.sin = (it[None, :, None, :] for it in (angles.cos(), angles.sin()))

    def forward(self, x):
        for it in self.layers:
            x = it(x, self.cos, self.sin)
        return x

    def parallel(self, mesh):
        """Returns the model with tensor and sequence parallelism."""
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            RowwiseParallel,
            SequenceParallel,
            parallelize_module,
        )

        rows, whole = Shard(1), Replicate()
        plan = {"before": SequenceParallel(), "between": SequenceParallel()}
        plan["attention"] = PrepareModuleInput(
            input_layouts=(rows, None, None), desired_input_layouts=(whole, None, None)
        )
        plan["mlp"] = PrepareModuleInput(input_layouts=(rows,), desired_input_layouts=(whole,))
        plan |= {it: ColwiseParallel() for it in ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")}
        plan |= {it: RowwiseParallel(output_layouts=rows) for it in ("attention.o", "mlp.down")}
        for it in self.layers:
            parallelize_module(it, mesh, plan)
        return self


def make_llama(name, h, rows):
    """Returns a model whose layers are parallel."""
    from torch.distributed.device_mesh import init_device_mesh

    # The angles keep their type.
    model = Llama(h, rows, int(name.removeprefix("llama") or 1)).bfloat16()
    return model.parallel(init_device_mesh("cuda", (dist.get_world_size(),)))


def make(name, h, ranks):
    """Returns a model of the given name and width."""
    return MLP(h, ranks) if name == "mlp" else Block(h, ranks, name.removeprefix("block-"))
