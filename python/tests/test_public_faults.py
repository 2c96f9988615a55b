"""18 faults of streams and of the allocator that others have reported, each with a mended form: all are found, and no mended form has a fault."""

from pathlib import Path

import pytest
from test_torch_as_pytorch import NEXT, STASH, R, awaited, call, codes, graph, summed, wait

import hir
import hir.torch

CASES = Path(__file__).parents[2] / "tests/cases/check"
KEPT = [call("record", "streams.record_stream", R("w"), 1)]
UNSTASH = [call("a", "aten.neg", R("x")), wait("fork", 1, 0), summed("sum", "a", 1), awaited("done", "sum", 1), call("z", "aten.abs", R("done"), stream=1)]
OFFLOAD = [wait("f1", 1, 0), call("g", "aten.neg", R("x"), stream=1), wait("f2", 2, 1), call("h", "aten.abs", R("g"), stream=2)]
AFTER_OFFLOAD = [call("g2", "aten.exp", R("x"), stream=1), wait("j1", 0, 1), wait("j2", 0, 2)]
BUCKET = [wait("f", 1, 0), summed("ag", "x", 1), awaited("w1", "ag", 1), wait("j", 0, 1), call("m", "aten.mm", R("x"), R("w1"))]
NEXT_BUCKET = [summed("ag2", "x", 1), awaited("w2", "ag2", 1), wait("j2", 0, 1), call("m2", "aten.mm", R("m"), R("w2"))]
THREAD = [wait("f", 1, 0), call("inp", "aten.neg", R("x"), stream=1)]
COPIED = [call("cp", "aten.abs", R("inp"), stream=0)]
TAKEN = [call("out", "aten.exp", R("cp"), stream=1), wait("j", 0, 1)]
FLAG, GRADIENT = [summed("flag", "x"), awaited("f", "flag")], [summed("grad", "u"), awaited("g", "grad")]
NEGATED, JOINED = [call("a", "aten.neg", R("x"))], [wait("join", 0, 1), call("y", "aten.exp", R("c"))]
IN_PLACE = [*NEGATED, wait("fork", 1, 0), call("b", "aten.exp", R("a"))]
RELU = [call("c", "aten.relu_", R("a"), stream=1), wait("join", 0, 1)]
SUM, DONE, EARLY = summed("sum", "x"), awaited("done", "sum"), call("y", "aten.exp", R("sum"))
LAST = call("z", "aten.mul.Tensor", R("y"), R("done"))

#: The fault: its code, the nodes, those of the mended form, the results, and the number of ranks.
GRAPHS = {
    "torchrec 4218: a tensor of another stream is freed": ("E0703", [*STASH, *NEXT], [*STASH, *KEPT, *NEXT], "copy y", 1),
    "pytorch 188655: the operand of a collective is freed": ("E0703", [*UNSTASH, *NEXT], [*UNSTASH, wait("e", 0, 1), *NEXT], "y z", 2),
    "pytorch 180665: an offloaded tensor is freed": ("E0703", OFFLOAD + AFTER_OFFLOAD, [*OFFLOAD, wait("k", 1, 2), *AFTER_OFFLOAD], "h g2", 1),
    "Megatron-LM 5788: the next bucket takes the memory": ("E0703", BUCKET + NEXT_BUCKET, [*BUCKET, wait("e", 1, 0), *NEXT_BUCKET], "m2", 2),
    "pytorch 195281: threads without events": ("E0701", THREAD + COPIED + TAKEN, [*THREAD, wait("w", 0, 1), *COPIED, wait("v", 1, 0), *TAKEN], "out", 1),
    "pytorch 195281: one of two events": ("E0701", [*THREAD, wait("w", 0, 1), *COPIED, *TAKEN], [*THREAD, wait("w", 0, 1), *COPIED, wait("v", 1, 0), *TAKEN], "out", 1),
    "unsloth-zoo 967: a rank skips a call": ("E0705", (FLAG + GRADIENT, GRADIENT), (FLAG + GRADIENT, FLAG + GRADIENT), "g", 2),
    "unsloth-zoo 967: ranks swap calls": ("E0705", (FLAG + GRADIENT, GRADIENT + FLAG), (FLAG + GRADIENT, FLAG + GRADIENT), "f g", 2),
    "a clone on a stream that does not wait": (
        "E0701", [*NEGATED, wait("fork", 1, 2), call("c", "aten.clone", R("a"), stream=1), *JOINED],
        [*NEGATED, wait("fork", 1, 0), call("c", "aten.clone", R("a"), stream=1), *JOINED], "y", 1,
    ),
    "a conversion on a stream that does not wait": (
        "E0701", [*NEGATED, wait("fork", 1, 2), call("c", "aten._to_copy", R("a"), stream=1), *JOINED],
        [*NEGATED, wait("fork", 1, 0), call("c", "aten._to_copy", R("a"), stream=1), *JOINED], "y", 1,
    ),
    "an operator in place that another stream reads": ("E0701", IN_PLACE + RELU, [*IN_PLACE, wait("e", 1, 0), *RELU], "b c", 1),
    "a result is read before the wait": ("E0701", [SUM, EARLY, DONE, LAST], [SUM, DONE, call("y", "aten.exp", R("done")), LAST], "z", 2),
}  # fmt: skip
#: The fault: its code, the program, that of the mended form, and the checks.
PROGRAMS = {
    "pytorch 148590: nothing waits for a collective": ("E0703", "never-awaited-operand", "never-awaited-operand-fixed", "race,comm,memory"),
    "ProcessGroupNCCL: a capture drops a work": ("E0703", "capture-dropped-work", "capture-awaited-work", "race,capture"),
    "pytorch 188005: two streams share signal pads": ("E0707", "signal-pads-two-streams", "signal-pads-ordered", "race,comm,memory"),
    "pytorch 189228: two streams, in opposite order": ("E0705 E0707", "signal-pads-opposite", "signal-pads-ordered", "race,comm,memory"),
    "unsloth-zoo 967: a branch skips a call": ("E0705", "call-skipped-in-branch", "calls-alike", "comm"),
    "unsloth-zoo 967: branches swap calls": ("E0705", "calls-swapped", "calls-alike", "comm"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_fault_of_a_graph_is_found(name):
    code, *forms, results, world = GRAPHS[name]
    for nodes, expected in zip(forms, ({code}, set())):
        if isinstance(nodes, tuple):
            names = [[it for it in results.split() if it in {node.name for node in own}] for own in nodes]
            report = hir.torch.from_graphs([graph(rank, nodes[rank], names[rank], world) for rank in range(world)]).check()
            found = {it.code for it in report.faults}
        else:
            found, report = codes(nodes, *results.split(), world=world)
        assert found == expected, report


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fault_of_a_program_is_found(name):
    codes, *files, checks = PROGRAMS[name]
    for file, expected in zip(files, (set(codes.split()), set())):
        report = hir.read(CASES / f"{file}.hir").check(checks)
        assert {it.code for it in report.faults} == expected, report


def test_the_table_is_whole():
    assert len(GRAPHS) + len(PROGRAMS) == 18
