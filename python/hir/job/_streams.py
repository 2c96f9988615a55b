"""What streams have done with memory, and which of it others follow: by events, or because the host has waited."""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

#: For each stream, the number of the last of its parts that is done.
Clock = dict[int, int]

Range = tuple[int, int]


class Access(NamedTuple):
    """The last use of a range by a stream: the part of the stream, the operator and its line."""

    part: int
    operator: str
    place: str


def range_of(tensor: Any) -> Range | None:
    """Returns the addresses of a tensor: from the first byte to behind the last."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or not tensor.numel():
        return None
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # It has no storage: a wrapper or a fake tensor.
        return None
    last = sum((size - 1) * abs(step) for size, step in zip(tensor.shape, tensor.stride()))
    return (start, start + (last + 1) * tensor.element_size()) if start else None


class Streams:
    """The streams of a GPU. An event divides what a stream does into parts."""

    def __init__(self) -> None:
        self._parts: Clock = {}
        self._follows: dict[int, Clock] = {}
        self._host: Clock = {}
        #: By storage, the last uses of ranges, and whether they write, by stream. While a reference lives, no other storage has the address.
        self._storages: dict[int, tuple[StorageWeakRef, dict[tuple[Range, bool], dict[int, Access]]]] = {}
        self._most = 1024

    def record(self, stream: int) -> Clock:
        """Ends a part of a stream, and returns what has been done where it ends."""
        part = self._parts.get(stream, 0)
        self._parts[stream] = part + 1
        return {**self._follows.get(stream, {}), stream: part}

    def follow(self, clock: Clock, stream: int | None = None) -> None:
        """Notes that a stream, or the host, runs on when this is done."""
        own = self._host if stream is None else self._follows.setdefault(stream, {})
        for it, part in clock.items():
            own[it] = max(part, own.get(it, -1))

    def note(self, stream: int, tensor: Any, writes: bool, operator: str, place: str) -> None:
        """Notes a use of a tensor."""
        found = range_of(tensor)
        if found is None:
            return
        storage = tensor.untyped_storage()
        uses = self._storages.setdefault(storage._cdata, (StorageWeakRef(storage), {}))[1]
        uses.setdefault((found, writes), {})[stream] = Access(self._parts.get(stream, 0), operator, place)
        if len(self._storages) > self._most:
            self._storages = {at: it for at, it in self._storages.items() if not it[0].expired()}
            self._most = 1024 + 2 * len(self._storages)

    def forget(self, tensor: Any) -> None:
        """Notes that a tensor has new memory."""
        if range_of(tensor):
            self._storages.pop(tensor.untyped_storage()._cdata, None)

    def not_followed(self, stream: int, tensor: Any, writes: bool) -> Iterator[Access]:
        """Returns the uses by other streams that a read, or a write, by a stream does not follow."""
        found = range_of(tensor)
        _, uses = self._storages.get(tensor.untyped_storage()._cdata, (None, {})) if found else (None, {})
        follows = self._follows.get(stream, {})
        for (it, is_write), accesses in uses.items():
            if found and (writes or is_write) and it[0] < found[1] and found[0] < it[1]:
                for other, access in accesses.items():
                    if other != stream and access.part > max(follows.get(other, -1), self._host.get(other, -1)):
                        yield access
