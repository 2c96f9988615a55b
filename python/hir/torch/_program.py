"""A captured program: the Host IR program, and its inputs and outputs as those of the ranks."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from .._diagnostic import HirError, Report
from .._program import Program, read
from . import _as_pytorch
from ._builder import Value
from ._explain import explanation
from ._graph import Graph, TorchImportError
from ._import import Imported, import_graphs
from .operators import PARTS


class TorchProgram:
    """A PyTorch program of several ranks, as a Host IR program.

    ``program`` is a ``hir.Program``. Its tensors have a device axis for each dimension of the mesh, so that one tensor has the
    local tensors of all ranks. The ends of its lines name the lines of the Python program.
    """

    def __init__(self, imported: Imported, as_pytorch: tuple[str, dict[int, str]] | None = None) -> None:
        self._imported = imported
        #: The text, with the lines of the Python program as comments.
        self.text = imported.text
        #: Calls of operators that hir does not know. They are checked, but do not run.
        self.opaque = imported.opaque
        #: Those of which hir does not know whether they communicate: the check takes them as computations.
        self.not_checked = imported.unknown
        #: The inputs of each rank in the example that was captured, if all are known in this process.
        self.example: Sequence[Sequence[Any]] | None = None
        #: The program after passes, by their names.
        self._lowered: dict[str, Program] = {}
        #: The program as PyTorch runs it, for the check, if that may have other faults: its text, and the lines of the Python program.
        self.as_pytorch = as_pytorch
        try:
            self.program: Program = read(imported.text)
        except HirError as error:
            raise self._explained(error) from None

    @property
    def ranks(self) -> int:
        return self._imported.world

    def runs_as_checked(self, passes: str) -> bool:
        """Whether hir's order of transfers, which have one communicator, has no fault. PyTorch may have one for each pair of ranks."""
        return self._imported.p2p != "pair" or not self.check(passes, model="hir", p2p="communicator").faults

    @property
    def note(self) -> str | None:
        """Why the ranks have statements of their own, if they have."""
        return self._imported.note

    def __repr__(self) -> str:
        return f"<hir.torch.TorchProgram {self._imported.name}: {self.ranks} ranks, {len(self._imported.places)} statements>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the text to a file, which ``hir-run``, ``hir-opt`` and ``hir reduce`` take."""
        Path(path).write_text(self.text, encoding="utf-8")

    def place(self, line: int) -> str | None:
        """The line of the Python program from which a line of the text comes."""
        return self._imported.places.get(line)

    def check(self, passes: str = "@lower", **options: Any) -> Report:
        """Lowers the program with passes and looks for races, deadlocks and unwritten elements, as ``Program.check``.

        The report names the lines of the Python program behind those of the text.
        """
        program = self.lowered(passes)
        options.setdefault("p2p", self._imported.p2p)
        try:
            report = program.check(**options)
        except HirError as error:
            raise self._explained(error) from None
        looks_at_races = "race" in options.get("checks", "race") and options.get("model") != "hir"
        if not report.faults and looks_at_races and self.as_pytorch is not None:
            text, places = self.as_pytorch
            of_pytorch = read(text).check("race", p2p=options["p2p"])
            if of_pytorch.faults:
                return _ReportWithPlaces(of_pytorch, partial(_with_places, places), self.not_checked)
        return _ReportWithPlaces(report, self._with_places, self.not_checked)

    def lowered(self, passes: str = "@lower") -> Program:
        """Returns the program after passes. ``@overlap`` overlaps its communication with its matmuls."""
        if passes not in self._lowered:
            try:
                self._lowered[passes] = self.program.run_passes(passes)
            except HirError as error:
                raise self._explained(error) from None
        return self._lowered[passes]

    def overlapping(self, passes: str) -> str:
        """The passes for this program: those that overlap need the same statements on all ranks, and choose the streams."""
        if self.note:
            return "@default"
        return "@lower" if self._imported.has_streams else passes

    def explain(self, passes: str = "@overlap", *, timeline: str | os.PathLike[str] | None = None) -> str:
        """Says how much communication is hidden behind computation after passes, and which line of the Python program waits.

        ``timeline`` writes a picture (``.svg``), a page (``.html``) or a trace for Perfetto (``.json``). Times are estimates for a
        nominal GPU.
        """
        program = self.lowered(self.overlapping(passes))
        if timeline is not None:
            program.timeline(timeline)
        return explanation(program.overlap(), self.place)

    @property
    def writes_inputs(self) -> bool:
        """Whether the program receives into an input."""
        return bool(self._imported.written)

    def run(self, inputs: Sequence[Sequence[Any]] | None = None, passes: str | None = None) -> list[list[Any]]:
        """Runs all ranks in this process, on the simulator.

        ``inputs`` has a list for each rank: the inputs of its graph, as arrays; an input that is no tensor may be None. Without
        it, they are those of the example. Returns the outputs of the graph of each rank. bfloat16 is float32 in both.
        """
        if self.opaque:
            raise TorchImportError("hir does not run operators that it does not know: " + "; ".join(self.opaque))
        inputs = self.example if inputs is None else inputs
        if inputs is None:
            raise ValueError("the program has no example in this process; pass the inputs of all ranks")
        if len(inputs) != self.ranks:
            raise ValueError(f"inputs of {len(inputs)} ranks for a program of {self.ranks} ranks")
        arrays = self._arrays(inputs)
        program = self.program if passes is None else self.lowered(passes)
        try:
            outputs = program.simulate(arrays)
        except HirError as error:
            raise self._explained(error) from None
        outputs = {**arrays, **outputs}
        return [[self._of_rank(it, outputs, rank) for it in self._imported.outputs[rank]] for rank in range(self.ranks)]

    def _arrays(self, inputs: Sequence[Sequence[Any]]) -> dict[str, np.ndarray]:
        """The inputs of the program from those of the ranks."""
        parts: dict[str, list[np.ndarray]] = {}
        values = {}
        for rank, (ports, given) in enumerate(zip(self._imported.inputs, inputs)):
            if len(given) != len(ports):
                raise ValueError(f"{len(given)} inputs of rank {rank}; its graph has {len(ports)}")
            for i, value in enumerate(ports):
                if isinstance(value, Value):
                    part = np.asarray(given[i])
                    if part.shape != value.shape:
                        raise ValueError(f"input {i} of rank {rank} has the shape {part.shape}, not {value.shape}")
                    parts.setdefault(value.name, []).append(_typed(part, value, f"input {i} of rank {rank}"))
                    values[value.name] = value
        mesh = self._imported.mesh
        shape = mesh.shape if mesh else ()
        return {name: _as_pairs(np.stack(it).reshape((*shape, *values[name].shape))) for name, it in parts.items()}

    def _of_rank(self, value: Any, outputs: dict[str, np.ndarray], rank: int) -> Any:
        if not isinstance(value, Value):
            return value
        mesh = self._imported.mesh
        coordinates = mesh.coordinates(rank) if mesh else ()
        # Without np.asarray, a tensor without dimensions would be a number.
        part = np.asarray(outputs[value.name][tuple(c if it else 0 for c, it in zip(coordinates, value.sharded))])
        if value.dtype in PARTS:
            return np.ascontiguousarray(part).view(value.dtype)[..., 0]
        return from_bits(part) if value.dtype == "bfloat16" else part

    def _explained(self, error: HirError) -> HirError:
        """The error with the lines of the Python program."""
        error.args = (self._with_places(str(error)),)
        return error

    def _with_places(self, text: str) -> str:
        return _with_places(self._imported.places, text)


def _with_places(places: Mapping[int, str], text: str) -> str:
    """A text with the lines of the Python program behind those of the program."""

    def place(found: re.Match[str]) -> str:
        it = places.get(int(found[1] or found[2]))
        return f"{found[0]} ({it})" if it else found[0]

    return re.sub(r"\bline (\d+)|<text>:(\d+)(?::\d+)?", place, text)


class _ReportWithPlaces(Report):
    """A report whose text names lines of the Python program."""

    def __init__(self, report: Report, change: Callable[[str], str], not_checked: Sequence[str]) -> None:
        super().__init__(change(report._text), report._lines, [*(change(it) for it in report.not_checked), *not_checked])


def from_graphs(graphs: Sequence[Graph], *, each_rank: bool = False) -> TorchProgram:
    """Imports the graphs of all ranks.

    If all ranks execute the same statements, their local tensors become tensors with device axes, and collectives become
    reshardings, which passes overlap. Otherwise, or with ``each_rank``, each rank gets its own statements and posts its own
    communications.
    """
    if not graphs:
        raise ValueError("no graphs; pass one for each rank")
    imported = import_graphs(graphs, each_rank=each_rank)
    ordered = sorted(graphs, key=lambda it: it.rank)
    try:
        return TorchProgram(imported, _as_pytorch.program(ordered) if _as_pytorch.differs(ordered) else None)
    except TorchImportError as error:
        reason = f"streams and memory as PyTorch runs it: {error}"
        return TorchProgram(replace(imported, unknown=(*imported.unknown, reason)))


def _typed(array: np.ndarray, value: Value, name: str) -> np.ndarray:
    """An input in the type of the graph. Floats may be rounded; other numbers have to stay as they are."""
    if value.dtype == "bfloat16":
        are_bits = array.dtype.name in ("bfloat16", "uint16")
        return to_bits(array if are_bits else _converted(array, "float32", name))
    return _converted(array, value.dtype, name)


def _converted(array: np.ndarray, dtype: str, name: str) -> np.ndarray:
    if array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        typed = array.astype(dtype)
        are_floats = array.dtype.kind == typed.dtype.kind and array.dtype.kind in "fc"
        changed = np.isfinite(typed) != np.isfinite(array) if are_floats else typed.astype(array.dtype) != array
    if array.dtype.kind not in "biufc" or np.any(changed):
        raise ValueError(f"{name} has elements of {array.dtype} that {dtype} does not have")
    return typed


def _as_pairs(array: np.ndarray) -> np.ndarray:
    """Complex numbers as programs have them: with a last dimension of both parts."""
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array


def to_bits(array: np.ndarray) -> np.ndarray:
    """Rounds floats to bfloat16, to nearest even, as 16 bits each."""
    if array.dtype.itemsize == 2:
        return array.view(np.uint16)
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return np.where(np.isnan(array), (bits | 0x400000) >> 16, rounded >> 16).astype(np.uint16).reshape(array.shape)


def from_bits(array: np.ndarray) -> np.ndarray:
    """bfloat16 as float32."""
    # A shift of an array without axes is a number.
    return np.asarray(array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
