"""Tensor- and sequence-parallel models, whose forward and backward passes `torch_compile.py` measures."""

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


def make(name, h, ranks):
    """Returns a model of the given name and width."""
    return MLP(h, ranks) if name == "mlp" else Block(h, ranks, name.removeprefix("block-"))
