"""Core aten, what hir decomposes, and every twelfth operator of PyTorch's own table of operators (OpInfo), with its first samples: opinfo.txt says which are right, and why others
are refused. ``INSTA_UPDATE=always`` writes it."""

import os
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest

import hir.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from hir.torch._draws import DRAWN, DROPOUT  # noqa: E402

TABLE = Path(__file__).with_name("opinfo.txt")
#: Each of as many operators is tried, with as many samples; and those that hir decomposes.
STEP, SAMPLES = 12, 2
WRITTEN_OUT = "cdist fft.fft2 fft.irfftn masked_scatter nn.functional.grid_sample nn.functional.interpolate.bilinear nn.functional.pdist".split()


def operators():
    # PyTorch's tests import it for their classes, which are not used here.
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=object))
    from torch.testing._internal.common_methods_invocations import op_db

    named = {f"{it.name}{'.' if it.variant_test_name else ''}{it.variant_test_name}": it for it in op_db if torch.float32 in it.dtypes}
    named = {name: it for name, it in named.items() if "empty" not in name and "jiterator" not in name}
    return [(name, named[name]) for name in sorted({*sorted(named)[::STEP], *WRITTEN_OUT})]


def outcome(operator, sample):
    """What becomes of a sample: ``right``, ``wrong``, or why hir refuses it."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree as pytree

    leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [it for it in leaves if isinstance(it, torch.Tensor)]

    def function(*given):
        given = iter(given)
        first, args, kwargs = pytree.tree_unflatten([next(given) if isinstance(it, torch.Tensor) else it for it in leaves], structure)
        return [it for it in pytree.tree_leaves(operator.op(first, *args, **kwargs)) if isinstance(it, torch.Tensor)]

    try:
        functional = torch.func.functionalize(function, remove="mutations")
        traced = make_fx(functional, decomposition_table=hir.torch._decomposed.decompositions())(*tensors)
        expected = function(*tensors)
        [results] = hir.torch.from_fx(traced).run([[it.numpy() for it in tensors]])
    except hir.torch.TorchImportError as error:
        return " ".join(str(error).split("`")[1:2]) or str(error)[:60]
    except Exception as error:
        return type(error).__name__
    for ours, theirs in zip(results, expected, strict=True):
        theirs = (theirs.detach().float() if theirs.dtype == torch.bfloat16 else theirs.detach()).resolve_conj().resolve_neg()
        close = np.allclose(ours, theirs.numpy(), 1e-4, 1e-5, equal_nan=True)
        if ours.shape != tuple(theirs.shape) or not close:
            return "wrong"
    return "right"


def core_without_rule():
    """The number of overloads of core aten, and those that hir does not run: without a rule or a decomposition, and not drawn by PyTorch."""
    # `dir` has only those that something has asked for.
    names = {it[6:].partition(".")[0] for it in torch._C._dispatch_get_all_op_names() if it.startswith("aten::")}
    packets = (getattr(torch.ops.aten, it, None) for it in sorted(names))
    core = [getattr(it, name) for it in packets if hasattr(it, "overloads") for name in it.overloads()]
    core = [it for it in core if torch.Tag.core in it.tags]
    known, drawn = hir.torch._decomposed.decompositions(), (*DRAWN, DROPOUT, "aten.sym_")
    # `as_strided` has its name if it is not of a whole storage.
    ruled = {*hir.torch._decomposed.OPERATORS, "aten.as_strided.default"}
    return len(core), sorted(str(it) for it in core if str(it) not in ruled and it not in known and not str(it).startswith(drawn))


def test_samples_are_right_or_refused():
    count, names = core_without_rule()
    lines = [f"PyTorch {'.'.join(torch.__version__.split('.')[:2])}, core aten: {count - len(names)} of {count} overloads have a rule or a decomposition, or are drawn by PyTorch; not {', '.join(names)}"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, operator in operators():
            torch.manual_seed(0)
            samples = [it for _, it in zip(range(SAMPLES), operator.sample_inputs("cpu", torch.float32))]
            found = [outcome(operator, it) for it in samples]
            reasons = sorted(set(found) - {"right"})
            lines.append(f"{name}: {found.count('right')} of {len(found)} right" + "".join(f"; {it}" for it in reasons))
    text = "\n".join(lines) + "\n"
    if os.environ.get("INSTA_UPDATE") == "always":
        TABLE.write_text(text)
    assert "wrong" not in text
    # Other versions have other operators.
    assert TABLE.read_text().partition(",")[0] != text.partition(",")[0] or TABLE.read_text() == text
