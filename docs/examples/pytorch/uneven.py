"""Each rank sends the tokens of an expert to its rank; rank 1 expects as many from each rank as it sends."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc


def build(rank: int):
    sent = [[3, 1], [2, 2]][rank]
    received = [[3, 2], [2, 2]][rank]

    def step(tokens):
        return fc.all_to_all_single(tokens * 2, received, sent, dist.group.WORLD)

    return step, (torch.ones(4, 2),)


def fixed(rank: int):
    sent = [[3, 1], [2, 2]][rank]
    received = [[3, 2], [1, 2]][rank]

    def step(tokens):
        return fc.all_to_all_single(tokens * 2, received, sent, dist.group.WORLD)

    return step, (torch.ones(4, 2),)
