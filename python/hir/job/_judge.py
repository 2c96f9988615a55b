"""What is said about a job: its faults with lines of the script, or what was checked."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Iterator

from .._diagnostic import HirError
from .._hang import HangReport, hang
from ._dumps import write_dumps
from ._explain import crossed_text, cycle_text, ended_text, failure_text, first_line, numbers, other_group_text, shown, stacks, stop_text, subset_text, tags_text, unfit_text, waiting
from ._supervise import Outcome, Use

#: The codes of exit, those of the other tools of hir.
ERROR, HANG, RACE, UNDECIDED = 1, 4, 7, 8

#: What a script needs that finds no GPU.
STAND_IN = "# help: `hir job --cuda` runs a script for GPUs on the CPU"

#: The findings of ``hir hang`` that name a fault of the script.
FAULTS = ("E0801", "E0802", "E0803", "E0804", "E0805")


def judge(outcome: Outcome, folder: Path | None, cuda: bool = False) -> int:
    """Prints the result, and returns the exit code. Keeps the records in a folder, if it is given. ``cuda`` is that of the command."""
    calls, ranks = sum(len(it) for it in outcome.matching.posts.values()), len(outcome.states)
    is_over = not outcome.stopped and not outcome.matching.unfit
    report = None
    if folder is not None or not is_over:
        report = _explain(outcome, folder)
    fault = _fault(outcome, report)
    uses = [f"[E0701] Error: {it}" for it in _use_texts(outcome.uses)]
    crossed = crossed_text(outcome)
    uses += [f"[E0707] Error: {crossed}"] if crossed else []
    failed = [(rank, it) for rank, it in enumerate(outcome.states) if it.code]
    for text in ([fault[0]] if fault else []) + uses:
        print(text, file=sys.stderr)
    sys.stderr.flush()
    print(f"# {ranks} ranks, {calls} calls in {outcome.seconds:.1f} s")
    for row in report.table if outcome.stopped and report is not None else ():
        print(f"  {row}")
    for text in stacks(outcome) if outcome.stopped else ():
        print(f"# {text}")
    for what, at in outcome.outside:
        print(f"# not covered: {what} ({shown(at)}): hir does not see its kernels and communication")
    for rank, state in enumerate(outcome.states):
        if state.code is not None and (state.code or outcome.stopped):
            print(f"# rank {rank} {f'failed: {first_line(state.error)}' if state.code else 'has ended'}")
    if fault:
        return _failed(f"hang: {fault[1]}", HANG)
    if uses:
        return _failed(uses[0].partition("Error: ")[2], RACE)
    if failed:
        if not cuda and any(it in state.error for _, state in failed for it in ("NVIDIA", "CUDA", "cuda")):
            print(STAND_IN)
        return _failed(failure_text(failed), ERROR)
    if outcome.stopped:
        return _failed(stop_text(outcome), HANG)
    if not calls:
        if not cuda:
            print(STAND_IN)
        print("[UNDECIDED] no rank called torch.distributed: nothing was checked")
        return UNDECIDED
    print(f"[SUCCESS] no fault in {calls} calls of {ranks} ranks: {_checked(outcome)}")
    return 0


def _failed(text: str, code: int) -> int:
    print(f"[FAILED] {text}")
    return code


def _explain(outcome: Outcome, folder: Path | None) -> HangReport | None:
    with tempfile.TemporaryDirectory(prefix="hir-job-") as temporary:
        write_dumps(outcome.matching, outcome.states, folder or Path(temporary))
        try:
            return hang(folder or temporary)
        except HirError:
            return None


def _fault(outcome: Outcome, report: HangReport | None) -> tuple[str, str] | None:
    """Returns the first fault of order or agreement: the diagnostic, and one sentence."""
    unfit = outcome.matching.unfit
    subset = subset_text(outcome)
    if not outcome.stopped and not unfit:
        return _own("E0805", subset) if subset else None
    first = report.findings[0] if report is not None and report.findings else None
    of_hang = (str(report).partition("\n# ")[0], first.message) if first is not None else None
    # The dumps hold neither roots nor reductions.
    hidden = [it for it in unfit if it.unfit in ("root", "reduction")]
    if hidden:
        return _own("E0802", unfit_text(outcome, hidden[0]))
    tags = tags_text(outcome)
    if tags:
        return _own("E0804", tags)
    other = subset or other_group_text(outcome)
    if other:
        return _own("E0805", other)
    if of_hang and first is not None and first.code in FAULTS:
        return of_hang
    if unfit:
        return _own("E0802", unfit_text(outcome, unfit[0]))
    if any(it.code for it in outcome.states):
        return None
    ended = ended_text(outcome)
    if ended:
        return _own("E0801", ended)
    cycle = cycle_text(outcome)
    if cycle:
        is_nccl = any(it.call.group.is_nccl for it in waiting(outcome))
        return _own("E0803", f"{cycle}; with NCCL, the calls of a group run one after the other, and only a batch is one call" if is_nccl else cycle)
    return of_hang if outcome.stopped == "standstill" else None


#: When a buffer is used, by how it is.
WHEN = {
    "": " before the wait for it",
    "elsewhere": " on a stream that does not follow the wait for it",
    "earlier": ", which starts on a stream that does not follow this use",
}


def _own(code: str, text: str) -> tuple[str, str]:
    return f"[{code}] Error: {text}", text


def _use_texts(uses: list[Use]) -> Iterator[str]:
    """Says which buffers are used too early, once for all ranks that do."""
    ranks: dict[str, list[int]] = {}
    for it in uses:
        name = it.operator.rpartition("::")[2].strip("_")
        verb = {"reads": "reads an output of", "writes": "writes a buffer of", "uses": "uses a buffer of"}[it.how.partition(" ")[0]]
        when = WHEN[it.how.partition(" ")[2]]
        call = it.call.lstrip("_").partition(" ")[0]
        text = f"{shown(it.place)}: {name} {verb} the {call} ({shown(it.call_place)}){when}"
        ranks.setdefault(text, []).append(it.rank)
    for text, found in ranks.items():
        yield f"{text}, on {numbers(found)}"


def _checked(outcome: Outcome) -> str:
    backends = {it.call.group.backend for posts in outcome.matching.posts.values() for it in posts}
    rules = " and ".join({"nccl": "NCCL", "gloo": "gloo"}[it] for it in sorted(backends))
    unseen = " (uses of buffers of futures, as in DDP, are not seen)" if outcome.has_futures else ""
    if outcome.outside:
        unseen += f"; not covered: {', '.join(dict.fromkeys(what for what, _ in outcome.outside))}"
    return f"their order under {rules}, sizes, types, roots and reductions agree, and nothing uses a buffer before the wait{unseen}"
