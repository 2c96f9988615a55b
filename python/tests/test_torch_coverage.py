"""What the backend runs, leaves to another backend, or checks as a call without code. PyTorch itself is the reference."""

import math
import warnings

import numpy as np
import pytest

import hir.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as fc  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402


def results_and_gradients(function, args):
    inputs = [it.detach().clone().requires_grad_(it.is_floating_point()) for it in args]
    torch.manual_seed(0)
    results = function(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    sum(it.float().square().sum() for it in results if it.requires_grad).backward()
    return [*results, *(it.grad for it in inputs)]


def compare(function, *args, tolerance=1e-4, **options):
    """Compares values and gradients with those of PyTorch. By default, what hir does not run is an error."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="hir", options={"run": "hir", "fallback": "aot_eager", **options})
    for ours, theirs in zip(results_and_gradients(compiled, args), results_and_gradients(function, args), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def tensor(*shape, dtype=torch.float32):
    return torch.linspace(-3, 5, int(np.prod(shape))).mul(7).sin().reshape(shape).to(dtype)


IMAGES = tensor(2, 4, 9, 8)
GROUPS = torch.tensor([4, 4, 16], dtype=torch.int32)


def rotated(x, angles):
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles.detach())
    return torch.view_as_real(pairs).flatten(-2)


RUNS = {
    "max_pool2d": (lambda x: F.max_pool2d(x.sin(), 3, 2, 1, ceil_mode=True, return_indices=True), IMAGES),
    "max_pool2d, dilated": (lambda x: F.max_pool2d(x, (3, 2), (1, 2), (1, 0), (2, 1)), IMAGES),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), tensor(1, 2, 4, 4, 4)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), IMAGES),
    "avg_pool2d, divisor": (lambda x: F.avg_pool2d(x, (5, 3), 4, 1, divisor_override=3), IMAGES),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x.sin(), (4, 3)), IMAGES),
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), tensor(2, 4, 9), tensor(3, 4, 3)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, (1, 3), (1, 0), (2, 1)), IMAGES, tensor(6, 4, 3, 2), tensor(6)),
    "conv2d, groups": (lambda x, w: F.conv2d(x, w, groups=2), IMAGES, tensor(6, 2, 3, 2)),
    "dropout": (lambda x: F.dropout(F.dropout(x.sin(), 0.1), 0.5) + torch.rand_like(x) + torch.rand(8) * torch.randn(8) + torch.randperm(8), IMAGES),
    "as_strided": (lambda x: x.sin().as_strided((5, 2), (4, 3)) + x.as_strided((2, 5), (5, 1)).T, tensor(4, 6)),
    "grouped rows": (lambda a, b: torch._grouped_mm(a, b, offs=GROUPS), *(tensor(*it, dtype=torch.bfloat16) for it in ((16, 16), (3, 16, 16)))),
    "complex numbers": (rotated, tensor(2, 4, 8), tensor(4, 4)),
    "norms": (lambda a, b: torch.nn.utils.get_total_norm((a, b), 3.0) * a, tensor(4, 4), tensor(4)),
    "lists": (lambda a, b: (*torch._foreach_addcdiv([a, b], [a, b], [b + 3, a + 3], [0.1, 0.2]), *torch._foreach_maximum([a, b], 0.5)), tensor(4), tensor(4)),
    "cond": (lambda x: torch.cond(x.sum() > 0, lambda x: (x.sin(), x + 1), lambda x: (x.cos(), x - 1), (x,)), tensor(4, 3)),
    "cond in cond": (lambda x: torch.cond(x.sum() > 9, lambda x: x + 1, lambda x: torch.cond(x[0] > 0, lambda x: x * 2, lambda x: x * 3, (x,)), (x,)), tensor(4)),
    "scan": (lambda x: scan(lambda c, x: (c + x, c * x), torch.zeros(3), x), tensor(4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_hir_runs(name):
    function, *args = RUNS[name]
    if name == "as_strided":
        args = [it.sin() for it in args]
    half = args[0].dtype == torch.bfloat16
    # The gradient of a strided view scatters into a strided view of an input, which PyTorch runs.
    runs = {"run": "auto"} if name == "as_strided" else {}
    compare(function, *args, tolerance=2e-2 if half else 1e-4, **runs)


ROWS, DOCUMENTS = torch.arange(16), torch.tensor([0] * 6 + [1] * 10)
ATTENTIONS = {
    "causal": {"mask": lambda b, h, q, k: q >= k},
    "documents": {"mask": lambda b, h, q, k: (DOCUMENTS[q] == DOCUMENTS[k]) & (q - k < 4 + h)},
    "distances": {"score_mod": lambda score, b, h, q, k: score + (k - q) * 0.1},
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_flexible_attention_runs_and_has_gradients(name, monkeypatch):
    change = ATTENTIONS[name]
    mask = create_block_mask(change["mask"], None, 2, 16, 16, device="cpu", BLOCK_SIZE=8) if "mask" in change else None

    def attention(q, k, v):
        return flex_attention(q, k, v, change.get("score_mod"), block_mask=mask, enable_gqa=True)

    def written_out(q, k, v):
        scores = q @ k.transpose(-1, -2) / math.sqrt(8)
        places = (0, torch.arange(2).view(2, 1, 1), ROWS.view(16, 1), ROWS)
        if "mask" in change:
            return scores.masked_fill(~change["mask"](*places), -math.inf).softmax(-1) @ v
        return change["score_mod"](scores, *places).softmax(-1) @ v

    # PyTorch has no kernel for its gradient on the CPU, and refuses it.
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    args = tensor(1, 2, 16, 8), tensor(1, 1, 16, 8).cos(), tensor(1, 1, 16, 8)
    compiled = torch.compile(attention, backend="hir", options={"run": "hir"})
    for ours, theirs in zip(results_and_gradients(compiled, args), results_and_gradients(written_out, args), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    program = capture(lambda rank, x: attention(x, x, x) * rank, torch.ones(1, 2, 16, 8))
    assert not program.opaque and program.check().faults == ()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
def test_optimizers_on_lists_of_tensors_run(name):
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        torch._dynamo.reset()
        parameters = [nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))]
        optimizer = getattr(torch.optim, name)(parameters, 0.1, foreach=True)
        step = torch.compile(optimizer.step, backend="hir", options={"run": "hir"}) if compiled else optimizer.step
        for _ in range(3):
            for it in parameters:
                it.grad = torch.randn_like(it)
            step()
        results.append([it.detach() for it in parameters])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_each_combination_of_symbolic_sizes_is_compiled():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2))
    compiled = torch.compile(model, backend="hir", dynamic=True, options={"run": "hir"})
    for rows in (3, 5, 8, 5):
        for ours, theirs in zip(*(results_and_gradients(it, [tensor(rows, 4)]) for it in (compiled, model)), strict=True):
            torch.testing.assert_close(ours, theirs)


def unknown(x):
    return torch.special.bessel_j0(x.detach()) * x.sin()


def test_another_backend_compiles_forward_and_backward_graph_as_one():
    graphs = []

    def fallback(module, inputs):
        graphs.append(module)
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    with pytest.warns(UserWarning, match="PyTorch runs the joint graph: hir does not know .*bessel_j0"):
        compare(unknown, tensor(4), run="auto", fallback=fallback)
    assert len(graphs) == 1
    with pytest.warns(UserWarning, match="the backend `broken` fails: no compiler"):
        compare(unknown, tensor(4), run="auto", fallback=broken)
    with pytest.raises(hir.torch.TorchImportError, match="hir does not run the joint graph: .*bessel_j0"):
        compare(unknown, tensor(4))
    with pytest.raises(hir.torch.TorchImportError, match="aten.mul.Tensor` .hir does not know the argument `2j`"):
        compare(lambda x: (x.to(torch.complex64) * 2j).imag * x, tensor(4))


def broken(module, inputs):
    raise RuntimeError("no compiler")


def total(x):
    return fc.all_reduce(x, "sum", dist.group.WORLD)


def capture(step, *args, ranks=2, **named):
    return hir.torch.capture_ranks(lambda rank: (lambda *them: step(rank, *them), args), ranks, **named)


def loop(x):
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1]


def test_scaled_products_of_narrow_floats_are_imported():
    def step(rank, x, w):
        narrow = [it.to(torch.float8_e4m3fn) for it in (total(x), w)]
        each = torch._scaled_mm(narrow[0], narrow[1].t(), x.abs().amax(1, True), w.abs().amax(1, True).t(), out_dtype=torch.bfloat16)
        return torch._scaled_mm(*narrow[::-1], scale_a=torch.tensor(0.5), scale_b=torch.tensor(2.0), bias=x[0].bfloat16(), out_dtype=torch.bfloat16) + each

    program = capture(step, tensor(16, 16), tensor(16, 16))
    assert program.opaque == () and program.check().faults == ()
    assert program.text.count("matmul(") == 2


@pytest.mark.parametrize(
    "unknown",
    [
        loop,
        lambda x: torch.angle(x.to(torch.complex64)),
        lambda x: x.to(torch.float8_e8m0fnu).float(),
        lambda x: x + torch.arange(6000.0)[:3].max() + torch.tensor([0.5] * 5000)[:3],
        lambda x: torch.cond(x.sum() > 0, lambda x: x[torch.tensor([0, 1, 2])], lambda x: x + 1, (x,)),
    ],
)
def test_the_rest_of_a_program_with_unknown_parts_is_checked(unknown):
    right = capture(lambda rank, x: total(unknown(x)), torch.ones(3))
    right.check().raise_if_found()
    assert right.opaque or "+" in right.text
    [fault] = capture(lambda rank, x: total(unknown(x)) if rank == 0 else unknown(x), torch.ones(3)).check().faults
    assert fault.code == "E0705"


def test_a_condition_that_all_ranks_decide_alike_is_a_branch():
    def alike(rank, x):
        return torch.cond(total(x).sum() > 0, lambda x: total(x), lambda x: total(x * 2), (x,))

    program = capture(alike, torch.ones(3))
    program.check().raise_if_found()
    assert not program.opaque and not program.not_checked and program.note is None
    assert [float(result[0]) for [result] in program.run(passes="@overlap{}")] == [2.0, 2.0]

    def groups(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        inner, outer = mesh.get_group("tp"), mesh.get_group("dp")

        def step(x, whole):
            alike = fc.all_reduce(x, "sum", inner).sum() > 0
            return torch.cond(alike, lambda x: fc.all_reduce(x, "sum", inner if whole else outer), lambda x: x * 2, (x,))

        return step

    # The ranks of `tp` decide alike, those of `dp` may not.
    for along_tp in (True, False):
        program = hir.torch.capture_ranks(lambda rank: (groups(rank), (torch.ones(3), along_tp)), 4)
        assert bool(program.not_checked) is not along_tp and not program.opaque

    [own] = capture(lambda rank, x: torch.cond(x.sum() > 0, total, lambda x: x * 2, (x,)), torch.ones(3)).not_checked
    assert "its branches communicate, and hir does not know that all ranks decide alike" in own
    [often] = capture(
        lambda rank, x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, total(x)), (torch.tensor(0), x))[1], torch.ones(3)
    ).not_checked
    assert "hir does not know how often each rank calls what communicates in it" in often


X, W = tensor(8, 8), tensor(8, 8) + 1
WORLD = (4,)


def resharded(shape, before, after):
    def build(rank):
        mesh = init_device_mesh("cpu", shape)
        own = X
        for dim, it in enumerate(before):
            if isinstance(it, Shard):
                own = own.chunk(shape[dim], it.dim)[mesh.get_coordinate()[dim]]

        def step(x, w):
            whole = DTensor.from_local(x, mesh, before).redistribute(mesh, [Replicate()] * len(shape))
            product = whole @ DTensor.from_local(w, mesh, [Replicate()] * len(shape))
            return product.redistribute(mesh, after).to_local() * 2

        return step, (own, W)

    def expected(rank):
        result = X @ W * 2
        for dim, it in enumerate(after):
            if isinstance(it, Shard):
                result = result.chunk(shape[dim], it.dim)[rank // int(np.prod(shape[dim + 1 :])) % shape[dim]]
        return result

    return build, expected


@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        ((2,), [Shard(0)], [Shard(1)]),
        ((4,), [Shard(0)], [Shard(0)]),
        ((2, 2), [Shard(0), Replicate()], [Shard(0), Shard(1)]),
        ((2, 2), [Replicate(), Shard(0)], [Shard(1), Replicate()]),
    ],
)
def test_a_replicated_tensor_becomes_a_sharded_one_and_is_overlapped(shape, before, after):
    build, expected = resharded(shape, before, after)
    program = hir.torch.capture_ranks(build, int(np.prod(shape)))
    assert program.note is None and not program.opaque
    assert "Allgather" not in program.lowered("@overlap{}").short
    for passes in (None, "@lower", "@overlap{}"):
        for rank, [result, *_] in enumerate(program.run(passes=passes)):
            np.testing.assert_allclose(result, expected(rank).numpy(), rtol=1e-5, atol=1e-5)


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(tensor(size, 4))

    def forward(self, x):
        return x + fc.all_reduce((x @ self.weight.T) @ self.weight, "sum", dist.group.WORLD)


class Blocks(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.blocks = nn.ModuleList(map(Block, sizes))

    def forward(self, x):
        for it in self.blocks:
            x = it(x).relu()
        return x


@pytest.mark.parametrize(("sizes", "bodies"), [((3,) * 6, 1), ((3, 3, 2, 2, 3, 2), 2), ((3,) * 3, 0)])
def test_equal_ranks_and_equal_layers_are_traced_once(monkeypatch, sizes, bodies):
    graph_of, traced = hir.torch._capture.graph_of, []

    def counted(module, name):
        traced.append(len({id(getattr(module, it.target)) for it in module.graph.nodes if it.op == "get_attr"}))
        return graph_of(module, name)

    monkeypatch.setattr(hir.torch._capture, "graph_of", counted)
    inputs = [X[:, :4] * (rank + 1) for rank in range(3)]
    blocks = Blocks(sizes).requires_grad_(False)
    program = hir.torch.capture_ranks(lambda rank: (blocks, (inputs[rank],)), 3)
    assert traced == [bodies] and program.note is None and not program.opaque
    for block in blocks.blocks:
        total = sum((it @ block.weight.T) @ block.weight for it in inputs)
        inputs = [(it + total).relu() for it in inputs]
    for [result], expected in zip(program.run(), inputs, strict=True):
        np.testing.assert_allclose(result, expected.numpy(), rtol=1e-4)
    other = hir.torch.capture_ranks(lambda rank: (blocks if rank else blocks.blocks[0], (X[:, :4],)), 3)
    assert len(traced) == 3 and other.note is not None


def test_ranks_of_a_model_of_dtensors_are_traced_once(monkeypatch):
    capture_graph, traced = hir.torch._capture.capture_graph, []
    monkeypatch.setattr(hir.torch._capture, "capture_graph", lambda *args, **more: traced.append(args) or capture_graph(*args, **more))

    def build(rank):
        model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        return parallelize_module(model, init_device_mesh("cpu", (4,)), plan), (X[:, :4],)

    program = hir.torch.capture_ranks(build, 4)
    assert len(traced) == 1 and program.note is None and not program.opaque


class Wide(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False), scale

    def forward(self, x):
        return x + self.down(self.up(x).relu()) * self.scale


@pytest.mark.parametrize("grad", [False, True])
def test_equal_layers_of_dtensors_are_traced_once(monkeypatch, grad):
    found = []

    def build(rank, scales):
        model, mesh = nn.Sequential(*map(Wide, scales)).requires_grad_(grad), init_device_mesh("cpu", (2,))
        for number, layer in enumerate(model):
            shard = Shard(-1) if number < 5 else Replicate()
            plan = {"up": ColwiseParallel(output_layouts=shard), "down": RowwiseParallel(input_layouts=shard)}
            parallelize_module(layer, mesh, plan)
        calls = hir.torch._equal_ranks.calls_of(model, (X[:, :4],), "forward").calls
        found.append([number - 1 for number, call in enumerate(calls[1:], 1) if isinstance(call[0], int)])
        return model, (X[:, :4],)

    def program():
        return hir.torch.capture_ranks(lambda rank: build(rank, (1, 1, 1, 2, 1, 1)), 2)

    once = program()
    # The input of the first layer has values. The fourth one has another scale, and the last one another placement.
    assert once.note is None and [len(it) for it in found] == [2] * len(found)
    other = hir.torch.capture_ranks(lambda rank: build(rank, (1, 1, 1, 2 if rank else 1, 1, 1)), 2)
    assert other.text.count("rank == 0") > once.text.count("rank == 0")
    monkeypatch.setattr(hir.torch._layers, "FEWEST", 99)
    assert program().text == once.text and found[-1] == []


def test_operands_and_parts_of_each_rank():
    def step(rank, x):
        parts = (fc.all_gather_tensor(x, 0, dist.group.WORLD) @ W).unbind()
        return parts[7 - rank] + 1, torch.stack([parts[rank], parts[2 * rank]])

    program = capture(step, X[:4])
    assert program.note is None
    rows = torch.cat([X[:4], X[:4]]) @ W
    for rank, results in enumerate(program.run(passes="@overlap{}")):
        np.testing.assert_allclose(results[0], rows[7 - rank].numpy() + 1, rtol=1e-5)
        np.testing.assert_allclose(results[1], rows[[rank, 2 * rank]].numpy(), rtol=1e-5)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_meshes_are_objects_of_graphs(direction):
    def build(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = DTensor.from_local(torch.full((2, 4), 3.0 + rank), mesh, [Shard(0)]).requires_grad_()
        return (lambda x: (x * x).redistribute(mesh, [Replicate()]).to_local()), (x,)

    program = hir.torch.capture_ranks(build, 2, direction=direction)
    program.check().raise_if_found()
    assert program.note is None
    if direction == "backward":
        assert [float(result[0].max()) for result in program.run()] == [6.0, 8.0]


def test_nothing_is_left_to_pytorch_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(lambda x: x.sin() * 2, tensor(4), run="auto")


def test_graphs_that_are_not_decomposed_have_the_gradient_of_dropout():
    from torch.fx.experimental.proxy_tensor import make_fx

    args = tensor(4, 6), tensor(4, 6) > 0
    traced = make_fx(lambda gradient, mask: torch.ops.aten.native_dropout_backward(gradient, mask, 1.25))(*args)
    [[result]] = hir.torch.from_fx(traced).run([[it.numpy() for it in args]])
    np.testing.assert_allclose(result, (args[0] * args[1] * 1.25).numpy(), rtol=1e-6)
