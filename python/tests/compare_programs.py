"""Programs of test_compare.py. Each case has ``single``, and ``parallel`` with a switch that makes it faulty."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel as DDP

WORDS, WIDTH, BATCH, LENGTH = 16, 8, 8, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, tied=False, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.drop = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words):
        x = self.embed(words)
        for block in self.blocks:
            x = self.drop(block(x))
        return self.head(self.norm(x))


def data(ignored=0):
    """Words and targets; the first sequence has ``ignored`` targets less."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)
    targets = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)
    targets.flatten()[:ignored] = -100
    return words, targets


def loss_of(logits, targets, reduction="mean"):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction=reduction)


def training(model, words, targets, optimizer=None, loss=loss_of, clip=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)

    def step():
        value = loss(model(words), targets)
        value.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return value

    return model, step


def mine(rank, ranks, *tensors):
    return [it.chunk(ranks)[rank] for it in tensors]


def single(**options):
    clip = options.pop("clip", None)
    ignored = options.pop("ignored", 0)
    return training(Model(**options), *data(ignored), clip=clip)


def summed(_, bucket):
    """A hook of DDP that does not divide."""
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda it: it.value()[0])


def ddp(rank, ranks, fault="", **options):
    model = DDP(Model(**options))
    if fault == "sum":
        model.register_comm_hook(None, summed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def drift(*_):
        model.module.norm.bias.grad.neg_()

    if fault == "drift" and rank == 1:
        optimizer.register_step_pre_hook(drift)
    return training(model, *mine(0 if fault == "rows" else rank, ranks, *data()), optimizer)


def mesh(ranks):
    return init_device_mesh("cpu", (ranks,))


def fsdp(rank, ranks, clip=None, policy=None, **options):
    model = Model(**options)
    kind = {"mp_policy": policy} if policy else {}
    for block in model.blocks:
        fully_shard(block, **kind)
    fully_shard(model, **kind)
    return training(model, *mine(rank, ranks, *data()), clip=clip)


PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def tensor_parallel(rank, ranks, fault=""):
    model = Model()
    whole = model.blocks[0].up.weight.detach().clone()
    for block in model.blocks:
        parallelize_module(block, mesh(ranks), PLAN)
    if fault == "shard":
        model.blocks[0].up.weight.to_local().data.copy_(whole.chunk(ranks)[ranks - 1 - rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    return training(model, *data(), optimizer)


# Right plans.


def sequence_parallel(rank, ranks):
    model = Model()
    tp = mesh(ranks)
    plan = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel()}
    parallelize_module(model, tp, plan | {"head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())})
    inner = {"": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Shard(1)), "norm": SequenceParallel()}
    inner |= {"up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False)}
    for block in model.blocks:
        parallelize_module(block, tp, inner)
    return training(model, *data(), torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False))


def vocabulary_parallel(rank, ranks):
    model = Model()
    plan = {"embed": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    parallelize_module(model, mesh(ranks), plan)

    def loss(logits, targets):
        with loss_parallel():
            value = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            value.backward()
        return value

    words, targets = data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)

    def step():
        value = loss(model(words), targets)
        optimizer.step()
        return value

    return model, step


def accumulation(rank, ranks, parts=2, missing=False):
    model = DDP(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    words, targets = mine(rank, ranks, *data())

    def step():
        for part, (x, y) in enumerate(zip(words.chunk(parts), targets.chunk(parts))):
            model.require_backward_grad_sync = part == parts - 1 and not missing
            (loss_of(model(x), y) / parts).backward()
        optimizer.step()

    return model, step


def single_sgd():
    model = Model()
    return training(model, *data(), torch.optim.SGD(model.parameters(), lr=0.1))


def uneven(rank, ranks, is_right=True):
    """The last rank has the longer sequences; each counts its tokens."""
    model = DDP(Model())
    words, targets = data(ignored=9)
    rows = [slice(0, 5), slice(5, 8)][rank]

    def loss(logits, targets):
        if not is_right:
            return loss_of(logits, targets)
        count = (targets != -100).sum()
        dist.all_reduce(count)
        return loss_of(logits, targets, "sum") * ranks / count

    return training(model, words[rows], targets[rows], loss=loss)


def two_dimensions(rank, ranks):
    """FSDP2 over two ranks, tensor parallelism over two others."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = Model()
    for block in model.blocks:
        parallelize_module(block, grid["tp"], PLAN)
        fully_shard(block, mesh=grid["dp"])
    fully_shard(model, mesh=grid["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    return training(model, *mine(rank // 2, 2, *data()), optimizer)


class Sum(torch.autograd.Function):
    """An all-reduce whose gradient is the identity."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Copy(torch.autograd.Function):
    """The identity whose gradient is an all-reduce."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class OwnBlock(Block):
    """Tensor parallelism with plain tensors, as Megatron-LM writes it."""

    def __init__(self, whole, rank, ranks, fault=""):
        super().__init__()
        self.load_state_dict(whole.state_dict())
        other = (rank + 1) % ranks if fault == "shard" else rank
        self.up.weight = nn.Parameter(self.up.weight.chunk(ranks)[rank].clone())
        self.up.bias = nn.Parameter(self.up.bias.chunk(ranks)[rank].clone())
        self.down.weight = nn.Parameter(self.down.weight.chunk(ranks, 1)[other].clone())
        self.fault = fault

    def forward(self, x):
        y = self.norm(x) if self.fault == "copy" else Copy.apply(self.norm(x))
        y = F.linear(F.gelu(self.up(y)), self.down.weight)
        return x + (y if self.fault == "sum" else Sum.apply(y)) + self.down.bias


def own_tensor_parallel(rank, ranks, fault=""):
    model = Model()
    model.blocks = nn.ModuleList(OwnBlock(it, rank, ranks, fault) for it in model.blocks)
    return training(model, *data())


class Stage(nn.Module):
    """Half of the model, with its names."""

    def __init__(self, model, rank):
        super().__init__()
        self.rank = rank
        self.blocks = nn.ModuleDict({str(rank): model.blocks[rank]})
        if rank == 0:
            self.embed = model.embed
        else:
            self.norm, self.head = model.norm, model.head

    def forward(self, x):
        x = self.blocks[str(self.rank)](self.embed(x) if self.rank == 0 else x)
        return x if self.rank == 0 else self.head(self.norm(x))


def pipeline(rank, ranks, scale=True):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    model = Stage(Model(), rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    words, targets = data()
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=loss_of, scale_grads=scale)

    def step():
        schedule.step(*([words] if rank == 0 else []), **({"target": targets} if rank else {}))
        optimizer.step()

    return model, step


def stacked(rank, ranks):
    """Two steps with momentum; the third rank has fewer rows."""
    model = DDP(Model())
    words, targets = data()
    rows = [slice(0, 3), slice(3, 6), slice(6, 8)][rank]
    return two_steps(model, words[rows], targets[rows], len(words))


def two_steps(model, words, targets, count):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        for _ in range(2):
            optimizer.zero_grad()
            size = dist.get_world_size()
            (loss_of(model(words), targets, "sum") * size / (count * LENGTH)).backward()
            optimizer.step()

    return model, step


def with_options(build, **options):
    """A function with options: it has a name, and the parameters that are left."""

    def call(rank, ranks):
        return build(rank, ranks, **options)

    return call


def one(**options):
    return lambda: single(**options)


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

#: Right plans: the parallel program, that on one device, the number of ranks. The gate runs the first ones.
RIGHT = {
    "three ranks, two steps": (stacked, lambda: two_steps(Model(), *data(), BATCH), 3),
    "dropout, tied": (with_options(ddp, dropout=0.5, tied=True), one(dropout=0.5, tied=True), 2),
    "accumulation": (accumulation, single_sgd, 2),
    "fsdp, clipped, bfloat16": (with_options(fsdp, clip=0.1, policy=BF16), one(clip=0.1), 2),
    "sequence parallel": (sequence_parallel, single, 2),
    "pipeline": (pipeline, single_sgd, 2),
    "uneven tokens": (uneven, one(ignored=9), 2),
    "fsdp": (fsdp, single, 2),
    "own tensor parallel": (own_tensor_parallel, single, 2),
    "tensor parallel": (tensor_parallel, single, 2),
    "vocabulary parallel": (vocabulary_parallel, single, 2),
    "fsdp and tensor parallel": (two_dimensions, single, 4),
}


# Faults that were reported, with the mended form. Each function gets whether it is right.


def regression():
    return nn.Sequential(OrderedDict(layer=nn.Linear(WIDTH, WIDTH)))


def scores():
    return nn.Sequential(OrderedDict(head=nn.Linear(WIDTH, WORDS, bias=False)))


def flags():
    return nn.Sequential(OrderedDict(first=nn.Linear(WIDTH, WIDTH), relu=nn.ReLU(), second=nn.Linear(WIDTH, WIDTH)))


def replicated(module, ranks):
    return distribute_module(module, mesh(ranks))


def sgd(model, x, y, loss=lambda out, y: (out - y).square().mean()):
    return training(model, x, y, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False), loss)


def rows(count):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, WIDTH, generator=generator), torch.randn(count, WIDTH, generator=generator)


def mean_single():
    x, y = rows(5)
    return sgd(regression(), x, y)


def mean(rank, ranks, is_right):
    """pytorch 162692: the mean of a DTensor whose shards have other sizes was the mean of their means."""
    x, y = (distribute_tensor(it, mesh(ranks), [Shard(0)]) for it in rows(5))
    model = replicated(regression(), ranks)

    def loss(out, y):
        error = (out - y).square()
        if is_right:
            return error.mean()
        return DTensor.from_local(error.to_local().mean(), mesh(ranks), [Partial("avg")])

    return sgd(model, x, y, loss)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.layer = nn.Linear(WIDTH, WIDTH, bias=False)
        self.grad_placements = None

    def forward(self, x):
        scale = self.scale
        if isinstance(scale, DTensor):
            scale = scale.to_local(grad_placements=self.grad_placements)
        return self.layer(x * scale)


def total(out, y):
    return (out - y).square().sum()


def scaled_single():
    return sgd(Scaled(), *rows(6), total)


def local_scale(rank, ranks, is_right):
    """torchtitan 2532: the gradient of a replicated parameter is taken for replicated behind `to_local()`, but each rank has a part of it."""
    model = Scaled()
    model.scale = nn.Parameter(distribute_tensor(model.scale.detach(), mesh(ranks), [Replicate()]))
    model.grad_placements = [Partial()] if is_right else None
    model.layer.weight.register_hook(lambda gradient: dist.all_reduce(gradient) or gradient)
    x, y = mine(rank, ranks, *rows(6))
    return sgd(model, x, y, total)


def lost_update(rank, ranks, is_right):
    """pytorch 176076: FSDP2 did not update the last rank's shard of a tied weight whose rows the ranks do not divide."""
    model = Model(tied=True)
    fully_shard(model)
    kept = [it for it in model.parameters() if is_right or rank < ranks - 1 or it is not model.head.weight]
    return training(model, *mine(rank, ranks, *data()), torch.optim.AdamW(kept, lr=0.01))


def entropy(logits, _):
    return -(logits.log_softmax(-1) * logits.softmax(-1)).sum(-1).mean()


def entropy_single():
    return sgd(scores(), *rows(6), entropy)


def log_softmax(rank, ranks, is_right):
    """pytorch 190746: in `loss_parallel()`, the gradient of a log_softmax that no cross_entropy follows is that of the identity."""
    model = scores()
    parallelize_module(model, mesh(ranks), {"head": ColwiseParallel(use_local_output=False)})
    x, y = rows(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step():
        if is_right:
            entropy(model(x), y).backward()
        else:
            with loss_parallel():
                entropy(model(x), y).backward()
        optimizer.step()

    return model, step


def bias_single():
    return sgd(regression(), *rows(6))


class RowParallel(nn.Module):
    """pytorch 163193: what is added to a partial result is added on each rank."""

    def __init__(self, layer, rank, ranks, is_right):
        super().__init__()
        self.weight, self.bias = nn.Parameter(layer.weight.detach().chunk(ranks, 1)[rank].clone()), layer.bias
        self.rank, self.ranks, self.is_right = rank, ranks, is_right

    def forward(self, x):
        x = x.chunk(self.ranks, -1)[self.rank]
        return Sum.apply(F.linear(x, self.weight)) + self.bias if self.is_right else Sum.apply(F.linear(x, self.weight, self.bias))


def partial_bias(rank, ranks, is_right):
    model = regression()
    model.layer = RowParallel(model.layer, rank, ranks, is_right)
    return sgd(model, *rows(6))


class Doubled(nn.Linear):
    is_right = None

    def forward(self, x):
        x = super().forward(x)
        if not isinstance(x, DTensor):
            return x * 2
        whole = {"shape": x.shape, "stride": x.stride()} if self.is_right else {}
        return DTensor.from_local(x.to_local() * 2, x.device_mesh, x.placements, **whole)


def mapped_single():
    return Doubled(WIDTH, WIDTH), rows(5)[:1]


def uneven_map(rank, ranks, is_right):
    """pytorch 172812: `local_map` took for the size of the whole that of this rank's shard times the number of ranks."""
    model = replicated(Doubled(WIDTH, WIDTH), ranks)
    model.is_right = is_right
    return model, (distribute_tensor(rows(5)[0], mesh(ranks), [Shard(0)]),)


SMOOTHING = 0.25


def smoothed_single():
    def loss(logits, y):
        return F.cross_entropy(logits, y, label_smoothing=SMOOTHING)

    return sgd(scores(), rows(6)[0], torch.arange(6), loss)


def smoothing(rank, ranks, is_right):
    """Megatron-LM 737: label smoothing takes the mean of the log probabilities over this rank's part of the vocabulary."""
    model = scores()
    part = WORDS // ranks
    model.head.weight = nn.Parameter(model.head.weight.detach().chunk(ranks)[rank].clone())

    def loss(logits, y):
        total = Sum.apply(logits.exp().sum(-1))
        at = y - rank * part
        is_mine = (at >= 0) & (at < part)
        found = torch.where(is_mine, logits.gather(-1, at.clamp(0, part - 1)[:, None])[:, 0], 0.0)
        mean = Sum.apply(logits.sum(-1)) / WORDS if is_right else logits.mean(-1)
        return total.log().mean() - ((1 - SMOOTHING) * Sum.apply(found) + SMOOTHING * mean).mean()

    model.register_forward_pre_hook(lambda _, inputs: Copy.apply(*inputs))
    return sgd(model, rows(6)[0], torch.arange(6), loss)


def crossed_single():
    return sgd(flags(), *rows(6), total)


def crossed(rank, ranks, is_right):
    """unsloth-zoo 967: ranks make other collectives of one size in another order, and get each other's sums."""
    model = flags()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = mine(rank, ranks, *rows(6))

    def step():
        total(model(x), y).backward()
        layers = [model.first, model.second]
        for layer in layers[::-1] if rank == 1 and not is_right else layers:
            dist.all_reduce(layer.weight.grad)
            dist.all_reduce(layer.bias.grad)
        optimizer.step()

    return model, step


# PyTorch's own tools find none of them (2.15, gloo, two ranks): TORCH_DISTRIBUTED_DEBUG=DETAIL says nothing, CommDebugMode counts collectives,
# DebugMode lists operators, and detect_anomaly says nothing or refuses DTensors.
#
#: By the report: the program with its faulty and its mended form, that on one device, the first tensor that differs, and how.
REPORTED = {
    "pytorch 162692": (mean, mean_single, "output", "local mean"),
    "torchtitan 2532": (local_scale, scaled_single, "gradient", "unreduced"),
    "pytorch 176076": (lost_update, one(tied=True), "update", "zero"),
    "pytorch 190746": (log_softmax, entropy_single, "gradient", "unknown"),
    "pytorch 163193": (partial_bias, bias_single, "forward", "twice"),
    "pytorch 172812": (uneven_map, mapped_single, "forward", "shape"),
    "Megatron-LM 737": (smoothing, smoothed_single, "output", "unreduced"),
    "unsloth-zoo 967": (crossed, crossed_single, "gradient", "crossed"),
}
