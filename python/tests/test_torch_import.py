"""Graphs that PyTorch recorded, imported and run. Expected values are those of PyTorch; no test here needs it."""

import json
from pathlib import Path

import numpy as np
import pytest

import hir
import hir.torch
from hir.torch import Graph, Node, TorchImportError, recorded_graph, to_recorded
from hir.torch import _communicating
from hir.torch._graph import Ref, TensorType
from hir.torch._pairing import among, members_of

GRAPHS = Path(__file__).parent / "graphs"
#: Largest difference relative to the largest element. `zero3` adds bfloat16 in another order than gloo.
TOLERANCE = {"zero3-backward": 4e-3}
CASES = sorted(it.name for it in GRAPHS.iterdir() if it.is_dir())


def recorded(case: str, rank: int = 0) -> dict:
    return json.loads((GRAPHS / case / f"rank_{rank}.json").read_text())


def graphs(case: str) -> list[Graph]:
    files = [GRAPHS / case / f"rank_{rank}.json" for rank in range(recorded(case)["world"])]
    return [hir.torch.read_recorded(it if it.exists() else files[0], rank) for rank, it in enumerate(files)]


def changed(case: str, rank: int, change) -> list[Graph]:
    """The graphs of a case; `change` changes the nodes of one rank."""
    result = graphs(case)
    data = recorded(case)
    data["nodes"] = change(data["nodes"])
    result[rank] = recorded_graph(data, rank)
    return result


def largest_difference(program: hir.torch.TorchProgram, case: str, passes: str | None) -> float:
    values = np.load(GRAPHS / case / "values.npz")
    count = sum(node.op == "placeholder" for node in graphs(case)[0].nodes)
    inputs = [[values[f"in.{i}"][rank] if f"in.{i}" in values else None for i in range(count)] for rank in range(program.ranks)]
    outputs = program.run(inputs, passes)
    compared, largest = 0, 0.0
    for rank, results in enumerate(outputs):
        for i, result in enumerate(results):
            if f"out.{i}" in values:
                expected = values[f"out.{i}"][rank]
                assert result.shape == expected.shape
                largest = max(largest, np.abs(result - expected).max() / max(1, np.abs(expected).max()))
                compared += 1
    assert compared >= program.ranks
    return largest


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("passes", [None, "@lower", "@overlap{}"])
def test_results_are_those_of_pytorch(case, passes):
    program = hir.torch.from_graphs(graphs(case))
    assert not program.opaque
    assert largest_difference(program, case, passes) <= TOLERANCE.get(case, 5e-7)


@pytest.mark.parametrize("case", CASES)
def test_results_of_statements_of_each_rank(case):
    program = hir.torch.from_graphs(graphs(case), each_rank=True)
    assert largest_difference(program, case, None) <= TOLERANCE.get(case, 5e-7)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("passes", ["@lower", "@overlap{}"])
def test_programs_have_no_faults(case, passes):
    hir.torch.from_graphs(graphs(case)).check(passes).raise_if_found()


def test_all_reduce_of_a_linear_layer_is_overlapped():
    overlapped = hir.torch.from_graphs(graphs("tp-mlp-forward")).lowered("@overlap{}").short
    assert "FOR" in overlapped and "Allreduce" in overlapped


def test_collectives_of_a_sequence_parallel_mlp_are_overlapped():
    # PyTorch gathers and scatters the second axis with `split` and `cat`, and merges it with the first one for its products.
    program = hir.torch.from_graphs(graphs("sp-mlp-forward"))
    assert "slice" not in program.text and "cat(" not in program.text
    overlapped = program.lowered("@overlap{}").short
    assert overlapped.count("matmul(") == 2
    assert "Allgather" not in overlapped and "ReduceScatter" not in overlapped
    assert "Allgather" in program.lowered("@lower").short


def test_the_all_reduce_of_a_viewed_product_is_overlapped():
    def graph(rank: int) -> Graph:
        def call(name: str, target: str, shape: tuple[int, ...], *args) -> Node:
            return Node(name, "call_function", target, args, result=TensorType(shape, "float32"))

        nodes = [
            Node("x", "placeholder", "x", result=TensorType((2, 4, 3), "float32")),
            Node("w", "placeholder", "w", result=TensorType((3, 5), "float32")),
            call("rows", "aten.view.default", (8, 3), Ref("x"), (8, 3)),
            call("product", "aten.mm.default", (8, 5), Ref("rows"), Ref("w")),
            call("view", "aten._unsafe_view.default", (2, 4, 5), Ref("product"), (2, 4, 5)),
            call("sum", "_c10d_functional.all_reduce.default", (2, 4, 5), Ref("view"), "sum", "0"),
            call("wait", "_c10d_functional.wait_tensor.default", (2, 4, 5), Ref("sum")),
            Node("output", "output", "output", ((Ref("wait"),),)),
        ]
        return Graph("linear", rank, 2, tuple(nodes), {"0": (0, 1)})

    program = hir.torch.from_graphs([graph(0), graph(1)])
    assert "FOR" in program.lowered("@overlap{}").short
    random = np.random.default_rng(0)
    inputs = [[random.integers(-4, 4, shape).astype(np.float32) for shape in ((2, 4, 3), (3, 5))] for _ in range(2)]
    expected = sum(x @ w for x, w in inputs)
    for [result] in program.run(inputs, "@overlap{}"):
        np.testing.assert_array_equal(result, expected)


def test_lines_name_the_python_program(tmp_path):
    program = hir.torch.from_graphs(graphs("tp-mlp-forward"))
    program.save(tmp_path / "mlp.hir")
    lines = (tmp_path / "mlp.hir").read_text().splitlines()
    body = [it for it in lines if it.startswith("  T")]
    assert body and all(it.endswith("  // model.py:19") for it in body)
    assert program.place(1 + lines.index(body[0])) == "model.py:19"
    assert hir.read(tmp_path / "mlp.hir").text == program.program.text


def test_a_rank_that_skips_a_collective_is_a_deadlock_with_the_python_line():
    def without_all_reduce(nodes):
        text = json.dumps([it for it in nodes if it["name"] not in ("all_reduce", "wait_tensor")])
        return json.loads(text.replace('"wait_tensor"', '"mm_1"'))

    program = hir.torch.from_graphs(changed("tp-mlp-forward", 2, without_all_reduce))
    assert program.note.startswith("model.py:19: `_c10d_functional.all_reduce.default`")
    [fault] = program.check().faults
    assert fault.code == "E0705"
    assert program.place(fault.line) == "model.py:19"
    with pytest.raises(hir.FindingsError, match="model.py:19"):
        program.check().raise_if_found()


def test_a_receive_before_a_send_on_both_ranks_is_a_deadlock():
    def receive_first(nodes):
        # Rank 0 waits for rank 1, which waits for rank 0.
        recv = [
            dict(it)
            for it in recorded("pipeline-stage-inference", 1)["nodes"]
            if "irecv" in it["target"] or it["name"] == "wait_tensor"
        ]
        names = [it["name"] for it in nodes]
        recv[0] = {**recv[0], "name": "irecv", "args": [{"node": nodes[0]["name"]}, 1, 0, "0"]}
        recv[1] = {**recv[1], "name": "arrived", "args": [{"node": "irecv"}]}
        first = next(i for i, it in enumerate(nodes) if it["op"] != "placeholder")
        assert names
        return nodes[:first] + recv + nodes[first:]

    program = hir.torch.from_graphs(changed("pipeline-stage-inference", 0, receive_first))
    assert [it.code for it in program.check().faults] == ["E0705"]


#: Sends (positive) and receives (negative) of each rank with the ranks 1, 2, …, and the faults that they have with each order.
TRANSFERS = {
    "each with the other": ([[2, -2], [1, -1]], {None: "E0705", "serial": "E0705", "pair": "E0705", "none": ""}),
    # The ranks also wait for each other to create the communicators of the pairs.
    "a ring": ([[2, -3], [3, -1], [1, -2]], {None: "E0705", "serial": "E0705", "pair": "E0705 E0707", "none": ""}),
    "a ring in order": ([[2, -3], [-1, 3], [-2, 1]], {None: "E0707", "serial": "", "pair": "E0707", "none": ""}),
    "one to two": ([[2, 3], [-1], [-1], []], {None: "", "serial": "", "pair": "", "none": ""}),
}


def transfers_of(rank: int, peers: list[int], world: int, order: str | None) -> Graph:
    kind = TensorType((2,), "float32")
    nodes = [Node(it, "placeholder", it, result=kind) for it in ("x", "y")]
    for peer in peers:
        operator, tensor = ("isend", "x") if peer > 0 else ("irecv", "y")
        args = (Ref(tensor), abs(peer) - 1, 0, "0")
        nodes.append(Node(f"t{peer}", "call_function", f"_c10d_functional.{operator}.default", args, result=kind))
    wait = "_c10d_functional.wait_tensor.default"
    nodes += [Node(f"w{it}", "call_function", wait, (Ref(f"t{it}"),), result=kind) for it in peers]
    nodes.append(Node("output", "output", "output", ((Ref("y"),),)))
    return Graph("g", rank, world, tuple(nodes), {"0": tuple(range(world))}, orders={"0": order} if order else {})


@pytest.mark.parametrize("name", TRANSFERS)
def test_a_process_group_orders_transfers_that_are_in_no_batch(name):
    ranks, expected = TRANSFERS[name]
    for order, faults in expected.items():
        graphs = [transfers_of(rank, peers, len(ranks), order) for rank, peers in enumerate(ranks)]
        program = hir.torch.from_graphs([recorded_graph(json.loads(json.dumps(to_recorded(it)))) for it in graphs])
        assert " ".join(it.code for it in program.check().faults) == faults, order
        # hir has one communicator.
        assert program.runs_as_checked("@default") == (order != "pair" or name in ("a ring in order", "one to two"))


DOCS = Path(__file__).parents[2] / "docs"


def test_crossed_groups_are_reported_as_the_page_shows():
    both = [hir.torch.read_recorded(DOCS / f"examples/pytorch/crossed/rank_{rank}.json") for rank in range(2)]
    with pytest.raises(hir.torch.TorchFaultError) as fault:
        hir.torch.from_graphs(both)
    assert f"```text\n{fault.value}\n```" in (DOCS / "bugs-in-pytorch-and-jax.md").read_text()


def test_programs_on_the_page_of_bugs_are_those_of_the_files():
    sources = [it.read_text() for it in (DOCS / "examples").glob("*/*.py")]
    for part in (DOCS / "bugs-in-pytorch-and-jax.md").read_text().split("```python\n")[1:]:
        excerpt = part.split("```")[0]
        # Streams are not imported: their loop is a comment of its program.
        if "torch.cuda.stream" not in excerpt:
            assert any(excerpt in source for source in sources), excerpt


def test_unknown_operators_are_opaque_calls():
    def with_unknown(nodes):
        return json.loads(json.dumps(nodes).replace("aten.relu.default", "mylib.gate.default"))

    text = [with_unknown(recorded("tp-mlp-forward")["nodes"])] * 4
    all_graphs = [recorded_graph({**recorded("tp-mlp-forward"), "nodes": nodes}, rank) for rank, nodes in enumerate(text)]
    program = hir.torch.from_graphs(all_graphs)
    assert program.opaque == ("model.py:19: `mylib.gate.default`",)
    assert not program.check().faults
    unknown = "model.py:19: `mylib.gate`: hir does not know whether it communicates (`hir.torch.register_operator` says it)"
    assert str(program.check()) == f"not checked: {unknown}"
    with pytest.raises(TorchImportError, match="model.py:19: `mylib.gate.default`"):
        program.run([[]] * 4)


def one_rank_calls(target: str, args: tuple = (Ref("x"), "sum", "0")) -> hir.torch.TorchProgram:
    kind = TensorType((4,), "float32")

    def graph(rank: int) -> Graph:
        call = [Node("y", "call_function", target, args, result=kind, place="model.py:7")] if rank == 0 else []
        nodes = (Node("x", "placeholder", "x", result=kind), *call, Node("output", "output", "output", ((Ref("x"),),)))
        return Graph("g", rank, 2, nodes, {"0": (0, 1)})

    return hir.torch.from_graphs([graph(0), graph(1)])


@pytest.mark.parametrize("target", ["symm_mem.one_shot_all_reduce.default", "c10d.allreduce_.default", "symm_mem.multimem_all_gather_out"])
def test_collectives_of_other_namespaces_are_compared_between_ranks(target):
    program = one_rank_calls(target)
    [fault] = program.check().faults
    assert (fault.code, program.place(fault.line)) == ("E0705", "model.py:7")
    [unknown] = one_rank_calls(target, (Ref("x"),)).check().not_checked
    assert "hir does not know which ranks call it" in unknown


def test_a_user_says_whether_an_operator_communicates(monkeypatch):
    monkeypatch.setattr(_communicating, "_registered", {})
    assert "`mylib.exchange`: hir does not know whether it communicates" in one_rank_calls("mylib.exchange.default").check().not_checked[0]
    hir.torch.register_operator("mylib::exchange", communicates=False)
    one_rank_calls("mylib.exchange.default").check().raise_if_found()
    for group in (None, 2):
        hir.torch.register_operator("mylib::exchange", communicates=True, group=group)
        assert [it.code for it in one_rank_calls("mylib.exchange.default").check().faults] == ["E0705"]


def test_a_graph_is_paired_with_those_of_the_ranks_that_it_communicates_with():
    kind = TensorType((2,), "float32")

    def graph(*calls: tuple[str, str]) -> Graph:
        nodes = [Node(name, "call_function", target, (Ref("x"), "sum", name), result=kind) for name, target in calls]
        return Graph("g", 5, 8, (Node("x", "placeholder", "x", result=kind), *nodes), {"0": tuple(range(8)), "1": (1, 5), "2": (5, 7)})

    all_reduce = "_c10d_functional.all_reduce.default"
    assert members_of(graph(("1", "aten.add.Tensor"))) == (5,)
    assert members_of(graph(("1", all_reduce), ("2", all_reduce))) == (1, 5, 7)
    assert members_of(graph(("3", all_reduce))) == tuple(range(8))
    part = among(graph(("2", "c10d.allreduce_.default")), (5, 7))
    assert (part.rank, part.world, part.groups) == (0, 2, {"2": (0, 1)})


def test_unknown_arguments_make_an_opaque_call_with_the_reason():
    def with_one_operand(nodes):
        return json.loads(json.dumps(nodes).replace('[{"node": "view_2"}, {"node": "t_1"}]', '[{"node": "view_2"}]'))

    data = recorded("tp-mlp-forward")
    data["nodes"] = with_one_operand(data["nodes"])
    program = hir.torch.from_graphs([recorded_graph(data, rank) for rank in range(4)])
    [opaque] = program.opaque
    assert opaque.startswith("model.py:19: `aten.mm.default` (hir does not know these arguments: ")
    program.check().raise_if_found()


def test_ranks_that_reduce_differently_are_a_fault():
    def with_maximum(nodes):
        return json.loads(json.dumps(nodes).replace('"sum", "0"', '"max", "0"'))

    program = hir.torch.from_graphs(changed("tp-mlp-forward", 2, with_maximum))
    with pytest.raises(hir.HirError, match=r"the ranks use different reductions: .* on rank 0, .* on rank 2"):
        program.check()


def test_sizes_that_depend_on_values_are_an_error_with_the_line():
    data = recorded("tp-mlp-forward")
    [product] = [it for it in data["nodes"] if it["name"] == "mm"]
    product["val"] = {"unbound": "u0"}
    with pytest.raises(TorchImportError, match="^model.py:19: `aten.mm.default` .*: the size or number `u0` depends on values"):
        hir.torch.from_graphs([recorded_graph(data, rank) for rank in range(4)])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("aten.mm.default", "_c10d_functional.scatter.default", "hir does not know this collective"),
        ('"sum", "0"', '"bxor", "0"', "hir has no reduction `bxor` over ranks"),
        ('"sum", "0"', '"sum", "9"', "in no process group with the name `9`"),
        ('[{"node": "mm"}, [8, 8]]', '[{"node": "gone"}, [8, 8]]', "the graph does not define `gone`"),
    ],
)
def test_errors_name_operator_and_line(old, new, message):
    data = recorded("tp-mlp-forward")
    text = json.dumps(data)
    assert old in text
    data = json.loads(text.replace(old, new))
    with pytest.raises(TorchImportError, match=f"^model.py:19: `.*`.*{message}"):
        hir.torch.from_graphs([recorded_graph(data, rank) for rank in range(4)])


def test_graphs_of_all_ranks_are_needed():
    with pytest.raises(TorchImportError, match=r"ranks \[0, 1\], of 4 ranks"):
        hir.torch.from_graphs(graphs("tp-mlp-forward")[:2])


def test_inputs_have_the_shapes_of_the_graph():
    program = hir.torch.from_graphs(graphs("pipeline-stage-inference"))
    with pytest.raises(ValueError, match=r"input 0 of rank 1 has the shape \(2, 2\), not \(4, 16\)"):
        program.run([[np.zeros((4, 16)), np.zeros((16, 16))], [np.zeros((2, 2)), np.zeros((16, 16))]])
    with pytest.raises(ValueError, match="1 inputs of rank 0; its graph has 2"):
        program.run([[np.zeros((4, 16))], []])
    with pytest.raises(ValueError, match="one for each rank"):
        hir.torch.from_graphs([])


@pytest.mark.parametrize(
    "array, dtype",
    [
        (np.array([2**40]), "int32"),
        (np.array([3.9]), "int32"),
        (np.array([1e300]), "float32"),
        (np.array([1e300]), "bfloat16"),
        (np.array([0.5]), "bool"),
        (np.array([-1]), "uint8"),
        (np.array([2**24 + 1]), "float32"),
        (np.array([1j]), "float32"),
    ],
)
def test_inputs_that_a_type_does_not_have_are_refused(array, dtype):
    kind = TensorType((1,), dtype)
    double = Node("y", "call_function", "aten.mul.Tensor", (Ref("x"), 2), result=kind)
    nodes = (Node("x", "placeholder", "x", result=kind), double, Node("output", "output", "output", ((Ref("y"),),)))
    program = hir.torch.from_graphs([Graph("g", 0, 1, nodes, {})])
    with pytest.raises(ValueError, match=f"input 0 of rank 0 has elements of {array.dtype} that .* does not have"):
        program.run([[array]])


def grid(target: str, shape: tuple[int, ...], result: tuple[int, ...], *args, groups: str) -> list[Graph]:
    """One collective on four ranks, two rows of two, in groups that are columns, rows or all ranks."""
    members = {"columns": [(0, 2), (1, 3)], "rows": [(0, 1), (2, 3)], "all": [(0, 1, 2, 3)]}
    # The other groups are used first, so that the mesh has two dimensions.
    names = {f"{kind}{i}": it for kind, them in members.items() for i, it in enumerate(them)}

    def graph(rank: int) -> Graph:
        own = {name: it for name, it in names.items() if rank in it}
        [row], [chosen] = ([name for name in own if name.startswith(kind)] for kind in ("rows", groups))
        kind, operator = TensorType(shape, "float32"), f"_c10d_functional.{target}.default"
        nodes = [
            Node("x", "placeholder", "x", result=kind),
            Node("sum", "call_function", "_c10d_functional.all_reduce.default", (Ref("x"), "max", row), result=kind),
            Node("a", "call_function", "_c10d_functional.wait_tensor.default", (Ref("sum"),), result=kind),
            Node("b", "call_function", operator, (Ref("x"), *args, chosen), result=TensorType(result, "float32")),
            Node(
                "c", "call_function", "_c10d_functional.wait_tensor.default", (Ref("b"),), result=TensorType(result, "float32")
            ),
            Node("output", "output", "output", ((Ref("a"), Ref("c")),)),
        ]
        return Graph("grid", rank, 4, tuple(nodes), own)

    return [graph(rank) for rank in range(4)]


@pytest.mark.parametrize("groups", ["rows", "columns", "all"])
@pytest.mark.parametrize(
    "target", ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "all_to_all_single"]
)
def test_collectives_of_a_mesh_give_the_same_as_communications_of_each_rank(target, groups):
    size = 4 if groups == "all" else 2
    shape, args, result = {
        "all_reduce": ((4, 3), ("avg",), (4, 3)),
        "all_gather_into_tensor": ((4, 3), (size,), (4 * size, 3)),
        "reduce_scatter_tensor": ((4, 3), ("sum", size), (4 // size, 3)),
        "broadcast": ((4, 3), (1,), (4, 3)),
        "all_to_all_single": ((4, 3), ((), ()), (4, 3)),
    }[target]
    all_graphs = grid(target, shape, result, *args, groups=groups)
    rows = np.random.default_rng(0).integers(-8, 8, (4, *shape)).astype(np.float32)
    inputs = [[it] for it in rows]
    expected = hir.torch.from_graphs(all_graphs, each_rank=True).run(inputs)
    program = hir.torch.from_graphs(all_graphs)
    # These two have no form for several dimensions of a mesh.
    assert (program.note is not None) == (groups == "all" and target in ("all_to_all_single", "broadcast"))
    for passes in (None, "@lower", "@overlap{}"):
        for ours, theirs in zip(program.run(inputs, passes), expected):
            for a, b in zip(ours, theirs):
                np.testing.assert_array_equal(a, b)
