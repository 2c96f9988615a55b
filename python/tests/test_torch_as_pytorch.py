"""Faults that a program has as PyTorch runs it: with PyTorch's copies, writes in place, waits and frees behind the last use."""

import re

import pytest
import hir.torch
from hir.torch import Graph, Node
from hir.torch._graph import Ref as R
from hir.torch._graph import TensorType

MATRIX, ROW, GROUP = TensorType((4, 4), "float32"), TensorType((4,), "float32"), "0"


def call(name, target, *args, stream=None, result=MATRIX):
    result = None if target.startswith("streams.") else result
    target = target if target.count(".") == 2 else f"{target}.default"
    return Node(name, "call_function", target, args, result=result, place=f"train.py:{name}", stream=stream)


def graph(rank, nodes, results, world):
    inputs = [Node(it, "placeholder", it, result=MATRIX) for it in ("x", "u")]
    output = Node("output", "output", "output", (tuple(R(it) for it in results),))
    return Graph("step", rank, world, (*inputs, *nodes, output), {GROUP: tuple(range(world))})


def codes(nodes, *results, world=1):
    report = hir.torch.from_graphs([graph(rank, nodes, results, world) for rank in range(world)]).check()
    assert not report.not_checked
    return {it.code for it in report.faults}, str(report)


def wait(name, stream, other):
    return call(name, "streams.wait_stream", stream, other)


STASH = [call("w", "aten.neg", R("x")), wait("fork", 1, 0), call("copy", "aten.exp", R("w"), stream=1)]
NEXT = [call("y", "aten.exp", R("x")), wait("join", 0, 1)]
EVENT = [call("event", "streams.record_event", 7, 1)]


@pytest.mark.parametrize(
    "keeps, found",
    [
        ([], {"E0703"}),
        ([call("record", "streams.record_stream", R("w"), 1)], set()),
        ([call("record", "streams.record_stream", R("w"), 2)], {"E0703"}),
        ([wait("early", 0, 1)], set()),
        ([*EVENT, call("dealloc", "streams.sync_dealloc", 7, 0, R("w"))], set()),
        ([call("show", "aten.view", R("w"), (16,), result=TensorType((16,), "float32"), stream=0), wait("early", 0, 1)], set()),
    ],
)
def test_a_tensor_is_freed_behind_its_last_use(keeps, found):
    results, report = codes([*STASH, *keeps, *NEXT], "copy", "y")
    assert results == found, report
    assert not found or "train.py:copy" in report and "train.py:y" in report, report


def test_a_view_keeps_the_storage():
    shown = call("shown", "aten.t", R("w"), stream=0)
    last = call("last", "aten.sum", R("shown"), stream=0)
    results, report = codes([*STASH, shown, *NEXT, last], "copy", "y", "last")
    assert results == set(), report


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("copy", ["aten.clone", "aten._to_copy"])
def test_a_copy_runs_on_its_stream(copy, waits):
    fork = [wait("fork", 1, 0)] if waits else [wait("fork", 1, 2)]
    nodes = [call("a", "aten.neg", R("x")), *fork, call("c", copy, R("a"), stream=1), wait("join", 0, 1), call("y", "aten.exp", R("c"))]
    results, report = codes(nodes, "y")
    assert bool(results) != waits and results <= {"E0701"}, report


@pytest.mark.parametrize("waits", [True, False])
def test_an_operator_in_place_writes_its_argument(waits):
    late = [wait("early", 1, 0)] if waits else []
    nodes = [
        call("a", "aten.neg", R("x")),
        wait("fork", 1, 0),
        call("b", "aten.exp", R("a")),
        *late,
        call("c", "aten.relu_", R("a"), stream=1),
        wait("join", 0, 1),
    ]
    results, report = codes(nodes, "b", "c")
    assert results == (set() if waits else {"E0701"}), report


def summed(name, operand, stream=None):
    return call(name, "_c10d_functional.all_reduce", R(operand), "sum", GROUP, stream=stream)


def awaited(name, work, stream=None):
    return call(name, "_c10d_functional.wait_tensor", R(work), stream=stream)


@pytest.mark.parametrize("early", [True, False])
def test_a_result_is_used_before_the_wait(early):
    nodes = [summed("sum", "x"), awaited("done", "sum")]
    nodes.insert(1 if early else 2, call("y", "aten.exp", R("sum" if early else "done")))
    results, report = codes([*nodes, call("z", "aten.mul.Tensor", R("y"), R("done"))], "z", world=2)
    assert results == ({"E0701"} if early else set()), report


@pytest.mark.parametrize("waits", [True, False])
def test_a_collective_copies_its_operand_on_the_current_stream(waits):
    reduced = [summed("sum", "a", 1), awaited("done", "sum", 1), call("z", "aten.abs", R("done"), stream=1)]
    early = [wait("early", 0, 1)] if waits else []
    nodes = [call("a", "aten.neg", R("x")), wait("fork", 1, 0), *reduced, *early, *NEXT]
    results, report = codes(nodes, "y", "z", world=2)
    assert results == (set() if waits else {"E0703"}), report


def test_ranks_that_swap_calls_of_one_size():
    one, two = [summed("flag", "x"), awaited("f", "flag")], [summed("grad", "u"), awaited("g", "grad")]
    graphs = [graph(0, [*one, *two], ["f", "g"], 2), graph(1, [*two, *one], ["f", "g"], 2)]
    report = hir.torch.from_graphs(graphs).check()
    assert [it.code for it in report.faults] == ["E0705"], report
    assert re.search(r"rank 0 calls .*train.py:flag.* before .*train.py:grad", str(report)), report


def test_without_streams_and_early_uses_hir_checks_its_own_program():
    nodes = [summed("sum", "x"), awaited("done", "sum"), call("y", "aten.exp", R("done"))]
    program = hir.torch.from_graphs([graph(rank, nodes, ["y"], 2) for rank in range(2)])
    assert program.as_pytorch is None
