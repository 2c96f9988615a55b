"""Streams and events of PyTorch programs. PyTorch traces them on GPUs only; these graphs have the operators that it writes there."""

import numpy as np
import pytest

import hir.torch
from hir.torch import Graph, Node, TorchImportError, recorded_graph
from hir.torch._graph import Ref, TensorType
from hir.torch._recorded import to_recorded

MATRIX = TensorType((4, 4), "float32")
GROUP = "0"


def call(name, target, *args, stream=None):
    result = None if target.startswith("streams.") else MATRIX
    target = target if target.count(".") == 2 else f"{target}.default"
    return Node(name, "call_function", target, args, result=result, place=f"train.py:{name}", stream=stream)


def graphs(nodes, result, world=1):
    inputs, output = Node("x", "placeholder", "x", result=MATRIX), Node("output", "output", "output", ((Ref(result),),))
    every = tuple(range(world))
    return [Graph("step", rank, world, (inputs, *nodes, output), {GROUP: every}) for rank in every]


def step(without=()):
    """`exp` runs on stream 1 beside the first sum, which waits for an event between the product and `exp`."""
    nodes = [
        call("a", "aten.relu", Ref("x")),
        call("before", "streams.wait_stream", 1, 0, stream=1),
        call("b", "aten.mm", Ref("a"), Ref("a"), stream=1),
        call("recorded", "streams.record_event", 7, 1, stream=1),
        call("c", "aten.exp", Ref("b"), stream=1),
        call("event", "streams.wait_event", 7, 0),
        call("d", "aten.sub.Tensor", Ref("b"), Ref("a"), stream=0),
        call("after", "streams.wait_stream", 0, 1),
        call("e", "aten.mul.Tensor", Ref("d"), Ref("c")),
    ]
    return graphs([it for it in nodes if it.name not in without], "e")


def test_streams_and_events_order_the_statements():
    program = hir.torch.from_graphs(step())
    assert "Synchronize(Stream 1)  // train.py:after" in program.text
    program.check().raise_if_found()
    assert program.overlapping("@overlap") == "@lower"
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    a = np.maximum(x, 0)
    b = a @ a
    for passes in (None, "@lower"):
        [[result]] = program.run([[x]], passes)
        np.testing.assert_allclose(result, (b - a) * np.exp(b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("missing, lines", [("before", ("a", "b")), ("event", ("b", "d")), ("after", ("c", "e"))])
def test_a_missing_wait_is_a_race_with_the_python_lines(missing, lines):
    # The wait for the event orders the last sum behind the product, but not behind `exp`.
    report = str(hir.torch.from_graphs(step(without=[missing])).check())
    assert "E0701" in report
    assert all(f"train.py:{it}" in report for it in lines), report


def test_a_wait_for_an_event_does_not_wait_for_later_work():
    [graph] = step(without=["after"])
    program = hir.torch.from_graphs([graph])
    assert "race on `T3`" in str(program.check())


def test_a_collective_on_another_stream():
    def reduced(waits):
        nodes = [
            call("a", "aten.relu", Ref("x")),
            call("fork", "streams.wait_stream", 1, 0),
            call("sum", "_c10d_functional.all_reduce", Ref("a"), "sum", GROUP, stream=1),
            call("done", "_c10d_functional.wait_tensor", Ref("sum"), stream=1),
            call("b", "aten.mm", Ref("a"), Ref("a")),
            *([call("join", "streams.wait_stream", 0, 1)] if waits else []),
            call("c", "aten.mm", Ref("done"), Ref("b")),
        ]
        return hir.torch.from_graphs(graphs(nodes, "c", world=2))

    reduced(True).check().raise_if_found()
    assert "train.py:c" in str(reduced(False).check())
    xs = [np.full((4, 4), it, np.float32) for it in (1, 2)]
    for [result], x in zip(reduced(True).run([[it] for it in xs], "@lower"), xs, strict=True):
        np.testing.assert_allclose(result, (xs[0] + xs[1]) @ (x @ x))


def test_streams_are_recorded():
    [graph] = step()
    assert recorded_graph(to_recorded(graph)) == graph


def test_annotations_without_operators_on_streams_have_no_effect():
    names = [it.name for it in step()[0].nodes if it.target.startswith("streams.")]
    assert "Stream" not in hir.torch.from_graphs(step(without=names)).text


def test_a_wait_for_an_event_that_is_not_recorded_is_an_error():
    with pytest.raises(TorchImportError, match="train.py:event.*does not record the event 7"):
        hir.torch.from_graphs(step(without=["recorded"]))
