"""The backend of ``torch.compile``: ``torch.compile(model, backend="hir")``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from time import process_time
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from .._diagnostic import HirError
from ._capture import TIMEOUT, capture_transfers
from ._decomposed import decompositions
from ._fx import graph_of, loses_transfers, piece_of, to_numpy, with_contiguous_inputs
from ._gpu import GpuProgram, runs_with_others
from ._graph import TRANSFERS, Graph, Ref, TensorType, TorchFaultError, TorchImportError
from ._pairing import WAIT, Caller, Pairing, Together, among, job, leave, members_of
from ._program import TorchProgram, from_graphs

#: Tensors of more elements than this are left to PyTorch, because the simulator takes long for them.
MOST_ELEMENTS = 1 << 22
#: A graph whose simulation takes more time of the CPU than this is left to PyTorch from then on, in seconds.
SLOWEST = 0.05


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


def hir_backend(module: Any, inputs: Any, *, options: Mapping[str, Any] | None = None, **_: Any) -> Any:
    """Compiles a graph of Dynamo: captures forward and backward graphs, checks those of all ranks, and runs them."""
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    unknown = set(options or {}) - {it.name for it in fields(Options)}
    if unknown:
        raise ValueError(f"the backend hir has no option {', '.join(sorted(unknown))}")
    chosen = Options(**(options or {}))
    if chosen.run not in ("auto", "hir", "torch"):
        raise ValueError(f"the option `run` is `auto`, `hir` or `torch`, not `{chosen.run}`")

    piece = piece_of(module)
    job()  # Other ranks may wait for this one from now on.

    saved: dict[str, tuple[tuple[int, ...], bool]] = {}

    def compiler(direction: str) -> Any:
        return lambda module, inputs: make_boxed_func(_Compiled(module, direction, chosen, piece, saved).run)

    if loses_transfers(module, inputs):
        leave("it runs sends and receives of a model with gradients")
        warnings.warn(
            "PyTorch runs the graph, unchecked: it captures no sends and receives of models with gradients", stacklevel=2
        )
        return module.forward
    # Elsewhere, PyTorch runs the graph, which is faster as it is; the check takes what hir does not know as calls without code.
    simulates = chosen.run != "torch" and all(_device(it) == "cpu" for it in inputs)
    return aot_module_simplified(
        module,
        inputs,
        decompositions=decompositions() if simulates else None,
        # The backward graph computes again what takes less time than to save, as for torch.compile's default backend.
        partition_fn=min_cut_rematerialization_partition,
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
    )


# PyTorch imports this module when `torch.compile` is called, before it traces the model.
capture_transfers()


class _Compiled:
    """A compiled graph of this rank. Its first run makes the program of all ranks that communicate with each other in it."""

    def __init__(
        self, module: Any, direction: str, options: Options, piece: str | None, saved: dict[str, tuple[tuple[int, ...], bool]]
    ) -> None:
        """``saved`` is what the forward graph saves for the backward graph, by the names that both have for it (`GpuProgram.saved`)."""
        self._module, self._options, self._saved = module, options, saved
        self._device = _device_of(module)
        graph = replace(graph_of(module, direction), piece=piece)
        members = members_of(graph)
        if self._device is not None and len(members) > 1:
            # The executor of GPUs works with all ranks of the job.
            members = tuple(range(graph.world))
        self._members, self._graph = members, among(graph, members)
        self._passes = default_passes(len(members)) if options.passes is None else options.passes
        self._orders: list[tuple[int, ...] | None] = []
        self._placeholders = [node for node in self._graph.nodes if node.op == "placeholder"]
        #: Why PyTorch runs the graph from now on.
        self._reason = "the option `run` is `torch`" if options.run == "torch" and not options.check else None
        #: The programs that hir runs, by the names of the graphs that the ranks call together.
        self._programs: dict[tuple[str | None, ...], TorchProgram] = {}
        self._caller: Caller | None = None
        self._gpu: GpuProgram | None = None
        [self._output] = [node for node in module.graph.nodes if node.op == "output"]
        #: What the graph says about each output: a tensor of the expected type and strides.
        self._expected: list[Any] = [getattr(it, "meta", {}).get("val") for it in self._output.args[0]]
        #: The number of outputs that are not saved for the backward graph.
        self._returned = _metadata("num_forward", len(self._expected)) if direction == "forward" else len(self._expected)
        #: The numbers of the inputs that nobody needs once this graph has run.
        self._donated: Sequence[int] = _metadata("bw_donated_idxs", ()) if direction == "backward" else ()

    def run(self, *args: Any) -> Any:
        if self._gpu is None and self._reason is None:
            if self._device is not None:
                self._prepare_gpu()
            elif any(_device(it) != "cpu" for it in args):
                self._leave_to_pytorch("a tensor is neither on the CPU nor on a GPU")
        if self._gpu is not None:
            given = [it if order is None else it.permute(order) for it, order in zip(args, self._orders)]
            return self._gpu.run(given, self._expected)
        found = None if self._device is not None else self._program_of_call()
        if found is None:
            return self._module.forward(*args)
        program, pairing = found
        arrays = [to_numpy(it) for it in args]
        inputs = [arrays] if pairing is None else pairing.inputs(arrays, self._options.timeout)
        began = process_time()
        outputs = program.run(inputs, program.overlapping(self._passes))[self._graph.rank]
        took = process_time() - began
        if took > SLOWEST and self._options.run == "auto":
            limit = f"more than the {1000 * SLOWEST:g} ms up to which hir simulates by itself"
            self._leave_to_pytorch(f"its simulation takes {1000 * took:.0f} ms of the CPU, {limit}")
        return self._results(outputs, args)

    def _program_of_call(self) -> tuple[TorchProgram, Pairing | None] | None:
        """The program of this call, checked. None if PyTorch runs it."""
        if len(self._members) == 1:
            program = None if self._reason else self._checked((), lambda: [self._graph])
            return (program, None) if program else None
        this_job = job()
        if this_job is None or self._options.run == "torch" and not self._options.check:
            return None
        if self._reason is None and this_job.left and self._options.run == "hir":
            self._leave_to_pytorch(this_job.left)
        self._reason = self._reason or this_job.left
        self._caller = self._caller or Caller(self._graph, self._members)
        pairing = self._caller.call(this_job, self._reason is not None)
        if self._reason:
            return None
        together = pairing.together(self._options.timeout if self._device else min(self._options.timeout, WAIT))
        if isinstance(together, Together) and None not in together.names:
            program = self._checked(together.names, lambda: pairing.graphs(together))
            if together.leaves and program:
                # The other rank has said why.
                self._reason = "another rank runs it on PyTorch"
            return None if self._reason or program is None else (program, pairing)
        if isinstance(together, Together) and not any(node.target.startswith(TRANSFERS) for node in self._graph.nodes):
            self._imported(pairing.graphs(together))
        reason = together if isinstance(together, str) else "another rank has ended"
        leave(reason)
        if self._device and runs_with_others():
            raise TorchImportError(f"{reason}; it may wait for this rank on its GPU, in a graph that it has compiled before")
        self._leave_to_pytorch(f"{reason}; PyTorch also runs all later graphs with communication, and they are not checked")
        return None

    def _checked(self, names: tuple[str | None, ...], graphs_of: Callable[[], Sequence[Graph]]) -> TorchProgram | None:
        """The program of graphs that the ranks call together, which is imported and checked once. None if PyTorch runs it."""
        if names not in self._programs:
            graphs = graphs_of()
            program = self._imported(graphs)
            reason = program if isinstance(program, str) else self._why_not(program, graphs)
            if isinstance(program, str) or reason:
                self._leave_to_pytorch(str(reason))
                return None
            self._programs[names] = program
        return self._programs[names]

    def _leave_to_pytorch(self, reason: str) -> None:
        self._reason = reason
        if self._options.run == "hir":
            raise TorchImportError(f"hir does not run the {self._graph.name} graph: {reason}")
        if self._options.run != "torch":
            warnings.warn(f"PyTorch runs the {self._graph.name} graph: {reason}", stacklevel=2)

    def _prepare_gpu(self) -> None:
        """Loads the program of all ranks on the GPU of this one."""
        strides = {name: it for name, (it, _) in self._saved.items()}
        self._graph, self._orders = with_contiguous_inputs(self._graph, self._module, strides)
        found = self._program_of_call()
        if found is not None:
            self._gpu = self._on_gpu(found[0])
        if self._gpu is not None:
            saved = self._gpu.saved()
            self._saved.update((self._output.args[0][number].name, it) for number, it in saved.items())

    def _imported(self, graphs: Sequence[Graph]) -> TorchProgram | str:
        """The program of the ranks, checked, or why hir cannot import it."""
        try:
            program = from_graphs(graphs)
            if self._options.check:
                report = program.check(program.overlapping(self._passes))
                _warn_once(program.not_checked)
                if report.faults or len(report.not_checked) > len(program.not_checked):
                    report.raise_if_found()
            return program
        except (TorchFaultError, HirError) as error:
            # A piece is compared with other pieces on other ranks, and what is between them is not seen.
            [*pieces] = [f"rank {it.rank}'s graph is one of several: {it.piece}" for it in graphs if it.piece]
            if not pieces:
                if self._members != tuple(range(len(self._members))):
                    ranks = ", ".join(map(str, self._members))
                    error.args = (f"{error}\n(the ranks of this report, from 0, are the ranks {ranks} of the job)",)
                raise
            leave("its calls are pieces that do not fit those of the other ranks")
            return f"the graphs of the ranks do not fit ({str(error).splitlines()[0]}), but {pieces[0]}"
        except TorchImportError as error:
            return f"hir cannot import it: {error}"

    def _why_not(self, program: TorchProgram, graphs: Sequence[Graph]) -> str | None:
        """Why PyTorch runs the graphs, the same reason on all ranks."""
        if self._options.run == "torch":
            return "the option `run` is `torch`"
        if program.opaque:
            return "hir does not know " + "; ".join(program.opaque)
        if program.writes_inputs:
            return "it receives into an input"
        if not program.runs_as_checked(program.overlapping(self._passes)):
            return "hir has one communicator for sends and receives, with which they deadlock"
        types = [node.result for graph in graphs for node in graph.nodes if isinstance(node.result, TensorType)]
        largest = max((int(np.prod(it.shape)) for it in types), default=0)
        if self._options.run == "auto" and self._device is None and largest > MOST_ELEMENTS:
            return f"a tensor has {largest} elements, more than the {MOST_ELEMENTS} up to which hir simulates by itself"
        narrow = sorted({it.dtype for it in types if it.dtype.startswith("float8")})
        if narrow:
            return f"hir does not run graphs of PyTorch with elements of {narrow[0]}"
        if any(node.op == "placeholder" and isinstance(node.result, int) for graph in graphs for node in graph.nodes):
            return "it has symbolic sizes (`dynamic=False` avoids them)"
        return None

    def _on_gpu(self, program: TorchProgram) -> GpuProgram | None:
        """The program on the GPU of this rank. None, with a reason, if hir's executor cannot run it on some rank."""
        try:
            options = self._options
            return GpuProgram(
                program,
                program.overlapping(self._passes),
                self._graph.rank,
                self._device,
                returned=self._returned,
                donated=[number for number in self._donated if self._saved.get(self._placeholders[number].name, ((), False))[1]],
                timeout=options.timeout,
                graph=options.graph,
            )
        except HirError as error:
            self._leave_to_pytorch(f"hir's executor does not run it: {error}")
            return None

    def _results(self, outputs: list[Any], args: tuple[Any, ...]) -> list[Any]:
        """The outputs as tensors; an output that is an input is that object."""
        places = {node.name: i for i, node in enumerate(self._placeholders)}
        results: list[Any] = []
        for reference, expected, value in zip(self._graph.nodes[-1].args[0], self._expected, outputs):
            if isinstance(reference, Ref) and reference.name in places:
                results.append(args[places[reference.name]])
            elif isinstance(value, np.ndarray):
                results.append(_like(_to_torch(value, expected.dtype), expected))
            else:
                results.append(value)
        return results


#: What `_warn_once` has said.
_said: set[str] = set()


def _warn_once(messages: Sequence[str]) -> None:
    for it in messages:
        if it not in _said:
            _said.add(it)
            warnings.warn(f"not checked: {it}", stacklevel=2)


def _metadata(name: str, default: Any) -> Any:
    """What AOTAutograd knows of the forward graph for the graph that is compiled: the number of outputs that are not only saved
    (``num_forward``), the inputs of the backward graph that nobody needs afterwards (``bw_donated_idxs``)."""
    import torch

    found = getattr(getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None), name, None)
    return default if found is None else found


def _device_of(module: Any) -> Any:
    """The GPU on which a graph works; None if it works on no GPU."""
    values = (node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder")
    devices = [it.device for it in values if _device(it) == "cuda"]
    return devices[0] if devices else None


def _device(it: Any) -> str:
    device = getattr(it, "device", None)
    return getattr(device, "type", "cpu")


def _like(value: Any, expected: Any) -> Any:
    """The values in a tensor with the strides of another one, also if it repeats elements (``expand``)."""
    import torch

    single = [1 if stride == 0 else size for size, stride in zip(expected.shape, expected.stride())]
    result = torch.empty_strided(single, expected.stride(), dtype=expected.dtype)
    if torch._debug_has_internal_overlap(result) == 1:
        return value
    return result.copy_(value[tuple(slice(size) for size in single)]).expand(expected.shape)


def _to_torch(array: np.ndarray, dtype: Any) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape)).to(dtype)
