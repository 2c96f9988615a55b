"""Graphs of PyTorch (``torch.fx``), as the importer reads them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Mapping, Sequence

from ._foreach import each
from ._graph import TRANSFERS, Argument, DType, Graph, Node, Other, Ref, TensorType, TransferOrder, Unbound
from ._subgraphs import NAMESPACE, with_subgraphs

#: Constants of more elements are no part of a program.
MOST_CONSTANTS = 4096


def graph_of(module: Any, name: str) -> Graph:
    """Returns the graph of a ``torch.fx.GraphModule`` on this rank. Its nodes need ``meta["val"]``, as AOTAutograd and
    ``torch.export`` write it."""
    rank, world = this_rank()
    nodes = _nodes(module)
    values = (it.meta.get("val") for it in module.graph.nodes)
    devices = {it.device.type for it in values if hasattr(it, "device")}
    return Graph(name, rank, world, nodes, process_groups(), orders=_orders("cuda" if "cuda" in devices else "cpu"))


def loses_transfers(module: Any, inputs: Sequence[Any]) -> bool:
    """Whether AOTAutograd would lose sends and receives of a graph of Dynamo.

    PyTorch 2.15 splits a graph with gradients into a forward and a backward part, and keeps in these what their results need. The
    result of a send, and of a receive into a tensor, is not needed.
    """
    import torch

    if not torch.is_grad_enabled() or not any(isinstance(it, torch.Tensor) and it.requires_grad for it in inputs):
        return False
    return any(str(node.target).startswith(TRANSFERS) for node in module.graph.nodes)


def piece_of(module: Any) -> str | None:
    """Why a graph of Dynamo is one of several pieces of a function; None if it is the whole function."""
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is None or not reason.user_stack:
        return None
    frame = reason.user_stack[-1]
    places = [f"{_short(it.filename)}:{it.lineno}" for it in reason.user_stack if not _is_library(it.filename)]
    place = places[-1] if places else "unknown line"
    if reason.graph_break:
        return f"it ends at a graph break ({place}: {reason.reason.splitlines()[0]})"
    return "it begins behind a graph break" if frame.name.startswith("torch_dynamo_resume_in") else None


def this_rank() -> tuple[int, int]:
    """The rank of this process and the number of ranks; (0, 1) without ``torch.distributed``."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def process_groups() -> Mapping[str, tuple[int, ...]]:
    """The process groups of which this rank is a member, by name."""
    import torch.distributed as dist

    return {name: tuple(dist.get_process_group_ranks(group)) for name, group in groups_by_name().items()}


def groups_by_name() -> dict[str, Any]:
    """The process groups of this rank as objects of PyTorch."""
    import torch.distributed as dist

    has_groups = dist.is_available() and dist.is_initialized()
    return {str(name): it for it, name in dist.distributed_c10d._world.pg_names.items()} if has_groups else {}


def _orders(device: str) -> Mapping[str, str]:
    """In which order each process group of this rank executes transfers of tensors on a device."""
    import torch

    def order(group: Any) -> str:
        try:
            backend = group._get_backend(torch.device(device)).name()
        except RuntimeError:  # It has none for this device.
            return TransferOrder.SERIAL
        if backend in ("gloo", "mpi", "ucc"):
            return TransferOrder.NONE
        return TransferOrder.PAIR if backend == "nccl" and group.bound_device_id is None else TransferOrder.SERIAL

    return {name: order(group) for name, group in groups_by_name().items()}


def _nodes(module: Any) -> tuple[Node, ...]:
    import torch

    graphs = {it.name: attribute(module, it.target) for it in module.graph.nodes if it.op == "get_attr"}
    modules = {id(it): it for it in graphs.values() if isinstance(it, torch.fx.GraphModule)}
    bodies = {key: _nodes(it) for key, it in modules.items()}
    called = {name: bodies[id(it)] for name, it in graphs.items() if id(it) in bodies}
    *nodes, output = (_node(it, module) for it in module.graph.nodes)
    [*results] = output.args[0] if isinstance(output.args[0], tuple) else output.args
    objects = {it.name for it in nodes if is_object(it)}
    kept = tuple(it for it in results if not isinstance(it, Ref) or it.name not in objects)
    return each(with_subgraphs([*nodes, replace(output, args=(kept,))], called))


def is_object(node: Node) -> bool:
    """Whether a node stands for an object that is no tensor, such as a mesh. It is no result of a program."""
    return node.op in ("placeholder", "get_attr") and node.result is None


def attribute(module: Any, path: str) -> Any:
    """What a node of a graph (get_attr) refers to."""
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _node(node: Any, module: Any) -> Node:
    if node.op == "get_attr":
        return _constant(node, module)
    target = _target(node.target)
    if target == "aten.as_strided.default" and _is_whole_storage(node.args[0]):
        # An input may have another place in its storage in another call, from which an offset is not counted.
        if node.args[0].op != "placeholder" or len(node.args) < 4:
            target = "hir.as_strided"
    return Node(
        name=node.name,
        op=node.op,
        target=target,
        args=tuple(_argument(it) for it in node.args),
        kwargs={name: _argument(it) for name, it in node.kwargs.items()},
        result=_result(node.meta.get("val", node.meta.get("example_value"))),
        place=_place(node.meta.get("stack_trace") or node.stack_trace),
        stream=(node.meta.get("custom") or {}).get("stream"),
    )


def _is_whole_storage(node: Any) -> bool:
    """Whether the elements of a tensor are its storage, in their order."""
    import torch

    it = node.meta.get("val")
    if not isinstance(it, torch.Tensor) or it.storage_offset() != 0 or not it.is_contiguous():
        return False
    return bool(it.untyped_storage().nbytes() == it.numel() * it.element_size())


def _constant(node: Any, module: Any) -> Node:
    """A tensor that is part of the module, or an object, such as a mesh or a graph."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    value = attribute(module, node.target)
    place = _place(node.meta.get("stack_trace") or node.stack_trace)
    if not isinstance(value, torch.Tensor) or value.numel() > MOST_CONSTANTS or value.is_complex():
        return Node(node.name, node.op, node.target, result=_result(value), place=place)
    with unset_fake_temporarily():
        elements = tuple(value.detach().flatten().tolist())
    return Node(node.name, node.op, node.target, result=_result(value), place=place, elements=elements)


def _target(target: Any) -> str:
    import torch

    if isinstance(target, str):
        return target
    if hasattr(target, "_schema"):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"{NAMESPACE}{target.name()}"
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def _argument(it: Any) -> Argument:
    import torch

    if isinstance(it, torch.fx.Node):
        return Ref(it.name)
    if isinstance(it, (tuple, list)):
        return tuple(_argument(element) for element in it)
    if isinstance(it, dict):
        return tuple(_argument(element) for element in it.values())
    if isinstance(it, slice):
        return slice(_argument(it.start), _argument(it.stop), _argument(it.step))
    if isinstance(it, torch.dtype):
        return DType(str(it).removeprefix("torch."))
    if isinstance(it, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        hint = _hint(it)
        return Other(str(it)) if hint is None else hint
    if it is None or isinstance(it, (bool, int, float, str)):
        return it
    # Some graphs have objects of Python, wrapped for tracing, where others have names of groups.
    it = getattr(it, "real_obj", it)
    if isinstance(it, torch.distributed.ProcessGroup):
        return it.group_name
    return Other(str(it))


def _hint(symbol: Any) -> bool | int | float | None:
    """The value that a symbolic size has in the example; None if it depends on values of tensors."""
    hint = getattr(symbol.node, "hint", None)
    return hint if isinstance(hint, (bool, int, float)) else None


def _result(it: Any) -> Any:
    import torch

    if isinstance(it, torch.Tensor):
        sizes = tuple(size if isinstance(size, int) else _result(size) for size in it.shape)
        unbound = [size for size in sizes if isinstance(size, Unbound)]
        return unbound[0] if unbound else TensorType(sizes, str(it.dtype).removeprefix("torch."))
    if isinstance(it, (tuple, list)):
        return tuple(_result(element) for element in it)
    if isinstance(it, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        hint = _hint(it)
        return Unbound(str(it)) if hint is None else hint
    return it if isinstance(it, (bool, int, float)) else None


def _place(trace: str | None) -> str | None:
    """The innermost line of a stack trace that is outside of PyTorch and of Python's own library."""
    place = None
    for line in (trace or "").splitlines():
        line = line.strip()
        if line.startswith('File "'):
            path, _, rest = line[len('File "') :].partition('", line ')
            if not _is_library(path):
                place = f"{_short(path)}:{rest.split(',')[0]}"
    return place


def _is_library(path: str) -> bool:
    return "/site-packages/" in path or "/lib/python" in path or path.startswith("<")


def _short(path: str) -> str:
    """The path from the current folder, if the file is in it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def with_contiguous_inputs(
    graph: Graph, module: Any, saved: Mapping[str, Sequence[int]]
) -> tuple[Graph, list[tuple[int, ...] | None]]:
    """Returns the graph with inputs that are contiguous in memory, as far as an order of the axes makes them so.

    An input that is a transposed tensor becomes that tensor, with a ``permute`` behind it. Returns the order of the axes for
    each input that changes, which its values need as well. ``saved`` are the strides of what the forward graph has saved.
    """
    values = {node.name: node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"}
    nodes: list[Node] = []
    permutes: list[Node] = []
    orders: list[tuple[int, ...] | None] = []
    for node in graph.nodes:
        if node.op != "placeholder":
            nodes += permutes
            permutes = []
            nodes.append(node)
            continue
        order = None
        if isinstance(node.result, TensorType) and node.name in values:
            order = _memory_order(node.result.shape, saved.get(node.name, values[node.name].stride()))
        orders.append(order)
        if order is None:
            nodes.append(node)
            continue
        stored = TensorType(tuple(node.result.shape[dim] for dim in order), node.result.dtype)
        nodes.append(replace(node, name=f"{node.name}_in_memory", result=stored))
        back = tuple(order.index(dim) for dim in range(len(order)))
        args = (Ref(nodes[-1].name), back)
        permutes.append(Node(node.name, "call_function", "aten.permute.default", args, result=node.result, place=node.place))
    return replace(graph, nodes=tuple(nodes)), orders


def _memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The order of axes in which a tensor is contiguous; None if it is that of its axes, or if there is none."""
    order = tuple(sorted(range(len(shape)), key=lambda dim: -strides[dim]))
    return order if not _is_contiguous(shape, strides, range(len(shape))) and _is_contiguous(shape, strides, order) else None


def _is_contiguous(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """Whether a tensor with its axes in this order is contiguous."""
    step = 1
    for dim in reversed(order):
        if shape[dim] != 1 and strides[dim] != step:
            return False
        step *= shape[dim]
    return True


def to_numpy(it: Any) -> Any:
    """The local tensor as an array, bfloat16 as float32; None for what is no tensor."""
    import torch

    if not isinstance(it, torch.Tensor):
        return None
    it = it.detach().cpu()
    return (it.float() if it.dtype == torch.bfloat16 else it).numpy()
