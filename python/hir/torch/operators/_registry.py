"""The table of operators that the importer knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, TypeVar

from .._align import PerRank
from .._builder import Builder
from .._graph import DifferentRanks, Node, TensorType, TorchImportError
from .._mesh import Groups


@dataclass
class Call:
    """A call of an operator whose rule runs: the node, and what the rule writes to."""

    node: Node
    to: Builder
    #: The ranks of each group of the job, by name, for each rank.
    groups: tuple[dict[str, tuple[int, ...]], ...]
    #: The rank, if the program differs between ranks.
    rank: int = 0
    #: In which order the process groups of this rank execute transfers that are in no batch.
    orders: Mapping[str, str] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """The element type of the result."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The local shape of the result."""
        return self.type.shape

    @property
    def type(self) -> TensorType:
        if not isinstance(self.node.result, TensorType):
            raise self.error("the graph does not say which tensor it computes")
        return self.node.result

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of several results."""
        result = self.node.result
        if not isinstance(result, tuple) or not all(isinstance(it, TensorType) for it in result):
            raise self.error("the graph does not say which tensors it computes")
        return result

    def error(self, message: str) -> TorchImportError:
        return TorchImportError(message, self.node)

    def mesh_dims(self, group: Any) -> tuple[int, ...]:
        """The dimensions of the mesh along which a process group lies."""
        dims = self.to.mesh.dims_of(partition(self.groups, group, self.node))
        if dims is None:
            raise self.error(f"the process group `{group}` does not lie along the mesh {self.to.mesh.text}")
        return dims


def partition(groups: tuple[dict[str, tuple[int, ...]], ...], group: Any, node: Node) -> Groups:
    """The groups that the ranks name in one argument."""
    names = group.values if isinstance(group, PerRank) else (group,) * len(groups)
    found: dict[tuple[int, ...], Any] = {}
    for rank, name in enumerate(names):
        if name not in groups[rank]:
            raise TorchImportError(f"rank {rank} is in no process group with the name `{name}`", node)
        if found.setdefault(groups[rank][name], name) != name:
            raise DifferentRanks("ranks name different process groups, which have the same ranks", node)
    if sorted(rank for it in found for rank in it) != list(range(len(groups))):
        raise DifferentRanks("the process groups that the ranks name do not contain each rank once", node)
    return frozenset(found)


#: A rule writes the statements of one operator. Its arguments are those of the operator, with tensors as Values.
Rule = Callable[..., Any]
AnyRule = TypeVar("AnyRule", bound=Rule)


@dataclass(frozen=True)
class Operator:
    target: str
    rule: Rule
    #: What the table of the documentation says.
    counterpart: str
    #: Whether the rule takes arguments that depend on the rank.
    by_rank: bool


OPERATORS: dict[str, Operator] = {}
#: The rules of collectives in a program that differs between ranks: each rank posts its own communications.
COMMUNICATIONS: dict[str, Operator] = {}


def operator(
    *targets: str, counterpart: str, table: dict[str, Operator] = OPERATORS, by_rank: bool = False
) -> Callable[[AnyRule], AnyRule]:
    """Registers the rule of operators, named as in ``aten.mm.default``."""

    def register(rule: AnyRule) -> AnyRule:
        for target in targets:
            table[target] = Operator(target, rule, counterpart, by_rank)
        return rule

    return register


def dimension(call: Call, dim: int, ndim: int) -> int:
    """A dimension that may count from the end."""
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise call.error(f"a tensor of {ndim} dimensions has no dimension {dim}")
    return dim % max(ndim, 1)
