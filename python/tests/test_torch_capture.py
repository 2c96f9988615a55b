"""Captures of PyTorch programs. PyTorch itself is the reference; without it, these tests are skipped."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace

import numpy as np
import pytest

import hir
import hir.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from hir.torch._pairing import Pairing, Store  # noqa: E402

import torch_programs  # noqa: E402

SOURCE = Path(torch_programs.__file__)


def line_of(text: str) -> str:
    """Where a line of the programs is, as places name it."""
    [number] = [i + 1 for i, it in enumerate(SOURCE.read_text().splitlines()) if it.endswith(text)]
    return f"torch_programs.py:{number}"


def job(name: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SOURCE), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_tensor_parallel_model_is_one_program(tmp_path):
    program = hir.torch.capture_ranks(torch_programs.tensor_parallel, 2, save=tmp_path / "mlp.hir")
    program.check().raise_if_found()
    assert program.note is None
    assert "Allreduce" in program.lowered().text
    assert f"// {line_of('# line of MLP')}" in hir_text(tmp_path / "mlp.hir")
    torch.manual_seed(0)
    model, x = torch_programs.MLP(), torch.randn(4, 6)
    expected = model(x).detach().numpy()
    # The example has no weights: parallelize_module distributes them by a collective, which does nothing here.
    up, down = (it.weight.detach().numpy() for it in (model.up, model.down))
    inputs = [[x.numpy(), None, up[4 * r : 4 * r + 4], None, down[:, 4 * r : 4 * r + 4], None] for r in range(2)]
    for outputs in program.run(inputs, "@overlap{}"):
        np.testing.assert_allclose(outputs[0], expected, rtol=1e-5, atol=1e-6)


def test_a_transformer_block_is_overlapped_and_gives_the_result_of_the_whole_block():
    program = hir.torch.capture_ranks(torch_programs.sequence_parallel, 2)
    overlapped = program.lowered("@overlap{}").short
    assert "Allgather" not in overlapped and "ReduceScatter" not in overlapped
    program.check("@overlap{}").raise_if_found()
    expected = torch_programs.block()(torch_programs.block_input()).detach().chunk(2, 1)
    for passes in (None, "@lower", "@overlap{}"):
        for outputs, reference in zip(program.run(passes=passes), expected, strict=True):
            np.testing.assert_allclose(outputs[0], reference.numpy(), rtol=1e-5, atol=2e-6)


def test_gradients_of_a_transformer_block_are_captured_and_checked():
    program = hir.torch.capture_ranks(torch_programs.sequence_parallel, 2, direction="backward")
    assert not program.opaque and program.note is None
    for passes in ("@lower", "@overlap{}"):
        program.check(passes).raise_if_found()
    lowered = program.lowered("@lower").short
    # Each all-gather of the forward graph has a reduce-scatter here, and each reduce-scatter an all-gather.
    assert [lowered.count(it) for it in ("type=Allgather", "type=ReduceScatter")] == [2, 2]


def hir_text(path: Path) -> str:
    assert hir.read(path).ranks == 2
    return path.read_text()


def test_a_skipped_collective_is_found_without_a_run():
    program = hir.torch.capture_ranks(torch_programs.skips_a_collective, 2)
    [fault] = program.check().faults
    assert (fault.code, program.place(fault.line)) == ("E0705", line_of("# line of the all-reduce"))


def test_arguments_that_depend_on_the_rank_are_those_of_each_rank():
    program = hir.torch.capture_ranks(torch_programs.rank_dependent, 2)
    assert program.note is None
    for passes in (None, "@lower"):
        for rank, results in enumerate(program.run(passes=passes)):
            step, args = torch_programs.rank_dependent(rank)
            for result, expected in zip(results, step(*args), strict=True):
                np.testing.assert_array_equal(result, expected.numpy())


def test_groups_of_the_same_ranks_in_different_orders_are_an_error():
    message = f"^{line_of('# line of the first all-reduce')}: .*deadlock: the process groups `1` and `2` have the same ranks"
    with pytest.raises(hir.torch.TorchFaultError, match=message):
        hir.torch.capture_ranks(torch_programs.crossed_groups, 2)


def test_a_model_is_explained_with_a_timeline(tmp_path):
    text = hir.torch.explain(torch_programs.block(), (torch_programs.block_input(),), timeline=tmp_path / "block.svg")
    assert "rank 0: 0 µs of communication" in text
    assert (tmp_path / "block.svg").read_text().startswith("<svg")


def test_explanations_of_programs_that_differ_between_ranks():
    program = hir.torch.capture_ranks(torch_programs.uneven, 3)
    assert program.note is not None
    assert f"{SOURCE.name}:" in program.explain()


def test_explanations_name_the_lines_that_wait():
    program = hir.torch.capture_ranks(torch_programs.tensor_parallel, 2)
    assert f"{line_of('# line of MLP')}: waits" in program.explain("@lower")


def test_an_all_to_all_with_different_splits_is_a_group_of_transfers():
    program = hir.torch.capture_ranks(torch_programs.uneven, 3)
    program.check().raise_if_found()
    inputs = [np.arange(2.0 * (rank + 1) * 3).reshape(3, rank + 1, 2) + 100 * rank for rank in range(3)]
    for rank, [result] in enumerate(program.run()):
        np.testing.assert_array_equal(result, np.concatenate([it[rank] for it in inputs]) * 2 + 1)


@pytest.mark.parametrize("name, backend", [("ring", "gloo"), ("batched_ring", "gloo"), ("batched_ring", "nccl")])
def test_transfers_of_a_batch_and_of_gloo_have_no_order(name, backend):
    program = hir.torch.capture_ranks(getattr(torch_programs, name), 3, backend=backend)
    program.check().raise_if_found()
    assert [float(result[0]) for [result] in program.run()] == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_transfers_of_nccl_that_are_in_no_batch_wait_for_those_before_them(ranks):
    program = hir.torch.capture_ranks(torch_programs.ring, ranks)
    [fault] = program.check().faults
    assert (fault.code, program.place(fault.line)) == ("E0705", line_of("# line of the send"))


def test_transfers_with_gradients_are_an_error():
    def build(rank):
        step, [x] = torch_programs.ring(rank)
        return step, (x.requires_grad_(),)

    with pytest.raises(hir.torch.TorchImportError, match="captures no sends and receives of functions with gradients"):
        hir.torch.capture_ranks(build, 2)


def test_exported_programs_are_imported():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = torch.nn.LayerNorm(6), torch.nn.Linear(6, 3)

        def forward(self, x):
            return torch.nn.functional.gelu(self.out(self.norm(x))).softmax(-1)

    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 6)
    for exported in (torch.export.export(model, (x,)), torch.export.export(model, (x,)).run_decompositions()):
        program = hir.torch.from_export(exported)
        assert not program.opaque
        [[result]] = program.run([[*(it.detach().numpy() for it in model.parameters()), x.numpy()]])
        np.testing.assert_allclose(result, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def set_elements(x):
    x = x.clone()
    x[1, 1:] = 2.0
    x[::2, 0] = x[1:4, 0]
    x[x > 0.5] = 0.0
    x[:, torch.tensor([1])] += 1
    return x


#: Functions whose graphs have operators that are easy to get wrong, with their inputs.
FUNCTIONS = {
    "reductions": (lambda x: (x.amax(1), x.mean(), x.sum((0, 2), True), x.min(0)[1], (x > 0).any(), x.argmax(1)), (2, 3, 4)),
    "shapes": (
        lambda x: (x.permute(2, 0, 1)[1:, :, ::2], torch.stack([x, x * 2], 1), x[..., None].expand(2, 3, 4, 5), x[1, -1]),
        (2, 3, 4),
    ),
    "pointwise": (
        lambda x: (x.clamp(-0.5, 0.5), torch.where(x > 0, x, 2), x**3, x.pow(0.5), x // 0.3, 1 - x, x.lerp(x * x, 0.25)),
        (5, 3),
    ),
    "integers": (lambda x: ((x * 4).int() % 3, (x * 4).long().cumsum(0), torch.arange(3) + (x > 0).sum(1, True)), (5, 3)),
    "indexing": (
        lambda x: (
            x[torch.tensor([2, 0, -1])],
            x.gather(1, (x > 0).long()),
            torch.zeros(5, 3).scatter_add(1, (x > 0).long(), x),
        ),
        (5, 3),
    ),
    "sorting": (lambda x: (x.sort(0), x.sort(-1, True)[0], x.topk(2), x.topk(2, 0, False), x.flip(1), x.roll(1, 0)), (5, 3)),
    "places": (
        lambda x: (
            x[:, torch.tensor([2, 0])],
            x[torch.tensor([[1], [4]]), torch.tensor([0, -1])],
            x.index_put((torch.tensor([0, 0]),), torch.ones(3), accumulate=True),
            x.scatter(1, torch.tensor([[0, 1], [2, 0]]), 9.0),
            torch.where(x > 0, x, 0).cumsum(0),
            x.diagonal(-1),
            x.unfold(0, 2, 2),
            x.repeat(2, 1, 2),
        ),
        (5, 3),
    ),
    "in place": (set_elements, (5, 3)),
    "statistics": (lambda x: (x.var(), x.std(0), x.prod(1), x.norm(dim=1), x.logsumexp(0), x.sign(), x.cumprod(1)), (5, 3)),
    "losses": (
        lambda x: (
            torch.nn.functional.cross_entropy(x, torch.tensor([0, 2, -100, 1, 1])),
            torch.nn.functional.mse_loss(x, x.cos()),
            torch.nn.functional.binary_cross_entropy_with_logits(x, x.sigmoid()),
        ),
        (5, 3),
    ),
    "convolutions": (
        lambda x: (
            torch.nn.functional.conv1d(x, x[:1, :, :2].repeat(4, 1, 1), padding=1, stride=2),
            torch.nn.functional.conv1d(x, x[0, :, None, :3], torch.arange(4.0), groups=4, dilation=2),
            torch.nn.functional.group_norm(x, 2),
        ),
        (2, 4, 6),
    ),
    "triangles": (lambda x: (x.triu(1), x.tril(), torch.nn.functional.pad(x, (1, 2, 0, 1), value=3.0)), (4, 4)),
    "activations": (
        lambda x: (torch.nn.functional.gelu(x, approximate="tanh"), torch.nn.functional.silu(x), x.log_softmax(0), x.sigmoid()),
        (4, 4),
    ),
    "scalars": (lambda x: (x.sum() * 2, x.max() + x, torch.tensor(2) * x.mean().exp()), (4, 4)),
    "bfloat16": (lambda x: (x.bfloat16() * 3, (x.bfloat16() @ x.bfloat16()).float(), x.bfloat16().softmax(-1)), (4, 4)),
    "attention": (
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None] * 2, x[None] + 1, is_causal=True),
        (2, 4, 8),
    ),
}


def leaves(result):
    """The tensors of a result."""
    return [it for part in result for it in leaves(part)] if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_give_the_results_of_pytorch(name):
    function, shape = FUNCTIONS[name]
    x = torch.linspace(-1, 1, int(np.prod(shape))).reshape(shape).sin()
    expected = function(x)
    program = hir.torch.capture(function, (x,))
    assert not program.opaque
    [results] = program.run()
    for result, reference in zip(results, leaves(expected), strict=True):
        reference = reference.float() if reference.dtype == torch.bfloat16 else reference
        assert result.shape == tuple(reference.shape)
        tolerance = 1e-2 if name == "bfloat16" else 2e-6
        np.testing.assert_allclose(result, reference.numpy(), rtol=tolerance, atol=tolerance)


def test_gradients_of_attention_with_shared_heads_are_those_of_pytorch():
    def step(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    results = []
    for compiled in (step, torch.compile(step, backend="hir", fullgraph=True, options={"run": "hir"})):
        inputs = [torch.linspace(-1, 1, 2 * heads * 15).sin().reshape(2, heads, 3, 5).requires_grad_() for heads in (4, 2, 2)]
        (compiled(*inputs) * torch.arange(5)).sum().backward()
        results.append([it.grad for it in inputs])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_results_have_the_strides_of_pytorch_and_changed_inputs_change():
    def step(x, y):
        x.add_(1)
        return x, y[:, None].expand(3, 5, 4), y.t() * 2, y.bfloat16().sum()

    results = []
    for compiled in (step, torch.compile(step, backend="hir", fullgraph=True)):
        x, y = torch.ones(2), torch.arange(12.0).reshape(3, 4)
        outputs = compiled(x, y)
        assert outputs[0] is x
        results.append(outputs)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, check_stride=True)


def test_gradients_are_those_of_pytorch():
    def step(x, w, table):
        y = torch.nn.functional.layer_norm(x @ w, (4,)) + table[torch.tensor([1, 0, 1])]
        y = torch.nn.functional.gelu(y).softmax(-1) * torch.nn.functional.silu(y)
        return y[:, 1:].tanh().sum() + torch.nn.functional.relu(y).mean()

    results = []
    for compiled in (step, torch.compile(step, backend="hir", fullgraph=True)):
        torch.manual_seed(0)
        inputs = [
            torch.randn(3, 5, requires_grad=True),
            torch.randn(5, 4, requires_grad=True),
            torch.randn(2, 4, requires_grad=True),
        ]
        compiled(*inputs).backward()
        results.append([it.grad for it in inputs])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "parts, joins",
    [
        (lambda x: x.view(2, 3, 4).unbind(1), True),
        (lambda x: (x[:, 5:], x[:, :2], x[:, 2:5]), True),
        (lambda x: (x[:, 5:], x[:, :4]), False),
        (lambda x: (x[:, :7], x[:, 6:]), False),
    ],
)
def test_the_gradients_of_parts_are_joined_without_sums(parts, joins):
    def step(x):
        return sum((it.sin() * (i + 1)).sum() for i, it in enumerate(parts(x)))

    x = torch.linspace(-1, 1, 24).reshape(2, 12).requires_grad_()
    program = hir.torch.capture(step, (x,), direction="backward")
    [[gradient, *_]] = program.run()
    step(x).backward()
    np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=1e-6)
    assert ("full(" not in program.text) == joins, program.text


def test_unknown_operators_run_on_pytorch_with_a_note():
    def step(x):
        return x.cummax(0)[0] * 2

    x = torch.randn(8)
    with pytest.warns(UserWarning, match="PyTorch runs the inference graph: hir does not know test_torch_capture.py:.*cummax"):
        torch.testing.assert_close(torch.compile(step, backend="hir")(x), step(x))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.to(torch.complex64).abs(), "aten.abs.default` .hir does not know it for complex numbers"),
        (lambda x: (x * 1j).imag, "aten.mul.Tensor"),
        (lambda x: x.abs().to(torch.float8_e8m0fnu).float(), "hir has no element type `float8_e8m0fnu"),
    ],
)
def test_element_types_that_hir_does_not_have_run_on_pytorch_with_a_note(function, reason):
    x = torch.linspace(-2, 2, 5)
    with pytest.warns(UserWarning, match=f"PyTorch runs the inference graph: .*{reason}"):
        torch.testing.assert_close(torch.compile(function, backend="hir", options={"fallback": "aot_eager"})(x), function(x))


def test_unsigned_integers_run():
    def step(x):
        return x.abs().to(torch.uint32).to(torch.int64), x.abs().to(torch.uint16).float()

    x = torch.linspace(-9000, 2, 5)
    for ours, theirs in zip(torch.compile(step, backend="hir", options={"run": "hir"})(x), step(x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_options_are_checked():
    with pytest.raises(Exception, match="the backend hir has no option `?chek"):
        torch.compile(lambda x: x + 1, backend="hir", options={"chek": True})(torch.ones(2))


def test_results_and_gradients_of_a_job_are_those_of_pytorch():
    job("compiled")


def test_a_fault_of_a_job_is_reported_before_the_call_runs():
    job("fault")


def test_jobs_whose_ranks_do_not_compile_the_same_graphs_run():
    job("right")


def test_a_lost_store_a_killed_rank_and_a_late_rank_are_told_apart():
    def lost(_):
        raise dist.DistNetworkError("Broken pipe")

    store = SimpleNamespace(check=lost)
    store.clone = lambda: store
    with pytest.raises(hir.torch.TorchImportError, match="the store of the job is lost, .* rank 0: Broken pipe"):
        Store(store).check([])
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    for process, limit, reason in (
        (killed.pid, 60, "rank 1 has ended"),
        (os.getpid(), 0.01, "rank 1 has called no graph with this rank within 0.01 s"),
    ):
        store = Store(dist.HashStore())
        pairing = Pairing(store, SimpleNamespace(members=(0, 1), graph=SimpleNamespace(rank=0), team=""), 0)
        store.set(pairing.key("post"), "")
        store.set("hir/process/1", f"{process} {gethostname()}")
        assert pairing._wait(limit) == ([1], reason)


def test_pieces_of_a_model_that_differ_between_ranks_are_no_fault():
    job("pieces")


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["mlp", "skipped", "order", "uneven"])
def test_captures_of_the_documentation_are_those_of_their_programs(name, monkeypatch):
    # Places are relative to the current folder.
    folder = ROOT / "docs/examples/pytorch"
    monkeypatch.chdir(folder)
    module = runpy.run_path(str(folder / f"{name}.py"))
    program = hir.torch.capture_ranks(module["build"], 2)
    assert program.text == (folder / f"{name}.hir").read_text()


#: The sums of the results of both ranks.
FIXED = {"order": [[8.0], [8.0]], "skipped": [[2**0.5], [4.0]], "uneven": [[20.0], [12.0]], "crossed": [[8.0, 8.0], [8.0, 8.0]]}


@pytest.mark.parametrize("name", FIXED)
def test_the_fixes_of_the_documentation_have_no_fault(name):
    module = runpy.run_path(str(ROOT / f"docs/examples/pytorch/{name}.py"))
    program = hir.torch.capture_ranks(module["fixed"], 2)
    program.check().raise_if_found()
    sums = [[float(it.sum()) for it in results] for results in program.run()]
    np.testing.assert_allclose(sums, FIXED[name], rtol=1e-6)


def test_the_example_of_the_page_runs(monkeypatch, tmp_path):
    page = (ROOT / "docs/pytorch.md").read_text()
    source = (ROOT / "docs/examples/pytorch/mlp.py").read_text()
    [example] = [it for it in page.split("```python\n")[1:] if it.startswith("class MLP")]
    assert example.split("```")[0] in source
    [use] = [it for it in page.split("```python\n")[1:] if "capture_ranks(" in it]
    monkeypatch.chdir(tmp_path)
    names = {"hir": hir, **runpy.run_path(str(ROOT / "docs/examples/pytorch/mlp.py"))}
    exec(use.split("```")[0], names)
    assert [len(it) for it in names["results"]] == [1, 1]


def attention_of_gpus(kernel, by_name):
    """An attention and its gradient, as a graph with a kernel that PyTorch has for GPUs; the gradient's arguments by position or by name."""
    aten = torch.ops.aten

    def flash(q, k, v, grad):
        out, sums, *rest = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
        grads = aten._scaled_dot_product_flash_attention_backward(grad, q, k, v, out, sums, *rest[:4], 0.0, True, *rest[4:6])
        return out, rest[4], *grads

    def cudnn(q, k, v, grad):
        out, sums, *rest = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)
        state = (*rest[4:6], None, *rest[:4])
        return out, rest[4], *aten._scaled_dot_product_cudnn_attention_backward(grad, q, k, v, out, sums, *state, 0.0, True)

    def efficient(q, k, v, grad):
        out, sums, *state = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True)
        wanted = [True, True, True, False]
        grads = aten._scaled_dot_product_efficient_attention_backward(grad, q, k, v, None, out, sums, *state, 0.0, wanted, True)
        return out, state[0], *grads[:3]

    with FakeTensorMode():
        inputs = [torch.empty(2, 3, 32, 16, dtype=torch.bfloat16, device="cuda") for _ in range(4)]
        graph = make_fx({"flash": flash, "cudnn": cudnn, "efficient": efficient}[kernel])(*inputs)
    if by_name:
        [node] = [it for it in graph.graph.nodes if "backward" in str(it.target) and it.op == "call_function"]
        names = [it.name for it in node.target._schema.arguments]
        node.args, node.kwargs = node.args[:4], dict(zip(names[4:], node.args[4:]))
    return graph


@pytest.mark.skipif(torch.version.cuda is None, reason="this PyTorch has no operators of GPUs")
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("kernel", ["flash", "cudnn", "efficient"])
def test_attention_of_gpus_is_imported(kernel, by_name):
    torch.manual_seed(0)
    q, k, v, grad = (torch.randn(2, 3, 32, 16).bfloat16().float() for _ in range(4))
    leaves = [it.requires_grad_() for it in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    expected = [out, *torch.autograd.grad(out, leaves, grad)]
    program = hir.torch.from_fx(attention_of_gpus(kernel, by_name))
    assert not program.opaque
    [[result, state, *grads]] = program.run([[it.detach().numpy() for it in (q, k, v, grad)]])
    assert not state.any()
    for array, reference in zip([result, *grads], expected, strict=True):
        # Scores, weights and results are rounded to bfloat16.
        difference = np.linalg.norm(array - reference.detach().numpy()) / np.linalg.norm(reference.detach().numpy())
        assert difference < 0.01


@pytest.mark.parametrize(
    ("function", "second"),
    [
        (lambda x, y: x * (2.0 / (x @ y).abs().max().item()), torch.ones(8, 8)),
        (lambda x, y: x.double() / y.item() + 1, torch.tensor(0.1)),
        (lambda x, n: x * (n.item() - 1) + n.item(), torch.tensor(7)),
        (lambda x, n: x.to(torch.int32) * n.item(), torch.tensor(3, dtype=torch.int32)),
    ],
)
def test_a_value_that_the_host_reads_is_a_wait_of_the_host(function, second):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    args = (torch.arange(32.0).reshape(4, 8) / 7, second)
    program = hir.torch.from_export(torch.export.export(Module(), args))
    assert "Synchronize(host)" in program.text
    [[result]] = program.run([[it.numpy() for it in args]])
    np.testing.assert_allclose(result, function(*args).numpy(), rtol=1e-6)


def test_a_size_that_the_host_reads_is_refused_with_its_line():
    class Module(torch.nn.Module):
        def forward(self, n):
            return torch.ones(n.item())

    with pytest.raises(hir.torch.TorchImportError, match="depends on values of tensors"):
        hir.torch.from_export(torch.export.export(Module(), (torch.tensor(3),)))
