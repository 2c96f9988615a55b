"""Builds programs: tensors of the ranks' local values, and statements with the lines of the Python program."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Sequence, TypeVar, Union

from .. import _hir
from ._align import PerRank
from ._graph import TorchImportError
from ._mesh import Mesh

#: Element types: PyTorch's name and that of the language.
ELEMENT_TYPES = {
    "float64": "double",
    "float32": "float",
    "bfloat16": "__bfloat",
    "float16": "__half",
    "float8_e4m3fn": "__e4m3",
    "float8_e5m2": "__e5m2",
    "int64": "int64_t",
    "int32": "int",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint8": "uint8_t",
    "uint64": "uint64_t",
    "bool": "bool",
    "complex64": "std::complex<float>",
    "complex128": "std::complex<double>",
}


class Axis(NamedTuple):
    """An axis of a tensor: ``i``, ``b`` or ``r``, ``S`` or a dimension of the devices, and its number in the tensor."""

    kind: str
    parallel: str
    number: int
    extent: int


@dataclass(frozen=True)
class Value:
    """A local tensor of every rank, as one tensor.

    The tensor has an axis for each dimension of the mesh, then the axes of the local tensor. An axis of the mesh is a device
    axis if the ranks along it hold values of their own, and has the extent 1 if they hold the same value.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    sharded: tuple[bool, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)


Number = Union[bool, int, float]
#: What an elementwise operator takes.
Operand = Union[Value, PerRank, Number]
#: A scalar in a statement: a number of the language, a type with a literal, or a function with its operands.
Scalar = Union[bool, int, tuple[str, str], tuple[str, list[Any]]]
#: The results of a statement.
Result = TypeVar("Result", str, Value, list[Any], None)


@dataclass
class Builder:
    """A program under construction."""

    mesh: Mesh
    #: The line of the Python program to which new statements belong.
    place: str | None = None
    program: _hir.Builder = field(default_factory=_hir.Builder)
    opaque: list[str] = field(default_factory=list)
    #: Calls of operators of which hir does not know whether they communicate.
    unknown: list[str] = field(default_factory=list)
    #: The posted communication that writes or reads a tensor, by the name of the tensor.
    posted: dict[str, int] = field(default_factory=dict)
    #: Transfers to and from single ranks that are posted next: the number, the direction, the buffer, the peer and the place.
    transfers: list[tuple[int, str, Value, int, str | None]] = field(default_factory=list)
    #: The number for which a transfer of a group is awaited.
    group_of: dict[int, int] = field(default_factory=dict)
    #: The numbers for which the program has waited. A group of transfers ends as a whole.
    awaited: set[int] = field(default_factory=set)
    #: The number of ranks by which a sum has to be divided when it is complete, by the name of the tensor.
    averages: dict[str, int] = field(default_factory=dict)
    #: Whether each all-to-all of each rank has equal splits. Otherwise, all of them are groups of transfers.
    equal_splits: bool = True
    #: Names of tensors that a statement writes in place.
    written: list[str] = field(default_factory=list)
    #: The numbers of the calls of a line, in their order, and how many of them the current rank has made.
    calls: dict[Any, list[int]] = field(default_factory=dict)
    made: dict[Any, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.use(self.mesh)

    def use(self, mesh: Mesh) -> None:
        """Sets the mesh of new tensors."""
        self.mesh = mesh
        self.made.clear()
        self.awaited.clear()
        self.program.set_mesh(mesh.shape or (1,), range(mesh.size) if mesh.shape else [mesh.only])

    # -- tensors -------------------------------------------------------------------------------------------------------

    def mesh_axis(self, dim: int, sharded: bool, number: int | None = None, kind: str = "i") -> Axis:
        number = dim if number is None else number
        if not sharded:
            return Axis("b", "S", number, 1)
        return Axis(kind, self.mesh.parallel_type(dim), number, self.mesh.shape[dim])

    def local_axis(self, extent: int, number: int) -> Axis:
        return Axis("b" if extent == 1 else "i", "S", number, extent)

    def axes(self, shape: Sequence[int], sharded: Sequence[bool]) -> list[Axis]:
        """The axes of a local tensor, numbered by position."""
        axes = [self.mesh_axis(dim, it) for dim, it in enumerate(sharded)]
        return axes + [self.local_axis(extent, self.mesh.ndim + i) for i, extent in enumerate(shape)]

    def declare(self, dtype: str, axes: Sequence[Axis], whole: tuple[int, Axis] | None = None) -> str:
        """Declares a tensor with any axes and returns its name. ``whole`` is the axis of which those from a position on are halves."""
        # Elements of other types are checked, but no operator is run on them.
        return self.program.tensor(ELEMENT_TYPES.get(dtype, "uint8_t"), axes, whole)

    def value(self, dtype: str, shape: Sequence[int], sharded: Sequence[bool], axes: Sequence[Axis] | None = None) -> Value:
        """Declares a local tensor. ``axes`` are those of its text, if others."""
        return Value(self.declare(dtype, axes or self.axes(shape, sharded)), dtype, tuple(shape), tuple(sharded))

    def like(self, value: Value, dtype: str | None = None) -> Value:
        return self.value(dtype or value.dtype, value.shape, value.sharded)

    def add(self, op: str, out: Result, /, *operands: Any, **attributes: Any) -> Result:
        """Adds a statement with attributes of these names, and returns its results. A communication has a ``number``."""
        outs: list[Any] = out if isinstance(out, list) else [] if out is None else [out]
        number = attributes.pop("number", None)
        given = {name: _named(it) for name, it in attributes.items()}
        self.program.add(op, _named(outs), [_named(it) for it in operands], given, number, self.place)
        return out

    def post(self, number: int, kind: str, buffer: Value, peer: int) -> None:
        """Posts one side of a transfer."""
        self.add("P2PCommunication", None, number=number, type=kind, buffer=buffer, peer=peer, backend="NCCL")

    def allocate(self, value: Value) -> Value:
        return self.add("ALLOCATE", value, mem_type="global", zero_init=False)

    def post_transfers(self) -> None:
        """Posts transfers of which none waits for another one, as one group."""
        if len(self.transfers) > 1:
            self.add("StartCoalescing", None)
        place = self.place
        for number, kind, buffer, peer, self.place in self.transfers:
            self.post(number, kind, buffer, peer)
        self.place = place
        if len(self.transfers) > 1:
            group = self.end_group()
            self.group_of |= {it[0]: group for it in self.transfers}
        self.transfers.clear()

    def end_group(self) -> int:
        """Posts a group of transfers, and returns its number."""
        number = self.program.work()
        self.add("EndCoalescing", None, number=number)
        return number

    def wait(self, communication: int) -> None:
        self.post_transfers()
        number = self.group_of.get(communication, communication)
        if number not in self.awaited:
            self.awaited.add(number)
            self.add("Wait", None, work=number)

    # -- operators that every rule needs -------------------------------------------------------------------------------

    def elementwise(self, op: str, operands: Sequence[Operand], dtype: str) -> Value:
        """Applies an elementwise operator with broadcasting as in PyTorch."""
        tensors = [it for it in operands if isinstance(it, Value)]
        if not tensors:
            raise TorchImportError("an elementwise operator needs a tensor")
        ndim = max(it.ndim for it in tensors)
        aligned = {it: self.with_ndim(it, ndim) for it in tensors}
        shape = [max_extent([it.shape[dim] for it in aligned.values()]) for dim in range(ndim)]
        sharded = [any(it.sharded[dim] for it in tensors) for dim in range(self.mesh.ndim)]
        if any(isinstance(it, PerRank) for it in operands) and not all(sharded):
            sharded = [True] * self.mesh.ndim
            aligned = {it: self.expand(value, value.shape, sharded) for it, value in aligned.items()}
        given = [aligned[it] if isinstance(it, Value) else self.scalar(it, tensors[0].dtype) for it in operands]
        return self.add(op, self.value(dtype, shape, sharded), *given)

    def scalar(self, value: PerRank | Number, dtype: str) -> Scalar:
        """A constant, as an operand next to a tensor of the given type."""
        if isinstance(value, PerRank):
            chosen = self.scalar(value.values[-1], dtype)
            for rank in reversed(range(len(value.values) - 1)):
                own = self.scalar(value.values[rank], dtype)
                chosen = ("where", [("==", [("rank", []), rank]), own, chosen])
            return chosen
        if isinstance(value, bool) or (isinstance(value, int) and not is_float(dtype)):
            return value
        return ("double", number(float(value)))

    def convert(self, value: Value, dtype: str) -> Value:
        """Converts the elements, if their type is another one."""
        if value.dtype == dtype:
            return value
        if dtype == "bool":
            return self.elementwise("!=", [value, 0], "bool")
        if dtype == "uint8" and is_float(value.dtype):
            # As in PyTorch, -1.0 becomes 255.
            return self.convert(self.convert(value, "int64"), dtype)
        return self.elementwise("cast", [value], dtype)

    def with_ndim(self, value: Value, ndim: int) -> Value:
        """Adds axes of extent 1 before those of the local tensor."""
        return self.insert_axes(value, range(ndim - value.ndim)) if value.ndim < ndim else value

    def insert_axes(self, value: Value, dims: Sequence[int]) -> Value:
        """Adds axes of extent 1. ``dims`` are their positions in the result."""
        shape = list(value.shape)
        for dim in sorted(dims):
            shape.insert(dim, 1)
        return self.broadcast(value, self.value(value.dtype, shape, value.sharded), [self.mesh.ndim + dim for dim in dims])

    def broadcast(self, operand: Value | str, result: Value, new: Sequence[int]) -> Value:
        """Writes a result that has more axes of extent 1 than a tensor, at the given positions among all axes."""
        return self.add("broadcast", result, operand, flags=[i in new for i in range(self.mesh.ndim + result.ndim)])

    def squeeze(self, value: Value, dims: Sequence[int]) -> Value:
        """Removes axes of extent 1."""
        removed = set(dims)
        if not removed:
            return value
        shape = [extent for dim, extent in enumerate(value.shape) if dim not in removed]
        flags = [False] * self.mesh.ndim + [dim in removed for dim in range(value.ndim)]
        return self.add("squeeze", self.value(value.dtype, shape, value.sharded), value, flags=flags)

    def expand(self, value: Value, shape: Sequence[int], sharded: Sequence[bool] | None = None) -> Value:
        """Repeats axes of extent 1, also those of the mesh."""
        value = self.with_ndim(value, len(shape))
        sharded = value.sharded if sharded is None else tuple(sharded)
        if value.shape == tuple(shape) and value.sharded == tuple(sharded):
            return value
        return self.add("expand", self.value(value.dtype, shape, sharded), value)

    def with_equal_sharding(self, values: Sequence[Value]) -> list[Value]:
        """Gives each rank a value of its own where it has one of any of the values."""
        sharded = [any(it.sharded[d] for it in values) for d in range(self.mesh.ndim)]
        return [self.expand(it, it.shape, sharded) for it in values]

    def shard(self, value: Value, dims: Sequence[int]) -> Value:
        """Gives each rank along the dimensions of the mesh a value of its own, also where the values are equal."""
        return self.expand(value, value.shape, [it or dim in dims for dim, it in enumerate(value.sharded)])

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Changes the shape of the local tensor."""
        if tuple(shape) == value.shape:
            return value
        return self.add("reshape", self.value(value.dtype, shape, value.sharded), value)

    def permute(self, value: Value, order: Sequence[int]) -> Value:
        """Moves axes: axis ``i`` of the result is axis ``order[i]`` of the operand."""
        if list(order) == list(range(value.ndim)):
            return value
        shape = [value.shape[dim] for dim in order]
        first = self.mesh.ndim
        axes = [self.mesh_axis(dim, it) for dim, it in enumerate(value.sharded)]
        axes += [self.local_axis(value.shape[dim], first + dim) for dim in order]
        return self.add("Set.Permute", self.value(value.dtype, shape, value.sharded, axes), value)

    def reduction(self, result: Result, value: Value, op: str, initial: Scalar) -> Result:
        return self.add("reduction", result, value, op=op, allreduce=False, **{"initial value": initial})

    def reduce(self, value: Value, op: str, initial: Scalar, dims: Sequence[int], keepdim: bool = False) -> Value:
        """Reduces axes of the local tensor."""
        summed = [dim for dim in dims if value.shape[dim] != 1]
        single = [dim for dim in dims if value.shape[dim] == 1]
        result = value
        if summed:
            axes = self.axes(value.shape, value.sharded)
            for dim in summed:
                axes[self.mesh.ndim + dim] = axes[self.mesh.ndim + dim]._replace(kind="r")
            shape = [extent for dim, extent in enumerate(value.shape) if dim not in summed]
            result = self.reduction(self.value(value.dtype, shape, value.sharded, axes), value, op, initial)
        if keepdim:
            return self.insert_axes(result, summed) if summed else result
        return self.squeeze(result, [dim - sum(it < dim for it in summed) for dim in single])

    def sum(self, value: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
        return self.reduce(value, "add", zero(value.dtype), dims, keepdim)

    def matmul(self, a: Value, b: Value) -> Value:
        """The product of matrices, or of batches of matrices with the same number of axes."""
        shape = [max_extent(it) for it in zip(a.shape[:-2], b.shape[:-2])] + [a.shape[-2], b.shape[-1]]
        sharded = [x or y for x, y in zip(a.sharded, b.sharded)]
        axes = self.axes(shape, sharded)
        summed = Axis("r", "S", len(axes), a.shape[-1])
        return self.add("matmul", self.value(a.dtype, shape, sharded, [*axes, summed]), a, b)

    def full(self, shape: Sequence[int], fill: Number, dtype: str) -> Value:
        """A constant tensor, the same on all ranks."""
        result = self.value(dtype, shape, [False] * self.mesh.ndim)
        return self.add("full", result, constant(fill, dtype), shape=[*[1] * self.mesh.ndim, *shape])

    def constant(self, elements: tuple[object, ...], shape: Sequence[int], dtype: str) -> Value:
        """A tensor of the given elements, in row-major order; elements may differ between ranks."""
        first = self.mesh.ndim
        differ = any(isinstance(it, PerRank) for it in elements)
        # With different elements, row `r` has those of rank `r`.
        ranks = range(self.mesh.size if differ else 1)
        rows = [[it.values[r] if isinstance(it, PerRank) else it for it in elements] for r in ranks]
        scalars = [self.scalar(it, dtype) for row in rows for it in row if isinstance(it, (bool, int, float))]
        flat = self.declare(dtype, [self.local_axis(len(scalars), 0)])
        self.add("TensorConstruct", flat, ("{}", scalars))
        extents = (*self.mesh.shape, *shape) if differ else shape
        whole = self.declare(dtype, [self.local_axis(extent, i) for i, extent in enumerate(extents)])
        self.add("reshape", whole, flat)
        result = self.value(dtype, shape, [differ] * first)
        return self.add("Set", result, whole) if differ else self.broadcast(whole, result, range(first))

    def iota(self, extent: int, start: int = 0, step: int = 1, dtype: str = "int64") -> Value:
        """An arithmetic progression, the same on all ranks."""
        name = self.declare(dtype, [self.local_axis(extent, 0)])
        self.add("iota", name, extent, start, step, dtype=element_type(dtype))
        return self.broadcast(name, self.value(dtype, [extent], [False] * self.mesh.ndim), range(self.mesh.ndim))

    def slice(self, value: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
        """Selects a range of an axis."""
        if (start, stop, step) == (0, value.shape[dim], 1):
            return value
        shape = list(value.shape)
        shape[dim] = max(0, -(-(stop - start) // step))
        extents = [self.mesh.shape[d] if it else 1 for d, it in enumerate(value.sharded)]
        ranges = [(0, it, 1) for it in (*extents, *value.shape)]
        ranges[self.mesh.ndim + dim] = (start, stop, step)
        return self.add("slice", self.value(value.dtype, shape, value.sharded), value, ranges=ranges)

    def select(self, value: Value, dim: int, index: int) -> Value:
        """Selects one index of an axis."""
        shape = [extent for d, extent in enumerate(value.shape) if d != dim]
        if value.shape[dim] == 1:
            return self.squeeze(value, [dim])
        return self.add("select", self.value(value.dtype, shape, value.sharded), value, axis=self.mesh.ndim + dim, index=index)

    def cat(self, values: Sequence[Value], dim: int) -> Value:
        """Concatenates along an axis."""
        if len(values) == 1:
            return values[0]
        parts = self.with_equal_sharding(values)
        shape = list(parts[0].shape)
        shape[dim] = sum(it.shape[dim] for it in parts)
        return self.add("cat", self.value(parts[0].dtype, shape, parts[0].sharded), *parts, self.mesh.ndim + dim)


def element_type(dtype: str) -> str:
    """The name of an element type in the language."""
    if dtype not in ELEMENT_TYPES:
        raise TorchImportError(f"hir has no element type `{dtype}`")
    return ELEMENT_TYPES[dtype]


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def max_extent(extents: Sequence[int]) -> int:
    """The extent of an axis after broadcasting."""
    return next((it for it in extents if it != 1), 1)


def number(value: float) -> str:
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return "nan" if math.isnan(value) else repr(value)


def constant(value: Number, dtype: str) -> Scalar:
    """A constant of an element type."""
    if dtype == "bool":
        return bool(value)
    if is_float(dtype):
        return ("double" if dtype == "float64" else "float", number(float(value)))
    return int(value)


def zero(dtype: str) -> Scalar:
    return constant(0, dtype)


def _named(it: Any) -> Any:
    """What a statement takes, with tensors by their names."""
    if isinstance(it, Value):
        return it.name
    return [_named(each) for each in it] if isinstance(it, list) else it
