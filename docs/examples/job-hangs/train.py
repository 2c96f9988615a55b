import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
weights = torch.ones(1024, device="cuda")


def step(batch):
    loss = (weights * batch).sum()
    if torch.isfinite(loss):
        dist.all_reduce(loss)
    dist.all_reduce(weights)


for number in range(3):
    batch = torch.full((1024,), float(number), device="cuda")
    if rank == 2 and number == 1:
        batch[7] = float("nan")
    step(batch)
dist.barrier()
