"""Only rank 0 logs the norm of the gradient, but the norm is a collective of both ranks."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc


def build(rank: int):
    def step(grad):
        scale = 1.0
        if rank == 0:
            norm = fc.all_reduce((grad * grad).sum(), "sum", dist.group.WORLD)
            scale = norm.rsqrt()
        return grad * scale

    return step, (torch.ones(4),)


def fixed(rank: int):
    def step(grad):
        norm = fc.all_reduce((grad * grad).sum(), "sum", dist.group.WORLD)
        return grad * (norm.rsqrt() if rank == 0 else 1.0)

    return step, (torch.ones(4),)
