"""``hir.torch.compare``: right plans have no difference; each fault is named with its tensor, its line, its ranks and what it looks like."""

import os
from pathlib import Path

import pytest

import hir
import hir.torch

pytest.importorskip("torch")
import torch  # noqa: E402
from hir.compare._command import main  # noqa: E402
from torch.distributed.tensor import Shard  # noqa: E402

import compare_programs as programs  # noqa: E402

FILE = "compare_programs.py"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", list(programs.RIGHT)[: None if os.environ.get("HIR_PARTS") == "all" else 6])
def test_a_right_plan_has_no_difference(name):
    parallel, single, ranks = programs.RIGHT[name]
    result = hir.torch.compare(parallel, single, ranks=ranks)
    assert result.code == 0 and result.compared > 40, str(result)
    assert ("# dropout is off" in str(result)) == (name == "dropout, tied")


@pytest.mark.parametrize("name", programs.REPORTED)
def test_a_reported_fault_is_named_and_its_mended_form_is_not(name):
    parallel, single, *expected = programs.REPORTED[name]
    faulty = hir.torch.compare(programs.with_options(parallel, is_right=False), single, ranks=2)
    first = faulty.differences[0]
    assert [first.kind, first.pattern] == expected, str(faulty)
    assert FILE in first.place and faulty.code == 3
    with pytest.raises(hir.FindingsError, match="differs on rank"):
        faulty.raise_if_found()
    mended = hir.torch.compare(programs.with_options(parallel, is_right=True), single, ranks=2)
    assert mended.code == 0, str(mended)


@pytest.mark.parametrize(
    "parallel, options, single, title, pattern, ranks",
    [
        (programs.uneven, {"is_right": False}, {"ignored": 9}, "the gradient of `head.weight`", "local mean", (0, 1)),
        (programs.ddp, {"fault": "rows"}, {}, "an input of the model", "rows", (0, 1)),
        (programs.ddp, {"fault": "sum"}, {}, "the gradient of `head.weight`", "twice", (0, 1)),
        (programs.ddp, {"fault": "drift"}, {}, "the update of `norm.bias`", "drift", (1,)),
        (programs.tensor_parallel, {"fault": "shard"}, {}, "the initial value of `blocks.0.up.weight`", "shard", (0, 1)),
    ],
)
def test_a_fault_is_named(parallel, options, single, title, pattern, ranks):
    result = hir.torch.compare(programs.with_options(parallel, **options), programs.one(**single), ranks=2)
    first = result.differences[0]
    assert (first.title, first.pattern, first.ranks) == (title, pattern, ranks), str(result)
    assert "[FAILED] " + title in str(result).splitlines()[-1]


def test_plain_tensors_have_placements():
    parallel, single, _ = programs.RIGHT["own tensor parallel"]
    result = hir.torch.compare(parallel, single, ranks=2, placements={"*.weight": Shard(1), "blocks.*.up.bias": Shard(0)})
    assert result.code == 0 and "its shape is no slice" in str(result)


def test_random_numbers_prove_nothing():
    def noisy(rank, ranks):
        model, step = programs.ddp(rank, ranks)
        model.module.drop.forward = lambda x: x * torch.rand(x.shape)
        return model, step

    result = hir.torch.compare(noisy, programs.single, ranks=2)
    assert result.code == 7 and "draw different random numbers" in str(result)


def command(capsys, *words):
    code = main([*words, "--ranks", "2"])
    return code, capsys.readouterr().out


def test_the_command_and_the_page(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/pytorch.md").read_text()
    shown = page.split("$ python -m hir compare ")[1].split("\n```")[0].splitlines()
    parallel, single, *_ = shown[0].split()
    code, text = command(capsys, parallel, single)
    assert code == 3 and all(part in text for line in shown[1:] for part in line.split("…")), text
    code, text = command(capsys, parallel.replace(":parallel", ":mended"), single)
    assert code == 0 and text.splitlines()[-1].startswith("[SUCCESS] "), text
    for words, told in ((["missing.py:a", "b"], "there is no file missing.py"), ([f"python/tests/{FILE}:a", "b"], "has no function a")):
        with pytest.raises(SystemExit) as error:
            command(capsys, *words)
        assert error.value.code == 2 and told in capsys.readouterr().err


def test_a_rank_that_fails_and_ranks_that_hang_are_named():
    def hanging(rank, ranks):
        if rank == 0:
            torch.distributed.barrier()
        return programs.ddp(rank, ranks)

    def wrong():
        return 3

    cases = [(hanging, programs.single, 4, "rank 0 calls barrier"), (programs.ddp, wrong, 1, "has to return (model, step)")]
    for parallel, single, code, told in cases:
        with pytest.raises(hir.HirError, match="FAILED") as error:
            hir.torch.compare(parallel, single, ranks=2)
        assert error.value.exit_code == code and told in str(error.value)
