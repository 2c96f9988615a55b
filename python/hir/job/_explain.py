"""Why ranks do not proceed, where the dumps of the flight recorder do not hold it: roots, reductions, ranks that have ended, queues of a group."""

from __future__ import annotations

import functools
import os
from typing import Iterable, Iterator

from ._calls import SEND, value_of
from ._matching import Post, Slot
from ._stacks import is_of_script
from ._supervise import Outcome, State


def numbers(ranks: Iterable[int], verb: str = "") -> str:
    """Writes ranks, with a verb: ``rank 2 waits``, ``ranks 0, 1 and 3 wait``."""
    texts = [str(it) for it in sorted(set(ranks))]
    if len(texts) == 1:
        return f"rank {texts[0]}{' ' if verb else ''}{verb}{('es' if verb.endswith('s') else 's') if verb else ''}"
    many = f"{len(texts)} ranks" if len(texts) > 8 else f"ranks {', '.join(texts[:-1])} and {texts[-1]}"
    return f"{many}{' ' if verb else ''}{verb}"


@functools.cache
def shown_file(file: str) -> str:
    """Returns a file as seen from the current folder, if it is below."""
    relative = os.path.relpath(file) if file else "?"
    return file if relative.startswith("..") else relative


def shown(place: str) -> str:
    file, _, line = place.rpartition(":")
    return f"{shown_file(file)}:{line}"


def place(outcome: Outcome, post: Post) -> str:
    """Returns the line of the script that makes a call."""
    frames = outcome.states[post.rank].frames
    return next((shown(f"{frames[it][0]}:{frames[it][1]}") for it in post.call.frames if is_of_script(frames[it][0])), "?")


def name(outcome: Outcome, post: Post) -> str:
    """Returns the function of PyTorch that the script calls, with the peer of a message."""
    found = post.call.name.lstrip("_").partition(" ")[0]
    for number in post.call.frames:
        file, _, function = outcome.states[post.rank].frames[number]
        if is_of_script(file):
            break
        if file.endswith("torch/distributed/distributed_c10d.py") and function != "wrapper" and not function.startswith("_"):
            found = function
    if not post.call.is_message:
        return found
    peer = "any rank" if post.call.peer is None else f"rank {post.call.group.ranks[post.call.peer]}"
    return f"{found} {'to' if post.call.kind == SEND else 'from'} {peer}"


def at(outcome: Outcome, post: Post) -> str:
    return f"{name(outcome, post)} ({place(outcome, post)})"


def waiting(outcome: Outcome) -> list[Post]:
    """Returns the calls in which ranks wait, the oldest first."""
    found = []
    for rank, state in enumerate(outcome.states):
        post = outcome.matching.post_of(rank, state.waits) if state.waits is not None else next(outcome.matching.open_posts(rank), None)
        found += [post] if post is not None else []
    return sorted(found, key=lambda it: it.call.time)


def stacks(outcome: Outcome) -> Iterator[str]:
    """Says which lines of the script lead to the calls in which ranks wait, where there are several, once for all ranks of equal lines."""
    ranks: dict[tuple[str, ...], list[int]] = {}
    for post in waiting(outcome):
        frames = [outcome.states[post.rank].frames[it] for it in post.call.frames]
        lines = [f"{function} ({shown(f'{file}:{line}')})" for file, line, function in frames if is_of_script(file)]
        if len(lines) > 1:
            ranks.setdefault(tuple(lines), []).append(post.rank)
    for texts, found in ranks.items():
        yield f"{numbers(found)}: {', called from '.join(texts)}"


def _absent(post: Post) -> list[int]:
    """Returns the ranks that have not made their side of a call."""
    group, slot = post.call.group, post.slot
    if slot is None:
        return [] if post.call.peer is None else [group.ranks[post.call.peer]]
    return [] if post.call.is_message else [it for own, it in enumerate(group.ranks) if own not in slot.posts]


def unfit_text(outcome: Outcome, slot: Slot) -> str:
    """Says what members of one communication pass differently, the fewest first."""
    by_value: dict[str, list[Post]] = {}
    for post in slot.ordered():
        by_value.setdefault(value_of(post.call, slot.unfit or ""), []).append(post)
    sides = []
    for value, posts in sorted(by_value.items(), key=lambda it: len(it[1])):
        places = sorted({place(outcome, it) for it in posts})
        sides.append(f"{numbers([it.rank for it in posts], 'pass')} {value} ({' and '.join(places[:3])})")
    return f"the {slot.unfit} of one {name(outcome, slot.ordered()[0])} differs: {', '.join(sides)}"


def other_group_text(outcome: Outcome) -> str | None:
    """Says which ranks wait in groups of the same members that they have made under different names."""
    by_members: dict[tuple[int, ...], dict[str, list[Post]]] = {}
    for post in waiting(outcome):
        key = post.call.group.key
        if any(key not in outcome.states[it].groups for it in _absent(post)):
            by_members.setdefault(post.call.group.ranks, {}).setdefault(post.call.group.name, []).append(post)
    for names in by_members.values():
        if len(names) > 1:
            sides = [
                f"group {name} of {numbers([it.rank for it in posts])}, in {at(outcome, posts[0])}"
                for name, posts in sorted(names.items(), key=lambda it: len(it[1]))
            ]
            return f"ranks have made different groups before, so that these do not meet: {'; '.join(sides[:2])}"
    return None


def subset_text(outcome: Outcome) -> str | None:
    """Says which ranks did not call ``new_group`` where others did: they have ended well, or have made another group next."""
    is_over = not outcome.stopped and not any(it.code for it in outcome.states)
    for number in range(max(len(it.asked) for it in outcome.states)):
        calls: dict[tuple[int, ...], list[int]] = {}
        for rank, state in enumerate(outcome.states):
            if number < len(state.asked):
                calls.setdefault(state.asked[number][0], []).append(rank)
        members, ranks = max(calls.items(), key=lambda it: len(it[1]))
        absent = [it for it in range(len(outcome.states)) if it not in ranks and (is_over or number < len(outcome.states[it].asked))]
        if absent:
            call = f"new_group ({shown(outcome.states[ranks[0]].asked[number][1])}) for {numbers(members)}"
            return f"{numbers(absent)} did not call {call}: all ranks have to, unless it has use_local_synchronization=True"
    return None


def tags_text(outcome: Outcome) -> str | None:
    """Says which send and receive, in which two ranks wait, have different tags."""
    messages = [it for it in waiting(outcome) if it.call.is_message and it.slot is None and not it.call.group.is_nccl]
    for one in messages:
        for other in messages:
            ends = one.call.group.ranks.index(one.rank), one.call.group.ranks.index(other.rank) if other.rank in one.call.group.ranks else None
            if one.call.kind == SEND != other.call.kind and one.call.peer == ends[1] and other.call.peer in (ends[0], None):
                tags = f"tag {one.call.tag} of the {at(outcome, one)} is not tag {other.call.tag} of the {at(outcome, other)}"
                return f"ranks {one.rank} and {other.rank} wait for each other: {tags}"
    return None


def ended_text(outcome: Outcome) -> str | None:
    """Says which ranks have ended without a call in which others wait."""
    for post in waiting(outcome):
        ended = [it for it in _absent(post) if outcome.states[it].code is not None]
        if ended:
            others = [it.rank for it in (post.slot.ordered() if post.slot else [post])]
            return f"{numbers(ended, 'end')} without the {at(outcome, post).removesuffix(f' to rank {ended[0]}')} in which {numbers(others, 'wait')}"
    return None


def cycle_text(outcome: Outcome) -> str | None:
    """Says which ranks wait for each other, each in the first call of its queue."""
    edges: dict[int, tuple[Post, int]] = {}
    for post in waiting(outcome):
        # What is at the head of the queue is what the rank waits in.
        head = next(it for it in post.entry.queue[0].posts if not it.completed) if post.entry.queue else post
        late = [it.rank for it in (head.slot.ordered() if head.slot else ()) if not it.entry.is_started()]
        others = late + _absent(head)
        if others:
            edges[post.rank] = (head, others[0])
    for rank in edges:
        path: list[int] = []
        while rank in edges and rank not in path:
            path.append(rank)
            rank = edges[rank][1]
        if rank in path:
            cycle = sorted(path[path.index(rank) :])
            if len(cycle) == 1:
                return f"rank {rank} waits for itself in {at(outcome, edges[rank][0])}"
            texts = [f"rank {it} in {at(outcome, edges[it][0])}" for it in cycle]
            return f"{numbers(cycle)} wait for each other: {', '.join(texts[:4])}{', …' if len(texts) > 4 else ''}"
    return None


def crossed_text(outcome: Outcome) -> str | None:
    """Says which ranks have two collectives of NCCL pending in different orders."""
    for orders in outcome.matching.orders.values():
        if len(orders) == 2:
            texts = [
                f"rank {first.rank} {at(outcome, first)} of group {first.call.group.name} before {at(outcome, second)} of group {second.call.group.name}"
                for first, second in orders.values()
            ]
            return f"ranks start collectives of two groups in different orders, which can hang with NCCL: {', '.join(texts)}"
    return None


def failure_text(failed: list[tuple[int, State]]) -> str:
    """Says which ranks have failed, and the first error."""
    error = first_line(failed[0][1].error)
    return f"{numbers([rank for rank, it in failed if first_line(it.error) == error])} failed: {error}"


def stop_text(outcome: Outcome) -> str:
    """Says where the ranks of a job are that was stopped."""
    posts = waiting(outcome)
    how = f"no call for {outcome.timeout:g} s" if outcome.stopped == "timeout" else "no rank can proceed"
    first = f": {numbers([it.rank for it in posts], 'wait')}, first in {at(outcome, posts[0])}" if posts else ""
    elsewhere = [f"; rank {rank} is at {shown(it.place)}" for rank, it in enumerate(outcome.states) if it.waits is None and it.code is None and it.place]
    return how + first + "".join(elsewhere[:3])


def first_line(text: str) -> str:
    return text.partition("\n")[0]
