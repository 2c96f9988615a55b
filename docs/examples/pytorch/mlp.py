"""A tensor- and sequence-parallel MLP of two ranks: each has half of the rows of x and half of the hidden features."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x):
        x = fc.all_gather_tensor(x, 0, dist.group.WORLD)
        y = self.down(torch.relu(self.up(x)))
        return fc.reduce_scatter_tensor(y, "sum", 0, dist.group.WORLD)


def build(rank: int):
    torch.manual_seed(rank)
    return MLP().requires_grad_(False), (torch.randn(4, 8),)
