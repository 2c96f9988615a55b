"""PyTorch programs that tests capture. `python torch_programs.py NAME` runs one of the jobs below under torchrun."""

import sys
import warnings

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


def rank_dependent(rank: int):
    """Constants, slices and whole tensors depend on the rank."""

    def step(x, table):
        position = torch.arange(rank * 3, (rank + 1) * 3)
        return x * table[rank * 3 : (rank + 1) * 3] + position[:, None], table[rank] + rank, torch.tensor([rank, 5]) * 2

    return step, (torch.ones(3, 2), torch.arange(12.0).reshape(6, 2))


def crossed_groups(rank: int):
    """Two groups have the same ranks, which use them in opposite orders."""
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    groups = (first, second) if rank == 0 else (second, first)

    def step(x):
        y = fc.all_reduce(x, "sum", groups[0])  # line of the first all-reduce
        return y, fc.all_reduce(x * 2, "sum", groups[1])

    return step, (torch.ones(3),)


def ring(rank: int):
    """Each rank starts a send to the next one and a receive from the one before, then waits for both."""
    world = dist.get_world_size()

    def step(x):
        received = torch.empty_like(x)
        sent = dist.isend(x, (rank + 1) % world)  # line of the send
        arrived = dist.irecv(received, (rank - 1) % world)
        sent.wait()
        arrived.wait()
        return received + 1

    return step, (torch.full((3,), float(rank)),)


def batched_ring(rank: int):
    """The same, as one batch."""
    world = dist.get_world_size()

    def step(x):
        received = torch.empty_like(x)
        transfers = [dist.P2POp(dist.isend, x, (rank + 1) % world), dist.P2POp(dist.irecv, received, (rank - 1) % world)]
        for transfer in dist.batch_isend_irecv(transfers):
            transfer.wait()
        return received + 1

    return step, (torch.full((3,), float(rank)),)


class Block(nn.Module):
    """A transformer block with RMS norms, causal attention of two heads and SwiGLU."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(8, 12, bias=False), nn.Linear(8, 12, bias=False), nn.Linear(12, 8, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(8), nn.RMSNorm(8)

    def attention(self, x):
        q, k, v = (it(x).unflatten(-1, (-1, 4)).transpose(1, 2) for it in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class LocalBlock(Block):
    """The part of the block that one rank of two computes, with its collectives written out: tensor and sequence parallel."""

    def whole(self, x):
        return fc.all_gather_tensor_autograd(x, 1, dist.group.WORLD)

    def parts(self, x):
        return fc.reduce_scatter_tensor_autograd(x, "sum", 1, dist.group.WORLD)

    def forward(self, x):
        x = x + self.parts(self.attention(self.whole(self.norm1(x))))
        y = self.whole(self.norm2(x))
        return x + self.parts(self.down(nn.functional.silu(self.gate(y)) * self.up(y)))


def block() -> Block:
    torch.manual_seed(0)
    return Block()


def local_block(rank: int) -> LocalBlock:
    """The rows or columns of the weights that a rank of two has."""
    whole, part = block(), LocalBlock()
    for name, parameter in part.named_parameters():
        weight = whole.get_parameter(name).detach()
        dim = None if name.startswith("norm") else 1 if name.startswith(("o.", "down.")) else 0
        parameter.data = weight.clone() if dim is None else weight.chunk(2, dim)[rank].clone()
    return part


def sequence_parallel(rank: int):
    return local_block(rank), (block_input().chunk(2, 1)[rank].contiguous(),)


def block_input():
    return torch.linspace(-2, 2, 2 * 6 * 8).sin().reshape(2, 6, 8)


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
    """A fault is reported before the call that has it: on all ranks that make a call, or when the rank that makes none ends."""
    import hir

    rank = dist.get_rank()
    try:
        torch.compile(lambda x: fc.all_reduce(x, "sum", dist.group.WORLD), backend="hir")(torch.ones(2 + rank))
    except hir.HirError as error:
        assert "torch_programs.py:" in str(error), error
    else:
        raise AssertionError("no fault")
    step, args = skips_a_collective(rank)
    try:
        torch.compile(step, backend="hir")(*args)
    except hir.FindingsError as error:
        assert rank == 0 and "deadlock: rank 1 never posts Communication 0" in str(error), error
        assert "torch_programs.py:" in str(error), error
    else:
        assert rank == 1, "no fault"


def caught_warnings(function, *args) -> tuple[torch.Tensor, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*args)
    return result, [text for it in caught if "PyTorch" in (text := str(it.message)) or "not checked" in text]


def check_pieces() -> None:
    """One rank calls a model in two pieces, the other one in one: PyTorch runs them, with a warning, if they do not fit."""

    def pieces(x, first):
        y = fc.all_reduce(x * 2, "sum", dist.group.WORLD) if first else x * 4
        if dist.get_rank() == 0:
            torch._dynamo.graph_break()
        return fc.all_reduce(y[:2], "sum", dist.group.WORLD)

    compiled = torch.compile(pieces, backend="hir", options={"timeout": 60, "fallback": "aot_eager"})
    result, texts = caught_warnings(compiled, torch.ones(3), False)
    torch.testing.assert_close(result, torch.full((2,), 8.0))
    assert not texts, texts
    result, [text, *_] = caught_warnings(compiled, torch.ones(3), True)
    torch.testing.assert_close(result, torch.full((2,), 8.0))
    assert "but rank 0's graph is one of several: it ends at a graph break (torch_programs.py:" in text, text


compiled_graphs = []


def counted(module, inputs):
    """A backend that compiles as `aot_eager` does, and keeps the graphs."""
    compiled_graphs.append(module)
    return torch._dynamo.lookup_backend("aot_eager")(module, inputs)


def check_right() -> None:
    """Right jobs run whose ranks do not compile the same graphs, or not at the same time."""
    import hir.torch

    rank = dist.get_rank()
    options = {"run": "hir", "timeout": 100.0}
    if rank == 0:  # Only rank 0 has a metric, and evaluates.
        assert torch.compile(lambda x: x.mean() * 100, backend="hir", options=options)(torch.ones(4)) == 100
    model = torch.compile(nn.Linear(8, 8), backend="hir", options=options)
    model(torch.ones(4, 8)).sum().backward()
    if rank == 0:
        with torch.no_grad():
            assert model(torch.ones(4, 8)).shape == (4, 8)
    step = torch.compile(lambda x: fc.all_reduce(x.mean(), "avg", dist.group.WORLD), backend="hir", dynamic=False)
    for rows in ((6, 6, 6), (6, 8, 6))[rank]:
        result, texts = caught_warnings(step, torch.full((rows, 2), 1.0 + rank))
        assert result == 1.5 and not texts, texts

    # An operator that may communicate is named once.
    @torch.library.custom_op("hirtest::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    left = {"fallback": "aot_eager"}
    named = torch.compile(lambda x: fc.all_reduce(twice(x), "sum", dist.group.WORLD), backend="hir", options=left)
    result, texts = caught_warnings(named, torch.ones(2))
    torch.testing.assert_close(result, torch.full((2,), 4.0))
    assert sum("`hirtest.twice`: hir does not know whether it communicates" in it for it in texts) == 1, texts

    # What hir simulates slowly is left to PyTorch.
    hir.torch._backend.SLOWEST = 0.0
    left = {"fallback": counted}
    slow = torch.compile(lambda x: fc.all_reduce(x + 1, "sum", dist.group.WORLD), backend="hir", options=left)
    for run in range(3):
        result, texts = caught_warnings(slow, torch.ones(2))
        torch.testing.assert_close(result, torch.full((2,), 4.0))
        assert sum("PyTorch" in it for it in texts) == (run == 0), texts
    assert len(compiled_graphs) == 1

    # The other rank communicates without a graph: this one waits once, for the stated time.
    def late(x):
        return fc.all_reduce(x * 3, "sum", dist.group.WORLD)

    compiled = torch.compile(late, backend="hir", options={"timeout": 1.0, **left})
    result, texts = caught_warnings(compiled if rank == 0 else late, torch.ones(2))
    torch.testing.assert_close(result + 0, torch.full((2,), 6.0))
    assert ("rank 1 has called no graph with this rank within 1 s" in "".join(texts)) == (rank == 0), texts
    for _ in range(2):
        result, texts = caught_warnings(torch.compile(late, backend="hir", dynamic=False, options=left), torch.ones(2))
        torch.testing.assert_close(result + 0, torch.full((2,), 6.0))
        assert not any("within" in it for it in texts), texts


if __name__ == "__main__":
    dist.init_process_group("gloo")
    checks = {"compiled": check_compiled, "fault": check_fault, "pieces": check_pieces, "right": check_right}
    checks[sys.argv[1]]()
    # Without it, a thread of the group may still run when the process ends, which aborts it.
    dist.destroy_process_group()
