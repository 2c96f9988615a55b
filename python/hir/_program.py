"""Programs: the documented classes over the compiled part."""

from __future__ import annotations

import html
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Mapping

import numpy as np

from . import _hir
from ._diagnostic import Diagnostic, Report, parse_diagnostics

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: A small program: an all-gather that is not lowered to a communication yet.
EXAMPLE = """\
%HostIrContainer { (T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1})) -> (T1_g_float[iS2{8}] (DeviceMesh{0 1})) :
  T1_g_float[iS2{8}] (DeviceMesh{0 1})
     = Set( T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1}), cache_op=Streaming )
} // %HostIrContainer

Domains:
  T0: logical(iS3{8}), outer_split(iS3{8}, 2) -> (ideviceIdx.x0{2}, iS1{4})
"""


@dataclass(frozen=True)
class Tensor:
    """An input or output of a program."""

    name: str
    #: As the canonical text prints it: name, memory, element type, axes and mesh.
    text: str


def read(
    source: str | os.PathLike[str],
    *,
    container: int | None = None,
    bindings: Mapping[str, int | str] | None = None,
    fusions: Iterable[str | os.PathLike[str]] = (),
) -> Program:
    """Reads a program from a file or a text.

    A ``str`` that is blank, or has a line break or ``%HostIrContainer``, is a text, every other one is the name of a file. ``container`` chooses
    one of several containers. ``bindings`` gives values to scalars that the text leaves open: ``{"i0": 8192}``. ``fusions`` are files with
    the fusions of its kernels, as ``--fusions``.

    Raises ``HirError`` if the text has errors, ``OSError`` if the file cannot be read.
    """
    if isinstance(source, str) and (not source.strip() or "\n" in source or "%HostIrContainer" in source):
        name, text = "<text>", source
    else:
        name = os.fspath(source)
        text = _text(name)
    files = [(os.fspath(file), _text(os.fspath(file))) for file in fusions]
    program, warnings = _hir.read(text, name, container, files)
    return Program(program, parse_diagnostics(warnings)).bind(**(bindings or {}))


def _text(name: str) -> str:
    return Path(name).read_text(encoding="utf-8", errors="replace")


class Program:
    """A program. It does not change: passes return a new one."""

    def __init__(self, program: _hir.Program, warnings: tuple[Diagnostic, ...] = ()) -> None:
        self._program = program
        self._worlds: dict[int, _hir.World] = {}
        #: What reading had to assume.
        self.warnings = warnings

    @property
    def text(self) -> str:
        """The canonical text; reading it gives the same program."""
        return self._program.text()

    @property
    def short(self) -> str:
        """The short text: each tensor is declared once, statements have names alone."""
        return self._program.short()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs, in the order of the header."""
        return tuple(Tensor(*it) for it in self._program.inputs())

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs, in the order of the header."""
        return tuple(Tensor(*it) for it in self._program.outputs())

    @property
    def ranks(self) -> int:
        """The smallest number of ranks that contains all meshes and teams."""
        return self._program.ranks()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(it.name for it in them) for them in (self.inputs, self.outputs))
        return f"<hir.Program: ({inputs}) -> ({outputs}), {self.ranks} ranks>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.short)}</pre>"

    def bind(self, **values: int | str) -> Program:
        """Returns the program with values of scalars, as ``--set`` gives them."""
        pairs = [(name, str(value)) for name, value in values.items()]
        return Program(self._program.bind(pairs), self.warnings)

    def run_passes(self, passes: str) -> Program:
        """Returns the program after passes, given as to ``hir-opt --passes``: ``"a,b{option=value},@pipeline"``."""
        return Program(self._program.run_passes(passes), self.warnings)

    def fix(self) -> tuple[Program, tuple[str, ...]]:
        """Returns the program with the edits that remove its races, and what each edit is, with its line in ``text``."""
        text, edits = self._program.fix()
        return read(text), tuple(edits)

    def check(
        self, checks: str = "race,comm,memory,excess", *, ranks: int | None = None, model: str = "nccl", p2p: str | None = None
    ) -> Report:
        """Looks for races, deadlocks and unwritten elements. A report without faults is a proof for this number of ranks.

        ``checks`` are those of ``hir-opt --check``; ``model`` is ``nccl`` (what CUDA, NCCL and PyTorch document) or ``hir``
        (also what hir's executors guarantee). ``p2p`` is ``communicator`` or ``pair``, as ``--p2p`` of ``hir-opt``.
        """
        return Report(*self._world(ranks).check(checks, model, p2p))

    def simulate(
        self, inputs: Mapping[str, ArrayLike] | None = None, *, ranks: int | None = None, seed: int = 0
    ) -> dict[str, np.ndarray]:
        """Runs all ranks in this process and returns the whole outputs by name.

        ``inputs`` are whole arrays: hir gives each rank its part. Inputs that are left out get small integers, on which sums
        are exact; ``seed`` chooses them. Elements must have the type of the tensor, complex ones of its pairs. Arrays of bfloat16 have the type
        ``ml_dtypes.bfloat16`` if that package is installed, else ``uint16``: the bits of each element. An output takes over
        the memory of the run without a copy.

        Raises ``HirError`` if the run fails: a deadlock, elements that nothing writes, ranks that disagree.
        """
        prepared = [(name, *_to_bits(array)) for name, array in (inputs or {}).items()]
        outputs = self._world(ranks).simulate(prepared, seed)
        return {name: _from_bits(*output) for name, output in outputs.items()}

    def plan(self, rank: int = 0, *, ranks: int | None = None) -> str:
        """Returns the plan of a rank: its instructions in the order of issue."""
        return self._world(ranks).plan(rank)

    def timeline(self, path: str | os.PathLike[str], *, ranks: int | None = None, machine: str | None = None) -> None:
        """Writes an estimated timeline: a picture (``.svg``), a page (``.html``) or a trace for Perfetto (``.json``)."""
        name = os.fspath(path)
        text = self._world(ranks).timeline(name, repr(self), machine)
        Path(name).write_text(text, encoding="utf-8")

    def overlap(self, *, ranks: int | None = None, machine: str | None = None) -> dict[str, Any]:
        """Returns how much communication is hidden behind computation: ``total``, ``ranks`` (``communication``, ``hidden``,
        ``exposed``) and ``waits`` (``line``, ``count``, ``time``, ``reason``), in microseconds, and ``source``: how the times were found."""
        overlap: dict[str, Any] = json.loads(self._world(ranks).overlap(machine))
        return overlap

    def gains(self, *, ranks: int | None = None, machine: str | None = None) -> list[dict[str, Any]]:
        """Returns what each communication costs, the largest gain first: ``line``, ``communication``, ``count``, ``time``, ``hidden``, ``exposed``;
        how long the program takes ``if_free`` and ``if_hidden``; and the best ``edit`` (``passes``, ``time``). Times are microseconds on
        ``machine``, as ``--machine``."""
        gains: list[dict[str, Any]] = json.loads(self._world(ranks).gains(machine))
        return gains

    def _world(self, ranks: int | None) -> _hir.World:
        count = self.ranks if ranks is None else ranks
        # Two threads may both plan; their plans are equal.
        if count not in self._worlds:
            self._worlds[count] = self._program.world(count)
        return self._worlds[count]


def _to_bits(array: ArrayLike) -> tuple[np.ndarray, str | None]:
    """Returns a contiguous array, and the float type if its elements are the bits of floats of 16 or 8 bits."""
    # np.ascontiguousarray would add an axis to an array without axes.
    array = np.asarray(array, order="C")
    # Arrays from files may have the other byte order.
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.kind == "c":
        # Programs have pairs of floats.
        array = array.view(np.real(array).dtype).reshape(*array.shape, 2)
    if array.dtype.name in ("float16", "bfloat16"):
        return array.view(np.uint16), array.dtype.name
    if array.dtype.name in ("float8_e4m3fn", "float8_e5m2"):
        return array.view(np.uint8), array.dtype.name
    return array, None


def _from_bits(array: np.ndarray, float_type: str | None) -> np.ndarray:
    if float_type == "float16":
        return array.view(np.float16)
    if float_type == "bfloat16":
        try:
            from ml_dtypes import bfloat16
        except ImportError:
            return array
        return array.view(bfloat16)
    return array
