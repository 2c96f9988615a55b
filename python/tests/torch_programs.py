"""PyTorch programs that tests capture. `python torch_programs.py NAME` runs one of the jobs below under torchrun."""

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 8, bias=False), nn.Linear(8, 6, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))  # line of MLP


def tensor_parallel(rank: int):
    """A column-parallel and a row-parallel linear layer, as DTensors."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    return parallelize_module(MLP(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}), (torch.randn(4, 6),)


def skips_a_collective(rank: int):
    def step(x):
        y = torch.relu(x)
        if rank == 0:
            y = fc.all_reduce(y, "sum", dist.group.WORLD)  # line of the all-reduce
        return y * 2

    return step, (torch.ones(3),)


def uneven(rank: int):
    """An all-to-all in which rank r sends r + 1 rows to each rank."""
    world = dist.get_world_size()

    def step(x):
        received = [it + 1 for it in range(world)]
        return fc.all_to_all_single(x * 2, received, [rank + 1] * world, dist.group.WORLD) + 1

    return step, (torch.arange(2.0 * (rank + 1) * world).reshape(-1, 2) + 100 * rank,)


def check_compiled() -> None:
    """Compares the results of the backend with those of PyTorch, forwards and backwards."""
    import hir

    simulate, runs = hir.Program.simulate, []
    hir.Program.simulate = lambda *args, **named: runs.append(1) or simulate(*args, **named)
    model, _ = tensor_parallel(dist.get_rank())
    results = []
    for step in (model, torch.compile(model, backend="hir")):
        for _ in range(3):
            model.zero_grad()
            x = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_()
            y = step(x)
            (y * y).sum().backward()
        results.append([y, x.grad, *(it.grad.to_local() for it in model.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert len(runs) == 6, runs


def check_fault() -> None:
    """A fault is reported on every rank before anything runs."""
    step, args = skips_a_collective(dist.get_rank())
    try:
        torch.compile(step, backend="hir")(*args)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        assert "deadlock: rank 1 never posts Communication 0" in str(error), error
        assert "torch_programs.py:" in str(error), error
    else:
        raise AssertionError("no fault")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    {"compiled": check_compiled, "fault": check_fault}[sys.argv[1]]()
