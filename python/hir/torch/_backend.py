"""The backend of ``torch.compile``: ``torch.compile(model, backend="hir")``."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from time import process_time
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from .._diagnostic import HirError
from ._capture import capture_transfers
from ._decomposed import decompositions
from ._draws import with_draws
from ._fx import attribute, graph_of, is_object, loses_transfers, piece_of, to_numpy, with_contiguous_inputs
from ._fallback import LeftToPyTorch, Piece, compiled
from ._gpu import GpuProgram, runs_with_others
from ._graph import TRANSFERS, Graph, Ref, TorchFaultError, TorchImportError
from ._pairing import WAIT, Caller, Pairing, Together, among, job, leave, members_of
from ._program import TorchProgram
from ._reasons import Options, imported, passes_of, why_not, why_not_alone
from ._shared_heads import share_heads
from ._sizes import BySizes, has_symbolic_sizes
from ._written_out import attentions_written_out

#: A graph whose simulation takes more time of the CPU than this is left to PyTorch from then on, in seconds.
SLOWEST = 0.05


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

    if chosen.run != "torch":
        share_heads(module)
    piece = piece_of(module)
    job()  # Other ranks may wait for this one from now on.

    saved: dict[str, tuple[tuple[int, ...], bool]] = {}

    def compiler(direction: str) -> Any:
        def compile_graph(module: Any, inputs: Any) -> Any:
            if direction == "inference":
                decide(module, direction)
            number = len(output_of(module).args[0])
            returned = _metadata("num_forward", number) if direction == "forward" else number
            if has_symbolic_sizes(module):

                def run_of(module: Any) -> Any:
                    return _Compiled(module, direction, chosen, piece, {}, returned, ()).run

                return make_boxed_func(BySizes(module, run_of, chosen.fallback).run)
            donated = _metadata("bw_donated_idxs", ()) if direction == "backward" else ()
            return make_boxed_func(_Compiled(module, direction, chosen, piece, saved, returned, donated).run)

        return compile_graph

    def decide(module: Any, name: str) -> None:
        """Leaves a graph without communication to PyTorch before it is split, forwards and backwards."""
        if chosen.run == "torch" and not chosen.check:
            raise LeftToPyTorch(f"the {name} graph: the option `run` is `torch`")
        graph, _ = with_draws(replace(graph_of(module, name), piece=piece), module)
        if len(members_of(graph)) == 1:
            reason = why_not_alone(among(graph, (graph.rank,)), chosen, _device_of(module))
            if reason:
                raise LeftToPyTorch(f"the {name} graph: {reason}")

    def partition(module: Any, *args: Any, **named: Any) -> Any:
        # What nothing needs is in no part.
        module.graph.eliminate_dead_code()
        decide(module, "joint")
        # The backward graph computes again what takes less time than to save, as for torch.compile's default backend.
        return min_cut_rematerialization_partition(module, *args, **named)

    if loses_transfers(module, inputs):
        leave("it runs sends and receives of a model with gradients")
        warnings.warn(
            "PyTorch runs the graph, unchecked: it captures no sends and receives of models with gradients", stacklevel=2
        )
        return module.forward
    # Elsewhere, the check takes what hir does not know as calls without code, and another backend decomposes it.
    simulates = chosen.run != "torch" and all(_device(it) == "cpu" for it in inputs)
    try:
        return aot_module_simplified(
            attentions_written_out(module) if simulates else module,
            inputs,
            decompositions=decompositions() if simulates else None,
            partition_fn=partition,
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
        )
    except LeftToPyTorch as left:
        if chosen.run == "hir":
            return raising(TorchImportError(f"hir does not run {left}"))
        if chosen.run != "torch":
            warnings.warn(f"PyTorch runs {left}", stacklevel=2)
        return compiled(module, inputs, chosen.fallback)
    except (TorchFaultError, HirError) as error:
        return raising(error)


def raising(error: Exception) -> Callable[..., Any]:
    """What raises an error when it is called: Dynamo would show an error of its compilation as one of its own."""

    def call(*_: Any) -> Any:
        raise error

    return call


# PyTorch imports this module when `torch.compile` is called, before it traces the model.
capture_transfers()


class _Compiled:
    """A compiled graph of this rank. Its first run makes the program of all ranks that communicate with each other in it."""

    def __init__(
        self,
        module: Any,
        direction: str,
        options: Options,
        piece: str | None,
        saved: dict[str, tuple[tuple[int, ...], bool]],
        returned: int,
        donated: Sequence[int],
    ) -> None:
        """``saved`` is what the forward graph saves for the backward graph, by the names that both have for it (`GpuProgram.saved`).

        The first ``returned`` outputs are not saved. Nobody needs the ``donated`` inputs, by number, once the graph has run.
        """
        self._module, self._options, self._saved = module, options, saved
        self._fallback = Piece(module, options.fallback)
        self._device = _device_of(module)
        graph, self._draws = with_draws(replace(graph_of(module, direction), piece=piece), module)
        members = members_of(graph)
        if self._device is not None and len(members) > 1:
            # The executor of GPUs works with all ranks of the job.
            members = tuple(range(graph.world))
        self._members, self._graph = members, among(graph, members)
        self._passes = passes_of(options, len(members))
        self._orders: list[tuple[int, ...] | None] = []
        self._placeholders = [node for node in self._graph.nodes if node.op == "placeholder"]
        #: Why PyTorch runs the graph from now on.
        self._reason = "the option `run` is `torch`" if options.run == "torch" and not options.check else None
        #: The programs that hir runs, by the names of the graphs that the ranks call together.
        self._programs: dict[tuple[str | None, ...], TorchProgram] = {}
        self._caller: Caller | None = None
        self._gpu: GpuProgram | None = None
        #: The outputs, of which objects are not those of a program.
        self._all_outputs: list[Any] = list(output_of(module).args[0])
        objects = {node.name for node in self._graph.nodes if is_object(node)}
        self._outputs = [it for it in self._all_outputs if getattr(it, "name", None) not in objects]
        #: What the graph says about each output: a tensor of the expected type and strides.
        self._expected: list[Any] = [getattr(it, "meta", {}).get("val") for it in self._outputs]
        #: The number of outputs that are not saved for the backward graph.
        self._returned = sum(it in self._outputs for it in self._all_outputs[:returned])
        self._donated = donated

    def run(self, *args: Any) -> Any:
        if self._gpu is None and self._reason is None:
            if self._device is not None:
                self._prepare_gpu()
            elif any(_device(it) != "cpu" for it in args):
                self._leave_to_pytorch("a tensor is neither on the CPU nor on a GPU")
        if self._gpu is not None:
            args += tuple(draw() for draw in self._draws)
            given = [it if order is None else it.permute(order) for it, order in zip(args, self._orders)]
            return self._with_objects(self._gpu.run(given, self._expected), args)
        found = None if self._device is not None else self._program_of_call()
        if found is None:
            return self._fallback(*args)
        program, pairing = found
        args += tuple(draw() for draw in self._draws)
        arrays = [to_numpy(it) for it in args]
        inputs = [arrays] if pairing is None else pairing.inputs(arrays, self._options.timeout)
        began = process_time()
        outputs = program.run(inputs, program.overlapping(self._passes))[self._graph.rank]
        took = process_time() - began
        if took > SLOWEST and self._options.run == "auto":
            limit = f"more than the {1000 * SLOWEST:g} ms up to which hir simulates by itself"
            self._leave_to_pytorch(f"its simulation takes {1000 * took:.0f} ms of the CPU, {limit}")
        return self._with_objects(self._results(outputs, args), args)

    def _with_objects(self, results: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """The outputs of the graph, from those of the program."""
        if len(self._outputs) == len(self._all_outputs):
            return list(results)
        given = {node.name: it for node, it in zip(self._placeholders, args)}
        values = iter(results)

        def output(it: Any) -> Any:
            if it in self._outputs:
                return next(values)
            return given[it.name] if it.op == "placeholder" else attribute(self._module, it.target)

        return [output(it) for it in self._all_outputs]

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
            imported(pairing.graphs(together), self._members, self._options)
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
            program = imported(graphs, self._members, self._options)
            reason = program if isinstance(program, str) else why_not(program, graphs, self._options, self._device)
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
            self._saved.update((self._outputs[number].name, it) for number, it in saved.items())

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


def output_of(module: Any) -> Any:
    [output] = [node for node in module.graph.nodes if node.op == "output"]
    return output


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
