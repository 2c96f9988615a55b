"""The jobs of test_job.py: ``job_programs.py NAME [FAULT]``. A line that a fault is reported at has a comment with the name of the fault."""

import os
import resource
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn as nn

NAME = sys.argv[1]
FAULT = sys.argv[2] if len(sys.argv) > 2 else ""


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def eager() -> None:
    x = torch.full((3,), float(rank))
    if not (FAULT == "skip" and rank == 1):
        dist.all_reduce(x)  # skip
    size = 5 if FAULT == "size" and rank == 1 else 4
    y = torch.zeros(size)
    work = dist.all_reduce(y, async_op=True)  # size
    z = torch.zeros(4) + 1
    if FAULT == "late":
        y.add_(z)  # late
    if FAULT == "host":
        y.tolist()  # host
    work.wait()
    dist.broadcast(x, 1 if FAULT == "root" and rank == 1 else 0)  # root
    dist.all_reduce(x, dist.ReduceOp.MAX if FAULT == "reduction" and rank == 1 else dist.ReduceOp.SUM)  # reduction
    gathered = torch.zeros(4 * world)
    parts = torch.ones(4)
    calls = [lambda: dist.all_gather_into_tensor(gathered, parts), lambda: dist.reduce_scatter_tensor(parts, gathered)]  # swap
    for call in calls[::-1] if FAULT == "swap" and rank == 1 else calls:
        call()
    assert parts.tolist() == [float(world)] * 4
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(x, group=dist.group.WORLD if FAULT == "group" and rank == 1 else pair)  # group
    taken = torch.empty(world)
    dist.all_to_all_single(taken, torch.arange(float(world)) + rank)
    assert taken.tolist() == [float(it + rank) for it in range(world)]


def messages() -> None:
    x, y = torch.full((4,), float(rank)), torch.empty(4)
    after, before = (rank + 1) % world, (rank - 1) % world
    if FAULT == "ungrouped":
        for work in (dist.isend(x, after), dist.irecv(y, before)):  # ungrouped
            work.wait()
        return
    if FAULT == "tag":
        if rank == 0:
            dist.send(x, 1, tag=3)  # tag
        elif rank == 1:
            dist.recv(y, 0, tag=4)
    peer = rank if FAULT == "peer" and rank == 1 else after
    operations = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, before)]
    works = dist.batch_isend_irecv(operations)  # peer
    if FAULT == "late":
        print(y.sum())  # late
    for work in works:
        work.wait()
    assert y[0] == before
    if rank == 0:
        dist.send(x, 1)  # unreceived
    elif rank == 1 and FAULT != "unreceived":
        dist.recv(y, 0)


def objects() -> None:
    names = [None] * world
    dist.all_gather_object(names, {"rank": rank})
    assert names[1] == {"rank": 1}
    listed = [rank, "x"]
    dist.broadcast_object_list(listed, 0)
    assert listed == [0, "x"]
    part = [None]
    dist.scatter_object_list(part, list("abcdefgh"[:world]) if rank == 0 else None, 0)
    assert part == ["abcdefgh"[rank]]
    if not (FAULT == "skip" and rank == 1):
        dist.barrier()  # skip
    dist.gather_object(rank, names if rank == 0 else None, 0)


def ddp() -> None:
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(mlp(), bucket_cap_mb=1e-4, find_unused_parameters=FAULT == "")
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for step in range(2):
        loss = model(torch.randn(2, 8)).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step == 1 and not (FAULT == "skip" and rank == 1):
            dist.all_reduce(loss.detach())  # skip
    weights = [torch.empty(8) for _ in range(world)]
    dist.all_gather(weights, model.module[2].bias.detach())
    assert torch.equal(weights[0], weights[1])


def fsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = mlp(), init_device_mesh("cpu", (world,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for step in range(2):
        x = torch.randn(2, 8)
        if FAULT == "skip" and rank == 1 and step == 1:
            model[0](x)
        else:
            model(x).pow(2).mean().backward()  # skip
            optimizer.step()
            optimizer.zero_grad()


def fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"))
    for _ in range(2):
        model(torch.randn(2, 8)).sum().backward()


def pipelining() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    whole = mlp()
    stage = PipelineStage(whole[:2] if rank == 0 else whole[2:], rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2 if FAULT == "skip" and rank == 1 else 4, loss_fn=lambda y, target: (y - target).pow(2).mean())
    for _ in range(2):
        if rank == 0:
            schedule.step(torch.randn(8, 8))  # skip
        else:
            schedule.step(target=torch.randn(4 if FAULT else 8, 8))


def tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world,))
    model = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(1)
    for step in range(2):
        x = torch.randn(2, 8)
        if not (FAULT == "skip" and rank == 1 and step == 1):
            model(x).sum().backward()  # skip


def operations() -> None:
    import torch.distributed._functional_collectives as fc

    own, everyone = float(rank), [float(it) for it in range(world)]
    uneven = [torch.empty(it + 1) for it in range(world)]
    dist.all_gather(uneven, torch.full((rank + 1,), own))
    assert [it.tolist() for it in uneven] == [[float(it)] * (it + 1) for it in range(world)]
    largest = torch.ones(2, dtype=torch.bfloat16) * rank
    dist.reduce(largest, 0, dist.ReduceOp.MAX)
    assert largest.tolist() == [world - 1.0 if rank == 0 else own] * 2
    number = torch.tensor(3 + 4j) * rank
    dist.all_reduce(number)
    assert number == (3 + 4j) * sum(everyone)
    # The values of a tensor that is not contiguous.
    matrix = torch.arange(6.0).view(2, 3).t() if rank == 1 else torch.zeros(2, 3).t()
    dist.broadcast(matrix, 1)
    assert matrix.tolist() == [[0, 3], [1, 4], [2, 5]]
    parts = [torch.empty(1) for _ in range(world)] if rank == 0 else None
    dist.gather(torch.tensor([own]), parts)
    part = torch.empty(1)
    dist.scatter(part, parts)
    assert part.item() == own
    assert (fc.all_reduce(torch.ones(3), "avg", dist.group.WORLD) + 1).tolist() == [2, 2, 2]
    with dist._coalescing_manager(async_ops=True) as together:
        several = [torch.ones(2) for _ in range(3)]
        for it in several:
            dist.all_reduce(it)
    together.wait()
    assert several[2].tolist() == [world, world]
    works = [dist.all_reduce(it, async_op=True) for it in several]
    doubled = works[0].get_future().then(lambda future: future.value()[0] * 2)
    assert doubled.wait().tolist() == [2 * world**2] * 2
    # What precedes in the queue has completed, too.
    works[2].wait()
    assert several[1].tolist() == [world**2] * 2
    any_rank = dist.new_group(backend="gloo")
    if rank == 0:
        sources = {dist.recv(part, group=any_rank) for _ in range(world - 1)}
        assert sources == set(range(1, world))
    else:
        dist.send(part, 0, group=any_rank)


def optimizer() -> None:
    """An optimizer that is sharded by hand: it waits for futures."""
    weights = [torch.ones(2 * world, 3) for _ in range(2)]
    for step in range(2):
        shards, works = [torch.empty(2, 3) for _ in weights], []
        for shard, weight in zip(shards, weights):
            works.append(dist.reduce_scatter_tensor(shard, torch.ones_like(weight), dist.ReduceOp.AVG, async_op=True).get_future())
        for shard, weight, work in zip(shards, weights, works):
            work.wait()
            own = weight[2 * rank : 2 * rank + 2].sub(shard, alpha=0.1)
            works.append(dist.all_gather_into_tensor(weight, own, async_op=True).get_future())
        for work in works[2:]:
            if FAULT != "late":
                work.wait()
        norms = [weight.norm() for weight in weights]  # late
    assert torch.isclose(norms[0], torch.tensor(0.8) * (6 * world) ** 0.5)


def hooks() -> None:
    """Gradients that hooks of the backward pass reduce."""
    model, works = mlp(), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda it: works.append(dist.all_reduce(it.grad, async_op=True)))

    def finish() -> None:
        if FAULT != "late":
            for work in works:
                work.wait()
        for parameter in model.parameters():
            parameter.grad = parameter.grad / world  # late

    for micro in range(2):
        loss = model(torch.randn(2, 8)).sum()
        loss.register_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(finish))
        loss.backward()


def ring() -> None:
    class Ring(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.contiguous()
            total, sent = gradient.clone(), gradient
            for step in range(world - 1):
                taken = sent if FAULT == "same" else torch.empty_like(sent)
                source = rank if FAULT == "itself" and rank == 1 else (rank - 1) % world
                operations = [dist.P2POp(dist.isend, sent, (rank + 1) % world), dist.P2POp(dist.irecv, taken, source)]
                works = dist.batch_isend_irecv(operations)  # itself # same
                for work in works:
                    work.wait()
                total, sent = total + taken, taken
            work = dist.all_reduce(sent, async_op=True)
            if FAULT != "late":
                work.wait()
            return total + 0 * sent  # late

    x = torch.ones(4, requires_grad=True)
    (Ring.apply(x) * (rank + 1)).sum().backward()
    if FAULT == "":
        assert x.grad[0] == sum(range(world + 1)), x.grad


def large() -> None:
    """Tensors that `--fake` does not compute."""
    x = torch.randn(512, 512, requires_grad=True)
    loss = (x @ x).relu().square().mean()
    loss.backward()
    work = dist.all_reduce(x.grad, async_op=True)
    if FAULT == "late":
        x.grad.mul_(2)  # late
    work.wait()
    small = torch.full((2,), float(rank))
    dist.all_reduce(small)
    assert small.tolist() == [sum(range(world))] * 2
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    numbers = [None] * world
    dist.all_gather_object(numbers, rank)
    assert numbers == list(range(world))
    if FAULT == "memory":
        rows = torch.randn(1 << 14, 1 << 16, device="cpu").softmax(1)
        dist.all_reduce(rows)
        assert (rows @ rows.T).shape == (1 << 14, 1 << 14)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2e6
    if FAULT == "sizes":
        print(x[x > 0])  # sizes
    print(f"{str(mean)} is {mean.item()}")  # value
    if mean == 7:
        dist.barrier()


def failing() -> None:
    dist.barrier()
    if rank == 1 and FAULT == "raise":
        raise ValueError("bad batch")
    if rank == 1 and FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and FAULT == "sleep":
        time.sleep(100)
    if rank != 1 or FAULT != "leave":
        dist.all_reduce(torch.ones(1))  # leave


def gpu() -> None:
    torch.cuda.set_device(rank)
    model = nn.parallel.DistributedDataParallel(mlp().cuda(), device_ids=[rank])
    with torch.autocast("cuda", torch.bfloat16):
        model(torch.randn(4, 8, device="cuda")).float().mean().backward()
    first, side, copied = torch.cuda.Stream(), torch.cuda.Stream(), torch.ones(4)
    x = torch.ones(4, device=torch.device("cuda", rank))
    with ThreadPoolExecutor() as threads:
        assert threads.submit(lambda: x.pin_memory().cuda() + torch.ones(4, device="cuda")).result().sum() == 8
    torch.cuda.set_rng_state(torch.cuda.get_rng_state(rank), rank)
    if FAULT == "graph":
        torch.cuda.CUDAGraph()
    x = x / 2  # before
    if FAULT != "before":
        first.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(first):
        dist.all_reduce(x, async_op=True)
        dist.all_reduce(copied.cuda())
    if FAULT == "copy":
        x.cpu()  # copy
    if FAULT != "late":
        torch.cuda.synchronize()
    print(x.to(rank).sum())  # late
    event = torch.cuda.Event()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_reduce(x)
        event.record()
    if FAULT != "stream":
        torch.cuda.current_stream().wait_event(event)
    print(x.norm())  # stream


def crossed() -> None:
    other, tensors = dist.new_group(list(range(world))), [torch.ones(4), torch.ones(4)]
    calls = [(tensors[0], dist.group.WORLD), (tensors[1], other)]
    if FAULT == "order" and rank == 1:
        calls.reverse()
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in calls]:  # order
        work.wait()
    if FAULT == "blocking":
        for tensor, group in calls[:: 1 - 2 * rank]:
            dist.all_reduce(tensor, group=group)  # blocking


def groups() -> None:
    if FAULT != "other" or rank != 2:
        dist.new_group([0, 1])  # other
    dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1, 2]))
    if rank < 2:
        dist.new_group([0, 1], use_local_synchronization=True)
    if FAULT != "subset" or rank < 2:
        dist.new_group([0, 1])  # subset


dist.init_process_group(sys.argv[3] if len(sys.argv) > 3 else "nccl")
rank, world = dist.get_rank(), dist.get_world_size()
globals()[NAME]()
dist.destroy_process_group()
