"""The records of a job as dumps of the flight recorder, one file for each rank, as ``hir hang`` reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterable, Iterator

from ._calls import Call, Group
from ._explain import shown_file
from ._matching import Matching, Post
from ._supervise import State


def write_dumps(matching: Matching, states: list[State], folder: Path) -> None:
    """Writes ``rank_N.json`` for each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, state in enumerate(states):
        frames = [shown_frame(it) for it in state.frames]
        entries = list(_entries(matching.posts.get(rank, []), frames))
        (folder / f"rank_{rank}.json").write_text(dump_of(state.groups.values(), entries))


def dump_of(groups: Iterable[Group], entries: list[dict[str, Any]]) -> str:
    """Returns the dump of a rank."""
    config = {it.name: {"name": it.name, "desc": it.description, "ranks": str(list(it.ranks))} for it in groups}
    return json.dumps({"version": "2.10", "pg_config": config, "entries": entries})


def shown_frame(frame: tuple[str, int, str]) -> dict[str, Any]:
    file, line, name = frame
    return {"filename": shown_file(file), "line": line, "name": name}


def _entries(posts: list[Post], frames: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    messages: dict[str, int] = {}
    operations: dict[str, int] = {}
    number = 0
    for at, post in enumerate(posts):
        call = post.call
        group = call.group.name
        in_batch = call.batch is not None
        is_first = not in_batch or at == 0 or posts[at - 1].call.batch != call.batch
        # The calls of a batch share a number.
        messages[group] = messages.get(group, 0) + (call.is_message and is_first)
        operations[group] = operations.get(group, 0) + 1
        record = record_of(post, number, messages[group], operations[group], [frames[it] for it in call.frames])
        yield record
        number += 1
        if in_batch and (at + 1 == len(posts) or posts[at + 1].call.batch != call.batch):
            is_complete = post.entry.is_whole and all(it.completed for it in post.entry.posts)
            yield end_of_batch(record, call, number, is_complete)
            number += 1


def end_of_batch(record: dict[str, Any], call: Call, number: int, is_complete: bool) -> dict[str, Any]:
    """Returns the record of a whole batch, behind that of its last call."""
    end = {"profiling_name": f"{call.group.backend}:coalesced", "input_sizes": [], "input_dtypes": [], "output_sizes": [], "output_dtypes": []}
    state = "completed" if is_complete else "scheduled"
    return {**record, **end, "record_id": number, "state": state, "retired": is_complete or call.group.is_nccl}


def record_of(post: Post, number: int, message: int, operation: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the record of a call."""
    call = post.call
    return {
        "record_id": number,
        "process_group": [call.group.name, call.group.description],
        "collective_seq_id": post.ordinal,
        "p2p_seq_id": message,
        "op_id": operation,
        "profiling_name": f"{call.group.backend}:{call.name}",
        "time_created_ns": call.time,
        "time_discovered_completed_ns": post.completed or None,
        "input_sizes": call.inputs,
        "input_dtypes": call.input_types,
        "output_sizes": call.outputs,
        "output_dtypes": call.output_types,
        "state": "completed" if post.completed else "scheduled",
        "is_p2p": call.is_message,
        # What can no longer proceed has been given up. The records of gloo have this mark when a call has completed.
        "retired": bool(post.completed) or call.group.is_nccl,
        "frames": frames,
    }
