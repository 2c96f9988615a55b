"""Which calls of ranks meet, in the order that the backend gives them.

NCCL executes the calls of a group one after the other, and a batch as one call: a call starts on a rank when those before it have completed
there. Where two ranks have a communicator of their own, so do the messages outside of batches. With gloo, each call is independent of
others. A call completes when all that belong to it have started, and fit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from time import time_ns
from typing import Any, Hashable, Iterator

from ._calls import RECEIVE, SEND, Call, differing, unfit


@dataclass
class Entry:
    """What a queue of a rank starts at once: a call, or a batch."""

    posts: list[Post] = field(default_factory=list)
    #: Whether the batch has ended.
    is_whole: bool = True
    #: The queue; None if calls are independent.
    queue: deque[Entry] | None = None

    def is_started(self) -> bool:
        return self.is_whole and (self.queue is None or self.queue[0] is self)


@dataclass
class Post:
    """A call of a rank and what became of it."""

    rank: int
    call: Call
    entry: Entry
    #: Its number among the collectives of the group on this rank, from 1; for messages, the last one.
    ordinal: int
    slot: Slot | None = None
    #: When it completed: nanoseconds since 1970; 0 if it has not.
    completed: int = 0


@dataclass
class Slot:
    """A communication: the posts that belong to it, by rank in the group; of a message, the send and the receive."""

    number: int
    size: int
    posts: dict[int, Post] = field(default_factory=dict)
    #: What does not fit.
    unfit: str | None = None

    def ordered(self) -> list[Post]:
        return [self.posts[it] for it in sorted(self.posts)]


class Matching:
    """Matches the calls of all ranks while they come."""

    def __init__(self) -> None:
        self.posts: dict[int, list[Post]] = {}
        #: The communications whose calls do not fit.
        self.unfit: list[Slot] = []
        #: Two collectives of NCCL that ranks have pending together, by the first on a rank: that and the second. A GPU may run one at a time.
        self.orders: dict[tuple[int, int], dict[int, tuple[Post, Post]]] = {}
        self._pending: dict[int, dict[int, Post]] = {}
        self._by_number: dict[tuple[int, int], Post] = {}
        self._queues: dict[Hashable, deque[Entry]] = {}
        self._batches: dict[tuple[int, int], Entry] = {}
        self._counts: dict[Hashable, int] = {}
        self._collectives: dict[Hashable, Slot] = {}
        #: Sends and receives without the other side, and receives from any rank.
        self._ends: dict[Hashable, deque[Post]] = {}
        self._slots = 0
        #: The slots that completed since they were last taken.
        self._completed: list[Slot] = []

    def post_of(self, rank: int, number: int) -> Post | None:
        return self._by_number.get((rank, number))

    def open_posts(self, rank: int) -> Iterator[Post]:
        return (it for it in self.posts.get(rank, ()) if not it.completed)

    def add(self, rank: int, call: Call) -> list[Slot]:
        """Adds a call, and returns the communications that complete."""
        group = call.group.key
        count = self._counts.get((rank, group), 0) + (not call.is_message)
        self._counts[rank, group] = count
        entry = self._entry(rank, call)
        post = Post(rank, call, entry, count)
        entry.posts.append(post)
        self.posts.setdefault(rank, []).append(post)
        self._by_number[rank, call.number] = post
        if call.is_message:
            self._add_message(post)
        else:
            slot = self._collectives.get((group, count))
            if slot is None:
                slot = self._collectives[group, count] = self._new_slot(len(call.group.ranks))
            post.slot = slot
            slot.posts[call.group.ranks.index(rank)] = post
            first = slot.ordered()[0]
            found = differing(first.call, call)
            if len(slot.posts) == slot.size:
                del self._collectives[group, count]
                found = found or unfit([it.call for it in slot.ordered()])
            self._set_unfit(slot, found)
            if call.group.is_nccl:
                self._note_order(post, slot)
            self._try(slot)
        return self._take()

    def _note_order(self, post: Post, slot: Slot) -> None:
        pending = self._pending.setdefault(post.rank, {})
        for number, other in pending.items():
            if other.call.group.key != post.call.group.key:
                pair = min(number, slot.number), max(number, slot.number)
                self.orders.setdefault(pair, {}).setdefault(number, (other, post))
        pending[slot.number] = post

    def end_wait(self, rank: int, slot: int) -> None:
        """Notes that a rank has waited for a communication."""
        self._pending.get(rank, {}).pop(slot, None)

    def end_batch(self, rank: int, batch: int) -> list[Slot]:
        """Starts a batch, and returns the communications that complete."""
        entry = self._batches.pop((rank, batch), None)
        if entry is not None:
            entry.is_whole = True
            self._start(entry)
        return self._take()

    def _take(self) -> list[Slot]:
        completed, self._completed = self._completed, []
        return completed

    def _new_slot(self, size: int) -> Slot:
        self._slots += 1
        return Slot(self._slots, size)

    def _entry(self, rank: int, call: Call) -> Entry:
        if call.batch is not None and (rank, call.batch) in self._batches:
            return self._batches[rank, call.batch]
        entry = Entry()
        if call.group.is_nccl:
            own = call.group.ranks.index(rank)
            is_single = call.is_message and call.batch is None and call.group.has_pairs
            ends = (min(own, call.peer or 0), max(own, call.peer or 0)) if is_single else None
            entry.queue = self._queues.setdefault((rank, call.group.key, ends), deque())
            entry.queue.append(entry)
        if call.batch is not None:
            entry.is_whole = False
            self._batches[rank, call.batch] = entry
        return entry

    def _add_message(self, post: Post) -> None:
        call = post.call
        group, own = call.group.key, call.group.ranks.index(post.rank)
        tag = 0 if call.group.is_nccl else call.tag
        ends = self._ends
        if call.kind == SEND:
            places: list[Hashable] = [(group, RECEIVE, own, call.peer, tag), (group, RECEIVE, None, call.peer, tag)]
            mine: Hashable = (group, SEND, own, call.peer, tag)
        elif call.peer is not None:
            places = [(group, SEND, call.peer, own, tag)]
            mine = (group, RECEIVE, call.peer, own, tag)
        else:
            places = [(group, SEND, it, own, tag) for it in range(len(call.group.ranks))]
            mine = (group, RECEIVE, None, own, tag)
        other = next((ends[it].popleft() for it in places if ends.get(it)), None)
        if other is None:
            ends.setdefault(mine, deque()).append(post)
            return
        slot = self._new_slot(2)
        send, receive = (post, other) if call.kind == SEND else (other, post)
        slot.posts = {0: send, 1: receive}
        send.slot = receive.slot = slot
        self._set_unfit(slot, unfit([send.call, receive.call]))
        self._try(slot)

    def _set_unfit(self, slot: Slot, found: str | None) -> None:
        if found and slot.unfit is None:
            slot.unfit = found
            self.unfit.append(slot)

    def _start(self, entry: Entry) -> None:
        if entry.is_started():
            for post in list(entry.posts):
                if post.slot is not None:
                    self._try(post.slot)

    def _try(self, slot: Slot) -> None:
        posts = slot.posts.values()
        if slot.unfit or len(posts) < slot.size or any(it.completed or not it.entry.is_started() for it in posts):
            return
        now = time_ns()
        for post in posts:
            post.completed = now
        self._completed.append(slot)
        for post in posts:
            entry = post.entry
            if entry.queue and all(it.completed for it in entry.posts) and entry.queue[0] is entry:
                entry.queue.popleft()
                if entry.queue:
                    self._start(entry.queue[0])


def parts_of(slot: Slot) -> list[tuple[int, int, Any]]:
    """Returns where the pieces of each member are: its rank, the offset in its memory, and the pieces."""
    return [(it.rank, it.call.offset, it.call.pieces) for it in slot.ordered()]
