"""Compares what the ranks have recorded with what one device has, tensor by tensor in the order of the latter."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Mapping, Sequence

import torch

from ._entry import Entry, Key, Record
from ._pattern import Values, pattern_of
from ._slices import Slice, Slices, error, take
from ._tolerance import Tolerance

#: Why a tensor is not compared: it may differ between ranks, or nothing tells which part of the whole it is.
NO_SLICE = "its shape is no slice of that on one device"
OWN = "ranks with inputs of their own have values of their own"


@dataclass(frozen=True)
class Difference:
    """A tensor that differs: ``kind`` and ``name`` say which, ``place`` is its line in the program, ``ranks`` are those that differ.

    ``pattern`` says what the first difference looks like: ``local mean``, ``partial``, ``unreduced``, ``twice``, ``divided``, ``factor``,
    ``factors``, ``drift``, ``crossed``, ``shard``, ``zero``, ``shape``, ``rows`` or ``unknown``; ``why`` is a sentence about it.
    """

    kind: str
    name: str
    title: str
    place: str
    ranks: tuple[int, ...]
    pattern: str
    why: str
    #: The largest difference of elements, and what is allowed.
    error: float
    tolerance: float
    #: The element with this difference: its rank, its indices in the whole, its value and that of one device.
    element: str


@dataclass
class Result:
    """The differences, the number of tensors that are compared, and why others are not."""

    differences: list[Difference]
    compared: int
    skipped: dict[str, list[Key]]


def judge(single: Record, ranks: Sequence[Record], tolerance: Tolerance, placements: Mapping[str, Any]) -> Result:
    return _Judge(single, ranks, tolerance, placements).run()


def changes(single: Record, disturbed: Record) -> dict[Key, float]:
    """Returns how much a disturbance changes each tensor."""
    other = {it.key: it.value for it in disturbed.entries}
    found = {}
    for it in single.entries:
        value = other.get(it.key)
        if it.value is not None and value is not None and it.value.shape == value.shape:
            found[it.key] = error(it.value.double(), value.double())
    return found


def terms_of(single: Record) -> int:
    """A bound of the number of terms of a sum: the number of elements of the largest tensor."""
    return max((it.value.numel() for it in single.entries if it.value is not None), default=1)


class _Judge:
    def __init__(self, single: Record, ranks: Sequence[Record], tolerance: Tolerance, placements: Mapping[str, Any]) -> None:
        self._single = single
        self._records = ranks
        self._tolerance = tolerance
        self._placements = placements
        self._slices = Slices(len(ranks))
        self._entries = [_joined(it, single) for it in ranks]
        calls = {place: len(it) for place, it in _by_step(single).items() if place[0] == "forward"}
        #: Whether a rank calls a module another number of times in a step than one device does.
        self._has_microbatches = any(len(it) != calls.get(place, len(it)) for record in ranks for place, it in _by_step(record).items())
        #: The slices of plain parameters, by name and rank.
        self._parameters: dict[tuple[str, int], Slice] = {}
        self._bases = {it.key.name: it.value for it in single.entries if it.key.kind == "parameter"}
        #: By rank, its share of the elements of the first input.
        self._shares: dict[int, float] = {}
        #: The elements of a parameter whose gradients rounding may change altogether.
        self._uncertain: dict[str, Any] = {}
        #: Whether ranks have inputs of their own.
        self._is_split = self._has_inputs = False
        self._result = Result([], 0, {})

    def run(self) -> Result:
        for entry in self._single.entries:
            key = entry.key
            found = {rank: entries[key] for rank, entries in enumerate(self._entries) if key in entries and self._has_all(rank, key)}
            if not found:
                self._skip("no rank has it", key)
                continue
            for rank, entries in enumerate(self._entries) if key.kind == "update" else ():
                own = entries.get(Key("parameter", key.name))
                if rank not in found and own is not None:
                    # The optimizer of the rank does not have it.
                    found[rank] = Entry(key, "", torch.zeros_like(own.value), own.layout)
            difference = self._compare(entry, found)
            if difference is not None:
                self._result.differences.append(difference)
        known = {it.key for it in self._single.entries}
        for entries in self._entries:
            for key in entries:
                if key not in known and key not in self._result.skipped.get("one device has none", []):
                    self._skip("one device has none", key)
        return self._result

    def _has_all(self, rank: int, key: Key) -> bool:
        """Whether a rank has all modules that are in the module of a key: a stage of a pipeline has not."""
        if key.kind not in ("forward", "input"):
            return True
        inner = f"{key.name}." if key.name else ""
        return all(it in self._records[rank].modules for it in self._single.modules if it.startswith(inner))

    def _skip(self, why: str, key: Key) -> None:
        self._result.skipped.setdefault(why, []).append(key)

    def _compare(self, entry: Entry, found: Mapping[int, Entry]) -> Difference | None:
        key = entry.key
        place = next((it.place for it in found.values() if it.place), entry.place)
        if entry.value is None:
            return None
        lost = tuple(rank for rank, it in found.items() if it.value is None)
        whole = entry.value.double()
        if any(not self._is_placed(rank, key.name) for rank in lost):
            self._skip(NO_SLICE, key)
            return None
        if lost:
            if not whole.any():
                return None
            why = "there is none: it is not computed, or lost"
            return Difference(key.kind, key.name, str(key), place, lost, "zero", why, error(whole, whole * 0), 0, "")
        for rank, it in found.items():
            if it.layout is not None and (it.layout.shape != tuple(whole.shape) or it.layout.unknown and "local shape" in it.layout.unknown):
                why = it.layout.unknown or f"as a DTensor ({it.layout.text}) it has the shape {it.layout.shape}, on one device {tuple(whole.shape)}"
                return Difference(key.kind, key.name, str(key), place, tuple(found), "shape", why, float("inf"), 0, "")
        unknown = next((it.layout.unknown for it in found.values() if it.layout is not None and it.layout.unknown), None)
        if unknown:
            self._skip(unknown, key)
            return None
        return self._compare_values(key, place, whole, found)

    def _is_placed(self, rank: int, name: str) -> bool:
        """Whether it is known which part of a parameter a rank has."""
        parameter = self._entries[rank].get(Key("parameter", name))
        return parameter is not None and (parameter.layout is not None or (name, rank) in self._parameters)

    def _compare_values(self, key: Key, place: str, whole: Any, found: Mapping[int, Entry]) -> Difference | None:
        actual = {}
        for rank, it in found.items():
            value = _reduced(it, found, self._placement_of(key))
            if value is None:
                self._skip("a rank of its partial placement has none", key)
                return None
            actual[rank] = value
        base = self._bases.get(key.name) if key.kind == "update" else None
        tolerance = self._tolerance.of(key, whole, float(base.double().abs().max()) if base is not None and base.numel() else 0.0)
        slices: dict[int, Slice] = {}
        shapes = {rank: tuple(value.shape) for rank, value in actual.items()}
        for rank, value in actual.items():
            at = self._slice_of(key, rank, found[rank], value, shapes, whole, tolerance)
            if at is None:
                self._skip(NO_SLICE, key)
                return None
            slices[rank] = at
        if key.kind == "gradient":
            uncertain = whole.abs() <= 2 * tolerance
            before = self._uncertain.get(key.name)
            self._uncertain[key.name] = uncertain if before is None else uncertain | before
        elif key.kind == "update" and key.name in self._uncertain:
            # Adam takes the sign of small gradients, which rounding may change.
            for rank, value in actual.items():
                actual[rank] = torch.where(take(self._uncertain[key.name], slices[rank]), take(whole, slices[rank]), value)
        errors = {rank: error(value, take(whole, slices[rank])) for rank, value in actual.items()}
        wrong = tuple(rank for rank, it in errors.items() if it > tolerance)
        if wrong and (any(it.is_joined for it in found.values()) or key.kind == "output" and self._has_microbatches):
            self._skip("it may be of other microbatches", key)
            return None
        is_plain = all(it.layout is None for it in found.values()) and not self._placement_of(key)
        if key.kind == "input":
            if not self._shares and whole.numel():
                self._shares = {rank: value.numel() / whole.numel() for rank, value in actual.items()}
            self._has_inputs = True
            self._is_split |= any(index is not None for at in slices.values() for index in at)
            rows = self._missing_rows(key, place, whole, slices) if not wrong else None
            if rows is not None:
                return rows
        if is_plain and key.kind == "forward" and not self._has_inputs and whole.dim():
            self._is_split |= any(at[0] is not None for at in slices.values())
        is_result = key.kind in ("forward", "output")
        if wrong and is_plain and self._is_split and is_result and all(value.shape == whole.shape for value in actual.values()):
            # Ranks with inputs of their own may have values of their own, such as a local loss.
            values = torch.stack(list(actual.values()))
            if min(error(values.mean(0), whole), error(values.sum(0), whole)) > len(values) * tolerance:
                self._skip(OWN, key)
                return None
            wrong = ()
        self._result.compared += 1
        local = {rank: it.value.double() for rank, it in found.items()}
        values = Values(whole, slices, actual, wrong, tolerance, len(self._records), local, self._shares)
        return self._difference(key, place, values, errors) if wrong else None

    def _placement_of(self, key: Key) -> Any:
        return next((it for pattern, it in self._placements.items() if fnmatchcase(key.name, pattern)), None)

    def _slice_of(self, key: Key, rank: int, entry: Entry, value: Any, shapes: Mapping[int, Any], whole: Any, tolerance: float) -> Slice | None:
        """Returns which part of the whole a rank should have, or None if that cannot be known."""
        if entry.layout is not None:
            parts = zip(entry.layout.offsets, value.shape, whole.shape)
            return tuple(None if size == all_ else torch.arange(begin, begin + size) for begin, size, all_ in parts)
        placement = self._placement_of(key)
        if placement is not None:
            return _slice_of_placement(placement, rank, len(self._records), whole.shape, value.shape)
        if key.kind in ("gradient", "update") and (key.name, rank) in self._parameters:
            known = self._parameters[key.name, rank]
            return known if tuple(take(whole, known).shape) == tuple(value.shape) else None
        at = self._slices.find(rank, shapes, whole, value, tolerance, is_noted=key.kind != "parameter")
        if key.kind == "parameter" and at is not None:
            self._parameters[key.name, rank] = at
        return at

    def _missing_rows(self, key: Key, place: str, whole: Any, slices: Mapping[int, Slice]) -> Difference | None:
        """Finds parts of an input that no rank has."""
        for dimension, size in enumerate(whole.shape):
            indices = [at[dimension] for at in slices.values()]
            if any(it is None for it in indices) or not indices:
                continue
            has = torch.zeros(size, dtype=torch.bool)
            has[torch.cat(indices)] = True
            seen = whole.index_select(dimension, has.nonzero()[:, 0]).movedim(dimension, 0)
            lost = [it for it in range(size) if not has[it] and not any(torch.equal(whole.select(dimension, it), other) for other in seen)]
            if lost:
                why = f"ranks share data: {len(lost)} of {size} parts of dimension {dimension} of the input are on no rank, first part {lost[0]}"
                return Difference(key.kind, key.name, str(key), place, tuple(slices), "rows", why, 0.0, 0.0, "")
        return None

    def _difference(self, key: Key, place: str, values: Values, errors: Mapping[int, float]) -> Difference:
        pattern, why = "unknown", "it follows from the first"
        if not self._result.differences:
            if key.kind == "gradient":
                values.gradients = self._gradients(key.number)
                values.own = values.gradients[key.name][1]
            elif key.kind == "forward":
                values.addends = {name: it.double() for name, it in self._bases.items() if name.rpartition(".")[0] == key.name}
            pattern, why = pattern_of(values)
            if key.kind == "input" and pattern == "unknown":
                why = "ranks have other data than one device"
            if key.kind == "parameter" and pattern in ("unknown", "drift"):
                why += "; build both models from one seed or one state"
        rank = max(values.wrong, key=lambda it: errors[it])
        actual, expected = values.actual[rank], values.expected(rank)
        flat = int((actual - expected).abs().nan_to_num(nan=float("inf")).argmax())
        position = torch.unravel_index(torch.tensor(flat), expected.shape)
        indices = [int(it if at is None else at[it]) for it, at in zip(position, values.slices[rank])]
        element = f"element {indices} on rank {rank}: {float(actual.flatten()[flat]):.6g}, on one device {float(expected.flatten()[flat]):.6g}"
        return Difference(key.kind, key.name, str(key), place, values.wrong, pattern, why, errors[rank], values.tolerance, element)

    def _gradients(self, step: int) -> dict[str, tuple[Any, dict[int, Any]]]:
        """Returns the gradients of one device in a step, each with what the data of each rank contribute."""
        found = {}
        for it in self._single.entries:
            if it.key.kind == "gradient" and it.key.number == step and it.value is not None:
                place = it.key.name, step
                found[it.key.name] = it.value.double(), {rank: one.own[place].double() for rank, one in enumerate(self._records) if place in one.own}
        return found


def _slice_of_placement(placement: Any, rank: int, ranks: int, whole: Sequence[int], shape: Sequence[int]) -> Slice | None:
    """The slice of a placement on a mesh of all ranks, in PyTorch's sizes: those of ``torch.chunk``."""
    if not placement.is_shard():
        return (None,) * len(whole)
    dimension = placement.dim % len(whole)
    chunks = torch.arange(whole[dimension]).chunk(ranks)
    indices = chunks[rank] if rank < len(chunks) else torch.arange(0)
    return tuple(indices if it == dimension else None for it in range(len(whole))) if len(indices) == shape[dimension] else None


def _reduced(entry: Entry, found: Mapping[int, Entry], placement: Any) -> Any:
    """The value of an entry: the reduction of all local tensors, if it is partial."""
    value = entry.value.double()
    partial = entry.layout.partial if entry.layout is not None else None
    if placement is not None and placement.is_partial():
        partial = placement.reduce_op, tuple(found)
    if partial is None:
        return value
    reduction, peers = partial
    if any(it not in found or found[it].value.shape != value.shape for it in peers):
        return None
    values = torch.stack([found[it].value.double() for it in peers])
    return {"sum": values.sum, "avg": values.mean, "max": values.amax, "min": values.amin}[reduction](0)


def _joined(record: Record, single: Record) -> dict[Key, Entry]:
    """Returns the entries by key. Where a rank calls a module k times as often in a step as one device, k of its calls are one: microbatches."""
    wanted, calls = _by_step(single), _by_step(record)
    found = {}
    for place, entries in calls.items():
        like = wanted.get(place, [])
        if place[0] not in ("forward", "input") or not like:
            found.update({it.key: it for it in entries})
        elif len(entries) % len(like) == 0:
            for number, other in enumerate(like):
                parts = entries[number :: len(like)]
                if len(parts) == 1:
                    found[other.key] = parts[0]
                elif all(it.layout is None and it.value.dim() and it.value.shape[1:] == parts[0].value.shape[1:] for it in parts):
                    value = torch.cat([it.value for it in parts])
                    found[other.key] = Entry(other.key, parts[0].place, value, step=parts[0].step, is_joined=True)
    return found


def _by_step(record: Record) -> dict[tuple[str, str, int, int], list[Entry]]:
    found: dict[tuple[str, str, int, int], list[Entry]] = {}
    for it in record.entries:
        found.setdefault((it.key.kind, it.key.name, it.key.index, it.step), []).append(it)
    return found
