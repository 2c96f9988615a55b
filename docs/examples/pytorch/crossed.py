"""Two process groups have the same ranks, and the ranks use them in opposite orders."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc


def build(rank: int):
    tensor, data = dist.new_group([0, 1]), dist.new_group([0, 1])
    first, second = (tensor, data) if rank == 0 else (data, tensor)

    def step(x):
        y = fc.all_reduce(x, "sum", first)
        return y, fc.all_reduce(x[:2] * 2, "sum", second)

    return step, (torch.ones(4),)


def fixed(rank: int):
    tensor, data = dist.new_group([0, 1]), dist.new_group([0, 1])

    def step(x):
        y = fc.all_reduce(x, "sum", tensor)
        return y, fc.all_reduce(x[:2] * 2, "sum", data)

    return step, (torch.ones(4),)
