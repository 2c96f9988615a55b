"""Options of the backend, and why PyTorch runs a graph instead of hir."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Sequence

import numpy as np

from .._diagnostic import HirError
from ._capture import TIMEOUT
from ._fallback import Backend
from ._graph import Graph, TensorType, TorchFaultError, TorchImportError
from ._pairing import leave
from ._program import TorchProgram, from_graphs

#: Tensors of more elements than this are left to PyTorch, because the simulator takes long for them.
MOST_ELEMENTS = 1 << 22


def default_passes(ranks: int) -> str:
    """What overlaps the communication of so many ranks best.

    Of two ranks, the last transfer of a loop is half of all; with loops of their own for reduce-scatters, a product hides it.
    """
    return "@overlap{overlap.share=false,assign-streams.count=auto}" if ranks == 2 else "@overlap"


@dataclass(frozen=True)
class Options:
    """``torch.compile(model, backend="hir", options={…})``."""

    #: Passes that run before the check and the run; None: those of `default_passes`.
    passes: str | None = None
    #: Whether to look for races, deadlocks and unwritten elements before the first run.
    check: bool = True
    #: ``hir``: hir computes, on the GPU or by the simulator, or raises an error; ``torch``: PyTorch does, after the check; ``auto``: hir, but on
    #: the CPU only for small tensors.
    run: str = "auto"
    #: Whether runs on a GPU become CUDA graphs when the addresses of their tensors repeat.
    graph: bool = True
    #: How long a rank waits for the others, in seconds.
    timeout: float = TIMEOUT
    #: The backend of `torch.compile` for what hir does not run.
    fallback: Backend = "inductor"


def passes_of(options: Options, ranks: int) -> str:
    return default_passes(ranks) if options.passes is None else options.passes


def imported(graphs: Sequence[Graph], members: Sequence[int], options: Options) -> TorchProgram | str:
    """The program of the ranks, checked, or why hir cannot import it. ``members`` are the ranks in the job."""
    try:
        program = from_graphs(graphs)
        if options.check:
            report = program.check(program.overlapping(passes_of(options, len(graphs))))
            _warn_once(program.not_checked)
            if report.faults or len(report.not_checked) > len(program.not_checked):
                report.raise_if_found()
        return program
    except (TorchFaultError, HirError) as error:
        # A piece is compared with other pieces on other ranks, and what is between them is not seen.
        [*pieces] = [f"rank {it.rank}'s graph is one of several: {it.piece}" for it in graphs if it.piece]
        if not pieces:
            if members != tuple(range(len(members))):
                ranks = ", ".join(map(str, members))
                error.args = (f"{error}\n(the ranks of this report, from 0, are the ranks {ranks} of the job)",)
            raise
        leave("its calls are pieces that do not fit those of the other ranks")
        return f"the graphs of the ranks do not fit ({str(error).splitlines()[0]}), but {pieces[0]}"
    except TorchImportError as error:
        return f"hir cannot import it: {error}"


def why_not(program: TorchProgram, graphs: Sequence[Graph], options: Options, device: Any) -> str | None:
    """Why PyTorch runs the graphs, the same reason on all ranks. ``device`` is the GPU, if they work on one."""
    if options.run == "torch":
        return "the option `run` is `torch`"
    if program.opaque:
        return "hir does not know " + "; ".join(program.opaque)
    if program.writes_inputs:
        return "it receives into an input"
    if not program.runs_as_checked(program.overlapping(passes_of(options, len(graphs)))):
        return "hir has one communicator for sends and receives, with which they deadlock"
    types = [node.result for graph in graphs for node in graph.nodes if isinstance(node.result, TensorType)]
    largest = max((int(np.prod(it.shape)) for it in types), default=0)
    if options.run == "auto" and device is None and largest > MOST_ELEMENTS:
        return f"a tensor has {largest} elements, more than the {MOST_ELEMENTS} up to which hir simulates by itself"
    # The executor of GPUs has not been tried with all types.
    without = ("float8",) if device is None else ("float8", "complex", "uint16", "uint32")
    narrow = sorted({it.dtype for it in types if it.dtype.startswith(without)})
    if narrow:
        return f"hir does not run graphs of PyTorch with elements of {narrow[0]}"
    return None


def why_not_alone(graph: Graph, options: Options, device: Any) -> str | None:
    """Why PyTorch runs a graph of this rank alone, before it is split into a forward and a backward graph, which are checked."""
    program = imported([graph], (graph.rank,), replace(options, check=options.check and options.run == "torch"))
    return program if isinstance(program, str) else why_not(program, [graph], options, device)


#: What `_warn_once` has said.
_said: set[str] = set()


def _warn_once(messages: Sequence[str]) -> None:
    for it in messages:
        if it not in _said:
            _said.add(it)
            warnings.warn(f"not checked: {it}", stacklevel=2)
