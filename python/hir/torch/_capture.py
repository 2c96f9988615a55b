"""Captures of functions and modules."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any, Callable, Mapping, Sequence

from ._decomposed import decompositions
from ._fx import graph_of, loses_transfers, process_groups, this_rank, to_numpy
from ._graph import Graph, TorchImportError, TransferOrder
from ._layers import traced_once, with_bodies
from ._pairing import graphs_of_all_ranks
from ._program import TorchProgram, from_graphs
from ._written_out import attentions_written_out

#: How long a rank waits for the graphs of the others, in seconds.
TIMEOUT = 300.0


class _Captured(Exception):
    """Ends a call after its graph is captured, before it runs. ``inputs`` are those of the graph."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.inputs = inputs


def from_fx(module: Any, *, name: str = "graph", timeout: float = TIMEOUT, each_rank: bool = False) -> TorchProgram:
    """Imports a ``torch.fx.GraphModule`` with operators of aten and functional collectives.

    In a job, each rank calls this with its own graph, and gets the program of all ranks.
    """
    return from_graphs(graphs_of_all_ranks(graph_of(module, name), timeout), each_rank=each_rank)


def from_export(exported: Any, *, name: str = "exported", timeout: float = TIMEOUT, each_rank: bool = False) -> TorchProgram:
    """Imports a ``torch.export.ExportedProgram``. Its parameters and buffers are inputs, before those of the call."""
    return from_fx(exported.run_decompositions().graph_module, name=name, timeout=timeout, each_rank=each_rank)


def capture(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    direction: str = "forward",
    save: str | os.PathLike[str] | None = None,
    timeout: float = TIMEOUT,
    each_rank: bool = False,
) -> TorchProgram:
    """Captures a function or a module with example arguments, and does not run it.

    With ``direction="backward"``, it runs the function to capture the graph of the gradients of the sum of all results.

    In a job, each rank calls this, and gets the program of all ranks. ``save`` writes the text to a file. The inputs of the
    program are those that ``torch.compile`` passes: the tensors that the function uses, in its order. In one process,
    ``program.example`` has them.

    The outputs are those of the graph: first the new values of inputs that the function changes, then the tensors of its
    result, then what the backward graph needs.

    Raises ``TorchImportError`` for what hir cannot import.
    """
    graph, example = capture_graph(function, args, kwargs, direction)
    program = from_graphs(graphs_of_all_ranks(graph, timeout), each_rank=each_rank)
    if graph.world == 1:
        program.example = [[to_numpy(it) for it in example]]
    if save is not None:
        program.save(save)
    return program


def explain(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    direction: str = "forward",
    passes: str = "@overlap",
    timeline: str | os.PathLike[str] | None = None,
    timeout: float = TIMEOUT,
) -> str:
    """Captures a function or a module, and says how much of its communication passes hide behind its computation.

    In a job, each rank calls this, and rank 0 writes the timeline. As ``TorchProgram.explain``.
    """
    program = capture(function, args, kwargs, direction=direction, timeout=timeout)
    return program.explain(passes, timeline=timeline if this_rank()[0] == 0 else None)


def capture_ranks(
    build: Callable[[int], tuple[Callable[..., Any], Sequence[Any]]],
    ranks: int,
    *,
    direction: str = "forward",
    save: str | os.PathLike[str] | None = None,
    each_rank: bool = False,
    backend: str = "nccl",
) -> TorchProgram:
    """Captures the program of a job in one process, without the other ranks.

    ``build(rank)`` returns the function or module of a rank and its arguments. It runs in a process group of the given size
    whose collectives do nothing (PyTorch's backend ``fake``), so that it may make meshes, groups and DTensors.
    ``program.example`` has the inputs of all ranks, with which ``program.run()`` runs; what ``build`` has received by collectives
    has undefined values there, also the weights that ``parallelize_module`` distributes.

    ``backend`` is that of the job: with ``nccl``, an ``isend`` or ``irecv`` that is in no batch waits for those before it, and with
    ``gloo`` for none.
    """
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if backend not in ("nccl", "gloo"):
        raise ValueError(f"the backend is `nccl` or `gloo`, not `{backend}`")
    if dist.is_initialized():
        raise TorchImportError("capture_ranks makes process groups of its own, but torch.distributed is initialized already")
    _tell_meshes_apart()
    from ._equal_ranks import Calls, calls_of

    def in_group(rank: int, use: Callable[[Callable[..., Any], Sequence[Any]], Any]) -> Any:
        dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
        try:
            return use(*build(rank)), process_groups()
        finally:
            dist.destroy_process_group()

    def captured(function: Callable[..., Any], args: Sequence[Any]) -> tuple[Graph, list[Any], Calls | None]:
        torch._dynamo.reset()
        graph, example = capture_graph(function, args, direction=direction)
        return graph, example, calls_of(function, args, direction)

    classes: list[tuple[Graph, list[Any], Calls]] = []
    graphs, examples = [], []
    for rank in range(ranks):
        own, groups = in_group(rank, lambda function, args: calls_of(function, args, direction)) if classes else (None, {})
        equal = [(graph, inputs) for graph, example, calls in classes if own and (inputs := own.inputs_as(calls, example)) is not None]
        if equal:
            graph, example = replace(equal[0][0], rank=rank, groups=groups), equal[0][1]
        else:
            (graph, example, own), _ = in_group(rank, captured)
            classes += [(graph, example, own)] if own else []
        # NCCL has two orders; what is a fault with either is found.
        graphs.append(replace(graph, orders=dict.fromkeys(graph.groups, TransferOrder.NONE) if backend == "gloo" else {}))
        examples.append([to_numpy(it) for it in example])
    program = from_graphs(graphs, each_rank=each_rank)
    program.example = examples
    if save is not None:
        program.save(save)
    return program


@functools.cache
def _tell_meshes_apart() -> None:
    """Makes meshes of different ranks unequal: DTensor keeps results for equal meshes, with the mesh, which has the coordinates of a rank."""
    from torch.distributed.device_mesh import DeviceMesh

    equal = DeviceMesh.__eq__

    def of_one_rank(mesh: Any, other: object) -> bool:
        is_equal: bool = equal(mesh, other)
        return is_equal and (not isinstance(other, DeviceMesh) or mesh.get_coordinate() == other.get_coordinate())

    setattr(DeviceMesh, "__eq__", of_one_rank)


def capture_transfers() -> None:
    """Lets Dynamo capture ``isend`` and ``irecv``, which it leaves out of its graphs by default."""
    import torch

    # PyTorch before 2.15 does not have it.
    if hasattr(torch._dynamo.config, "enable_p2p_compilation"):
        torch._dynamo.config.enable_p2p_compilation = True


def capture_graph(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    direction: str = "forward",
) -> tuple[Graph, list[Any]]:
    """Captures the graph of this rank, with the inputs that the call gives it."""
    import torch

    if direction not in ("forward", "backward"):
        raise ValueError(f"the direction is `forward` or `backward`, not `{direction}`")
    capture_transfers()
    with traced_once(function) as has_layers:
        try:
            return _captured(function, args, kwargs or {}, direction)
        except Exception:  # PyTorch refuses to call graphs that write to their operands, for example.
            if not has_layers:
                raise
    torch._dynamo.reset()
    return _captured(function, args, kwargs or {}, direction)


def _captured(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], direction: str) -> tuple[Graph, list[Any]]:
    import torch
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

    name = getattr(function, "__name__", type(function).__name__)
    graphs: list[Graph] = []

    def captured(module: Any, inputs: Any) -> Any:
        graphs.append(graph_of(module, name))

        def stop(*inputs: Any) -> Any:
            raise _Captured(inputs)

        return make_boxed_func(stop)

    def unchanged(module: Any, inputs: Any) -> Any:
        return make_boxed_func(module.forward)

    def backend(module: Any, inputs: Any) -> Any:
        if loses_transfers(module, inputs):
            raise TorchImportError(
                f"PyTorch captures no sends and receives of functions with gradients; capture `{name}` without (torch.no_grad)"
            )
        if any(type(it) not in (torch.Tensor, torch.nn.Parameter) and isinstance(it, torch.Tensor) for it in inputs):
            module = with_bodies(module)
        module = attentions_written_out(module)
        forward = captured if direction == "forward" else unchanged
        compiled = aot_module_simplified(
            module,
            inputs,
            fw_compiler=forward,
            bw_compiler=captured,
            inference_compiler=forward,
            decompositions=decompositions(),
        )
        # The graph is called once. Dynamo fails to compare the objects that layers share with those of another call.
        torch._guards.TracingContext.get().guards_context.dynamo_guards.inner.clear()
        return compiled

    try:
        results = torch.compile(function, backend=backend, fullgraph=True)(*args, **kwargs)
        if direction == "backward":
            results = results if isinstance(results, (tuple, list)) else (results,)
            wanted = [it.sum() for it in results if isinstance(it, torch.Tensor) and it.requires_grad]
            torch.autograd.backward(wanted, [torch.ones_like(it) for it in wanted])
    except _Captured as stopped:
        return graphs[0], list(stopped.inputs)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        if isinstance(error.inner_exception, TorchImportError):
            raise error.inner_exception from None
        raise
    raise TorchImportError(f"`{name}` computes nothing with tensors" if direction == "forward" else f"`{name}` has no gradient")
