"""Operators without a rule: which of them communicate, as far as hir knows or is told."""

from __future__ import annotations

from ..job._calls import NAMESPACES
from ._equal_groups import is_collective
from ._graph import TRANSFERS, Graph, Node

#: Namespaces of PyTorch whose operators work on tensors of one rank.
LOCAL = ("_operator", "hir", "aten", "prims", "prim", "rngprims", "inductor", "fsdp", "quantized", "quantized_decomposed", "mkldnn", "torchvision")
#: What names of operators contain that all ranks of a process group call.
COLLECTIVE = ("reduce", "gather", "scatter", "broadcast", "barrier", "all_to_all", "alltoall")


#: What ends the name of an operator whose graphs do not communicate.
WITHOUT_COMMUNICATION = ".local"
#: What users say about operators: whether each communicates, and the position of the argument that names the process group.
_registered: dict[str, tuple[bool, int | None]] = {}


def register_operator(name: str, *, communicates: bool, group: int | None = None) -> None:
    """Tells hir whether an operator communicates that it does not know, such as ``mylib::all_reduce`` of ``torch.library``.

    If it does, the check compares its calls with those of the other ranks: all ranks of a process group call it. ``group`` is the
    position of the argument that is the name of the process group; without it, all ranks of the job call it.
    """
    _registered[name.replace("::", ".")] = (communicates, group)


def registered(target: str) -> tuple[bool, int | None] | None:
    """What a user says about an operator, or one overload of it."""
    return _registered.get(target) or _registered.get(".".join(target.split(".")[:2]))


def is_called_by_all(target: str) -> bool | None:
    """Whether all ranks of a process group call an operator without a rule. None: hir does not know."""
    known = registered(target)
    if known is not None:
        return known[0]
    namespace, name, *_ = f"{target}.".split(".")
    if namespace in NAMESPACES:
        return True if any(it in name for it in COLLECTIVE) else None
    return False if namespace in LOCAL or target.endswith(WITHOUT_COMMUNICATION) else None


def communicates(node: Node) -> bool:
    """Whether hir knows that a statement communicates."""
    it = node.target
    return node.op == "call_function" and (is_collective(it) or it.startswith(TRANSFERS) or is_called_by_all(it) is True)


def communicating_nodes(graph: Graph) -> list[Node]:
    """The communication of a graph that hir knows."""
    return [node for node in graph.nodes if communicates(node)]
