"""Runs both programs, and compares them."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping

from .._diagnostic import FindingsError, HirError

if TYPE_CHECKING:
    from ..job._start import Start
    from ..job._supervise import Outcome
    from ._entry import Record
    from ._judge import Difference

#: The codes of exit, those of the other tools of hir.
FAILED, DIFFERS, HANGS, UNCHECKED = 1, 3, 4, 7


@dataclass(frozen=True)
class Comparison:
    """What a comparison has found: ``str`` shows it, and its last line is the verdict. ``differences``: the first one comes first."""

    differences: tuple[Difference, ...]
    #: How many tensors are compared, and why others are not, with how many.
    compared: int
    skipped: Mapping[str, int]
    #: Why differences or their absence prove nothing, if so.
    undecided: str | None
    notes: tuple[str, ...]
    ranks: int

    @property
    def code(self) -> int:
        """The exit code."""
        return UNCHECKED if self.undecided else DIFFERS if self.differences else 0

    def __str__(self) -> str:
        from ..job._explain import numbers, shown

        lines = [f"# {it}" for it in self.notes]
        lines += [f"# not compared: {count} tensor{'s' if count > 1 else ''}: {why}" for why, count in self.skipped.items()]
        for it in self.differences[:1]:
            if it.element:
                lines.append(f"# {it.element}, by {it.error:.3g}; rounding explains {it.tolerance:.3g}")
        if len(self.differences) > 1:
            more = ", ".join(it.title for it in self.differences[1:4]) + (", …" if len(self.differences) > 4 else "")
            lines.append(f"# {len(self.differences) - 1} more of {self.compared} tensors differ: {more}")
        if self.undecided:
            lines.append(f"[UNDECIDED] {self.undecided}")
        elif self.differences:
            first = self.differences[0]
            if first.kind == "gradient" and first.pattern == "unknown":
                lines.append("# the results of all modules agree: the fault is behind the last one, or in a gradient")
            place = f" ({shown(first.place)})" if first.place else ""
            lines.append(f"[FAILED] {first.title}{place} differs on {numbers(first.ranks)}: {first.why}")
        else:
            lines.append(f"[SUCCESS] {self.compared} tensors of {self.ranks} ranks agree with those of one device")
        return "\n".join(lines)

    def raise_if_found(self) -> None:
        """Raises ``FindingsError`` if a tensor differs, or nothing is proven."""
        if self.code:
            raise FindingsError(str(self))


class StoppedError(HirError):
    """A rank has failed, or the ranks hang. ``exit_code`` is that of the command."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def compare(
    parallel: Callable[..., Any],
    single: Callable[..., Any],
    *,
    ranks: int,
    placements: Mapping[str, Any] | None = None,
    timeout: float = 300,
    cuda: bool = False,
) -> Comparison:
    """Runs a parallel program on ``ranks`` processes of this machine, and the same program on one device, and compares their values.

    Both functions return ``(model, step)``: a module (or a list of them), and a function that runs the step, such as forward, backward and
    ``optimizer.step()``; or ``(model, inputs)``: then the model is called, and the gradient of its result taken, if that is one number. A
    function with one or two parameters gets the rank and the number of ranks; ``single`` gets 0 and 1. The random numbers of all processes begin
    with seed 0. The process group exists when ``parallel`` is called.

    Compared are, by the names of modules and parameters and in this order: initial parameters, inputs, results of modules, gradients as the
    optimizer gets them, and its updates. DTensors are compared by their placements. A plain tensor of another shape is a slice, which its values
    tell; ``placements`` has those of plain tensors for names of modules and parameters, which may have ``*``: ``Shard(1)``, ``Replicate()``.
    Dropout is off. ``cuda``: a stand-in takes the CPU for GPUs.
    """
    missing = _imports()
    if missing:
        raise HirError(missing)
    import torch

    if torch.distributed.is_initialized():
        raise HirError("compare starts the ranks by itself: call it in a process without a process group")
    from ._judge import OWN, changes, judge, terms_of
    from ._tolerance import Tolerance

    if ranks < 1:
        raise HirError("`ranks` has to be a positive number")
    asked = dict(placements or {})
    one = _run(single, 1, timeout, cuda)[0][0]
    records, outcome = _run(parallel, ranks, timeout, cuda)
    types, terms = set().union(one.types, *(it.types for it in records)), terms_of(one)
    tolerance = Tolerance(types, terms)
    result = judge(one, records, tolerance, asked)
    if result.differences or OWN in result.skipped:
        disturbed = _run(single, 1, timeout, cuda, tolerance.roundoff)[0][0]
        result = judge(one, records, Tolerance(types, terms, changes(one, disturbed)), asked)
    notes = ["dropout is off"] if any(it.has_dropout for it in (one, *records)) else []
    if outcome.uses:
        notes.append("`hir job` finds buffers that are used before the wait for their communication")
    undecided = None
    is_random = any(it.is_random for it in (one, *records)) and len({it.random for it in (one, *records)}) > 1
    if result.differences and is_random:
        undecided = f"{result.differences[0].title} differs, but the steps draw different random numbers: draw them before the step"
    elif not result.differences and result.gradients < any(it.key.kind == "gradient" and it.value is not None for it in one.entries):
        undecided = "no gradient is compared: names and shapes of parameters have to be those of the program on one device, or slices of them"
    elif not result.differences and not result.compared:
        undecided = "no tensor is compared: names of modules and parameters have to be those of the program on one device"
    skipped = {why: len(keys) for why, keys in result.skipped.items()}
    return Comparison(tuple(result.differences), result.compared, skipped, undecided, tuple(notes), ranks)


def _imports() -> str | None:
    """Imports what ranks share, and leaves the environment and `torch.compile` of this process as they are."""
    from ..job._command import imports

    environment, is_loaded = dict(os.environ), "torch._dynamo" in sys.modules
    missing = imports()
    os.environ.clear()
    os.environ.update(environment)
    if missing is None and not is_loaded:
        import torch._dynamo

        torch._dynamo.config.disable = os.environ.get("TORCHDYNAMO_DISABLE") == "1"
    return missing.replace("hir job", "hir compare") if missing else None


def _run(build: Callable[..., Any], ranks: int, timeout: float, cuda: bool, noise: float = 0.0) -> tuple[list[Record], Outcome]:
    """Runs a program on all ranks, and returns their records."""
    import torch

    from ..job._start import start_ranks

    # The processes of ranks would remove a `TemporaryDirectory` when they end.
    folder = Path(tempfile.mkdtemp(prefix="hir-compare-"))
    try:
        outcome = start_ranks(ranks, timeout, lambda it: _record(it, build, folder, cuda, noise))
        if outcome.stopped or outcome.matching.unfit or any(it.code for it in outcome.states):
            raise _stopped(outcome)
        left = [rank for rank in range(ranks) if not (folder / str(rank)).exists()]
        if left:
            raise StoppedError(f"[FAILED] rank {left[0]} of {getattr(build, '__qualname__', 'a program')} ends before its step does", FAILED)
        return [torch.load(folder / str(rank), weights_only=False) for rank in range(ranks)], outcome
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stopped(outcome: Outcome) -> StoppedError:
    from ..job._judge import judge

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = judge(outcome, None)
    if "Autograd-and-Fork" in text.getvalue():
        way = "compare before the first gradients on a GPU or of a compiled model, or run `python -m hir compare`"
        return StoppedError(f"[FAILED] not run: threads of autograd have started, and forks of this process cannot compute gradients: {way}", 6)
    return StoppedError(text.getvalue().rstrip().replace("`hir job --cuda`", "`hir compare --cuda`"), code or HANGS)


def _record(start: Start, build: Callable[..., Any], folder: Path, cuda: bool, noise: float) -> None:
    """Runs the program in the process of a rank."""
    import torch
    import torch.distributed as dist

    from ..job._register import register
    from ._record import Recorder, call_builder

    # The recorder of PyTorch does not know groups in Python.
    os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "0"
    torch._dynamo.config.disable = True
    register(start.recorder, None, "cuda" if cuda else "cpu", start.ranks, start.port)
    if cuda:
        from ..job._cuda import stand_in

        stand_in(start.rank, start.ranks, start.recorder.uses, start.recorder.synchronize)
    dist.init_process_group("cuda:nccl,cpu:gloo" if cuda else "gloo")
    # A program that makes the group itself has it already.
    dist.init_process_group = torch.distributed.distributed_c10d.init_process_group = lambda *_, **__: None
    torch.manual_seed(0)
    models, step = call_builder(build, start.rank, start.ranks)
    record = Recorder(models, noise).run(step)
    torch.save(record, folder / str(start.rank))
