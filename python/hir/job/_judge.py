"""What is said about a job: its faults with lines of the script, or what was checked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Iterator

from .._diagnostic import HirError
from .._hang import HangReport, hang
from ._calls import SEND, value_of
from ._dumps import write_dumps
from ._matching import Post, Slot
from ._supervise import Outcome, State, Use

#: The codes of exit, those of the other tools of hir.
ERROR, HANG, RACE = 1, 4, 7

#: The findings of ``hir hang`` that name a fault of the script.
FAULTS = ("E0801", "E0802", "E0803", "E0804", "E0805")


def judge(outcome: Outcome, folder: Path) -> int:
    """Prints the result, and returns the exit code."""
    calls = sum(len(it) for it in outcome.matching.posts.values())
    ranks = len(outcome.states)
    write_dumps(outcome.matching, outcome.states, folder)
    report = _explain(folder) if calls else None
    failed = [(rank, it) for rank, it in enumerate(outcome.states) if it.code]
    faults = list(_faults(outcome, report))
    uses = list(_use_texts(outcome.uses))
    for text in uses:
        print(text, file=sys.stderr)
    sys.stderr.flush()
    print(f"# {ranks} ranks, {calls} calls in {outcome.seconds:.1f} s")
    if outcome.stopped and report is not None:
        for row in report.table:
            print(f"  {row}")
    for line in _unfinished(outcome):
        print(f"# {line}")
    if faults:
        print(f"[FAILED] {faults[0]}")
        return HANG
    if failed:
        print(f"[FAILED] {_failure(failed)}")
        if any(it in state.error for _, state in failed for it in ("NVIDIA", "CUDA", "cuda")):
            print("Help: `hir job --cuda` runs a script for GPUs on the CPU", file=sys.stderr)
        return ERROR
    if uses:
        print(f"[FAILED] {uses[0].partition('Error: ')[2]}")
        return RACE
    if outcome.stopped:
        print(f"[FAILED] {_stop_text(outcome)}")
        return HANG
    if not calls:
        print("[UNDECIDED] no rank called torch.distributed: nothing was checked")
        return 0
    print(f"[SUCCESS] no fault in {calls} calls of {ranks} ranks: {_checked(outcome)}")
    return 0


def _explain(folder: Path) -> HangReport | None:
    try:
        return hang(folder)
    except HirError:
        return None


def _faults(outcome: Outcome, report: HangReport | None) -> Iterator[str]:
    """Prints the faults of order and agreement, and returns them in one line each."""
    if not outcome.stopped and not outcome.matching.unfit:
        return
    first = report.findings[0] if report is not None and report.findings else None
    hidden = next((it for it in outcome.matching.unfit if it.unfit in ("root", "reduction")), None)
    is_explained = first is not None and first.code in FAULTS
    if report is not None and is_explained and hidden is None:
        print(str(report).partition("\n# ")[0], file=sys.stderr)
        yield report.verdict
        return
    if outcome.matching.unfit:
        text, code = _unfit_text(hidden or outcome.matching.unfit[0], outcome.states), "E0802"
        print(f"[{code}] Error: {text}", file=sys.stderr)
        yield f"hang: {text}"
        return
    if any(it.code for it in outcome.states):
        return
    ended, cycle = _ended_text(outcome), _cycle_text(outcome)
    if ended or cycle:
        print(f"[{'E0801' if ended else 'E0803'}] Error: {ended or cycle}", file=sys.stderr)
        if cycle and not ended:
            print("Help: with NCCL, the calls of a group run one after the other, and only `batch_isend_irecv` starts several together", file=sys.stderr)
        yield f"hang: {ended or cycle}"
    elif report is not None and outcome.stopped == "standstill" and first is not None:
        print(str(report).partition("\n# ")[0], file=sys.stderr)
        yield report.verdict


def numbers(ranks: list[int]) -> str:
    """Writes ranks: ``rank 2``, ``ranks 0, 1 and 3``."""
    texts = [str(it) for it in sorted(set(ranks))]
    if len(texts) > 8:
        return f"{len(texts)} ranks"
    return f"rank {texts[0]}" if len(texts) == 1 else f"ranks {', '.join(texts[:-1])} and {texts[-1]}"


def _place(state: State, post: Post) -> str:
    for number in post.call.frames:
        file, line, _ = state.frames[number]
        if _is_of_script(file):
            return f"{_short(file)}:{line}"
    return "?"


def _name(state: State, post: Post) -> str:
    """Returns the function of PyTorch that the script calls, with the peer of a message."""
    name = post.call.name.lstrip("_").partition(" ")[0]
    for number in post.call.frames:
        file, _, function = state.frames[number]
        if _is_of_script(file):
            break
        if file.endswith("torch/distributed/distributed_c10d.py") and function != "wrapper" and not function.startswith("_"):
            name = function
    if not post.call.is_message:
        return name
    peer = "any rank" if post.call.peer is None else f"rank {post.call.group.ranks[post.call.peer]}"
    return f"{name} {'to' if post.call.kind == SEND else 'from'} {peer}"


def _is_of_script(file: str) -> bool:
    return "/torch/" not in file and not file.startswith("<") and ("/lib/python3." not in file or "-packages/" in file)


def _short(file: str) -> str:
    """Returns a path as seen from the current folder, if it is below."""
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def _unfit_text(slot: Slot, states: list[State]) -> str:
    """Says what members of one communication pass differently, the fewest first."""
    by_value: dict[str, list[Post]] = {}
    for post in slot.ordered():
        by_value.setdefault(value_of(post.call, slot.unfit or ""), []).append(post)
    sides = []
    for value, posts in sorted(by_value.items(), key=lambda it: len(it[1])):
        places = sorted({_place(states[it.rank], it) for it in posts})
        verb = "passes" if len({it.rank for it in posts}) == 1 else "pass"
        sides.append(f"{numbers([it.rank for it in posts])} {verb} {value} ({' and '.join(places[:3])})")
    first = slot.ordered()[0]
    name = _name(states[first.rank], first)
    return f"the {slot.unfit} of one {name} differs: {', '.join(sides)}"


def _cycle_text(outcome: Outcome) -> str | None:
    """Says which ranks wait for each other, each in the first call of its queue; None if there is no cycle."""
    edges: dict[int, tuple[Post, int]] = {}
    for post in _waiting(outcome):
        # What is at the head of the queue is what the rank waits in.
        head = post.entry.queue[0].posts[0] if post.entry.queue else post
        group, slot = head.call.group, head.slot
        if slot is None:
            others = [] if head.call.peer is None else [group.ranks[head.call.peer]]
        else:
            others = [it.rank for it in slot.ordered() if not it.entry.is_started()]
            if not head.call.is_message:
                others += [it for at, it in enumerate(group.ranks) if at not in slot.posts]
        if others:
            edges[post.rank] = (head, others[0])
    for rank in edges:
        path: list[int] = []
        while rank in edges and rank not in path:
            path.append(rank)
            rank = edges[rank][1]
        if rank in path:
            cycle = sorted(path[path.index(rank) :])
            texts = [f"rank {it} in {_name(outcome.states[it], edges[it][0])} ({_place(outcome.states[it], edges[it][0])})" for it in cycle]
            return f"{numbers(cycle)} wait for each other: {', '.join(texts[:4])}{', …' if len(texts) > 4 else ''}"
    return None


def _ended_text(outcome: Outcome) -> str | None:
    """Says which ranks have ended without a call in which others wait; None if there is none."""
    for waiting in _waiting(outcome):
        group = waiting.call.group
        slot = waiting.slot
        if waiting.call.is_message and slot is None and waiting.call.peer is not None:
            absent = [group.ranks[waiting.call.peer]]
        else:
            absent = [it for at, it in enumerate(group.ranks) if slot is not None and at not in slot.posts]
        ended = [it for it in absent if outcome.states[it].code is not None]
        if ended:
            others = [it.rank for it in (slot.ordered() if slot else [waiting])]
            name, place = _name(outcome.states[waiting.rank], waiting), _place(outcome.states[waiting.rank], waiting)
            wait = "waits" if len(others) == 1 else "wait"
            verb = "ends" if len(ended) == 1 else "end"
            return f"{numbers(ended)} {verb} without the {name} ({place}) in which {numbers(others)} {wait}"
    return None


def _waiting(outcome: Outcome) -> list[Post]:
    """Returns the calls in which ranks wait, the oldest first."""
    found = []
    for rank, state in enumerate(outcome.states):
        post = outcome.matching.post_of(rank, state.waits) if state.waits is not None else next(outcome.matching.open_posts(rank), None)
        found += [post] if post is not None else []
    return sorted(found, key=lambda it: it.call.time)


def _unfinished(outcome: Outcome) -> Iterator[str]:
    """Says what else is known of the ranks of a job that was ended."""
    for rank, state in enumerate(outcome.states):
        if state.code:
            yield f"rank {rank} failed: {_first_line(state.error)}"
        elif outcome.stopped and state.code is not None:
            yield f"rank {rank} has ended"
        elif outcome.stopped and state.waits is None and state.place:
            yield f"rank {rank} is at {state.place} ({state.top[1]})"


def _failure(failed: list[tuple[int, State]]) -> str:
    texts: dict[str, list[int]] = {}
    for rank, state in failed:
        texts.setdefault(state.error, []).append(rank)
    error, ranks = next(iter(texts.items()))
    return f"{numbers(ranks)} failed: {_first_line(error)}"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _stop_text(outcome: Outcome) -> str:
    waiting = _waiting(outcome)
    running = [rank for rank, it in enumerate(outcome.states) if it.waits is None and it.code is None]
    where = f"; {numbers(running)} {'is' if len(running) == 1 else 'are'} elsewhere" if running else ""
    first = waiting[0] if waiting else None
    call = f": {numbers([it.rank for it in waiting])} wait, first in {_name(outcome.states[first.rank], first)} ({_place(outcome.states[first.rank], first)}){where}" if first else ""
    how = f"no call for {outcome.timeout:g} s" if outcome.stopped == "timeout" else "no rank can proceed"
    return f"{how}{call}"


def _use_texts(uses: list[Use]) -> Iterator[str]:
    """Says which buffers are used too early, once for all ranks that do."""
    ranks: dict[tuple[str, ...], list[int]] = {}
    for it in uses:
        ranks.setdefault((it.place, it.operator, it.how, it.call, it.call_place), []).append(it.rank)
    for (place, operator, how, call, call_place), found in ranks.items():
        name = operator.rpartition("::")[2].rstrip("_")
        verb = {"reads": "reads an output of", "writes": "writes a buffer of", "uses": "uses a buffer of"}[how]
        yield (
            f"[E0701] Error: {_shorten(place)}: {name} {verb} the {call.lstrip('_').partition(' ')[0]} ({_shorten(call_place)}) "
            f"before the wait for it, on {numbers(found)}"
        )


def _shorten(place: str) -> str:
    file, _, line = place.rpartition(":")
    return f"{_short(file)}:{line}" if file else "?"


def _checked(outcome: Outcome) -> str:
    backends = sorted({it.call.group.backend for posts in outcome.matching.posts.values() for it in posts})
    names = {"nccl": "NCCL", "gloo": "gloo"}
    rules = " and ".join(names[it] for it in backends)
    return f"their order under {rules}, sizes, types, roots and reductions agree, and nothing uses a buffer before the wait"
