"""Writes Host IR: tensors of the ranks' local values, and statements with the lines of the Python program."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Sequence, Union

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
    "uint8": "uint8_t",
    "uint64": "uint64_t",
    "bool": "bool",
}


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
    #: The text of each axis.
    axes: tuple[str, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)


Number = Union[bool, int, float]
#: What an elementwise operator takes.
Operand = Union[Value, PerRank, Number]


@dataclass
class Builder:
    """The text of a program under construction."""

    mesh: Mesh
    #: The line of the Python program to which new statements belong.
    place: str | None = None
    declarations: list[str] = field(default_factory=list)
    statements: list[tuple[str, str | None]] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    #: The posted communication that writes or reads a tensor, by the name of the tensor.
    posted: dict[str, int] = field(default_factory=dict)
    #: Transfers to and from single ranks that are posted next, with their numbers.
    transfers: list[tuple[int, str]] = field(default_factory=list)
    #: The number for which a transfer of a group is awaited.
    group_of: dict[int, int] = field(default_factory=dict)
    #: The numbers for which the program has waited. A group of transfers ends as a whole.
    awaited: set[int] = field(default_factory=set)
    #: The number of ranks by which a sum has to be divided when it is complete, by the name of the tensor.
    averages: dict[str, int] = field(default_factory=dict)
    communications: list[int] = field(default_factory=list)
    #: Whether each all-to-all of each rank has equal splits. Otherwise, all of them are groups of transfers.
    equal_splits: bool = True
    #: Names of tensors that a statement writes in place.
    written: list[str] = field(default_factory=list)

    def mark(self) -> tuple[int, int, int]:
        """What is written so far, for ``back_to``."""
        return len(self.declarations), len(self.statements), len(self.domains)

    def back_to(self, mark: tuple[int, int, int]) -> None:
        """Takes back what an operator has written before it was found to be unknown."""
        del self.declarations[mark[0] :], self.statements[mark[1] :], self.domains[mark[2] :]

    # -- tensors -------------------------------------------------------------------------------------------------------

    def mesh_axis(self, dim: int, sharded: bool, number: int | None = None, kind: str = "i") -> str:
        number = dim if number is None else number
        if not sharded:
            return f"bS{number}{{1}}"
        return f"{kind}{self.mesh.parallel_type(dim)}{number}{{{self.mesh.shape[dim]}}}"

    def local_axis(self, extent: int, number: int) -> str:
        return f"bS{number}{{1}}" if extent == 1 else f"iS{number}{{{extent}}}"

    def axes(self, shape: Sequence[int], sharded: Sequence[bool]) -> list[str]:
        """The axes of a local tensor, numbered by position."""
        axes = [self.mesh_axis(dim, it) for dim, it in enumerate(sharded)]
        return axes + [self.local_axis(extent, self.mesh.ndim + i) for i, extent in enumerate(shape)]

    def declare(self, dtype: str, axes: Sequence[str], domain: str | None = None) -> str:
        """Declares a tensor with any axes and returns its name."""
        if dtype not in ELEMENT_TYPES:
            raise TorchImportError(f"hir has no element type `{dtype}`")
        name = f"T{len(self.declarations)}"
        self.declarations.append(f"{name}_g_{ELEMENT_TYPES[dtype]}[{', '.join(axes)}] {self.mesh.text}")
        if domain is not None:
            self.domains.append(f"{name}: {domain}")
        return name

    def value(self, dtype: str, shape: Sequence[int], sharded: Sequence[bool], axes: Sequence[str] | None = None) -> Value:
        """Declares a local tensor. ``axes`` are its axes without those that its statement reduces."""
        plain = self.axes(shape, sharded)
        name = self.declare(dtype, axes or plain)
        kept = [it for it in axes if not it.startswith("r")] if axes else plain
        return Value(name, dtype, tuple(shape), tuple(sharded), tuple(kept))

    def like(self, value: Value, dtype: str | None = None) -> Value:
        return self.value(dtype or value.dtype, value.shape, value.sharded)

    def statement(self, text: str) -> None:
        self.statements.append((text, self.place))

    def new_communication(self) -> int:
        """The number of a communication that is posted next."""
        self.communications.append(len(self.communications))
        return self.communications[-1]

    def post_transfers(self) -> None:
        """Posts transfers between which nothing was computed. No order is promised among them, so they are one group."""
        if len(self.transfers) == 1:
            self.statement(self.transfers[0][1])
        elif self.transfers:
            self.statement("StartCoalescing")
            for _, text in self.transfers:
                self.statement(text)
            group = self.new_communication()
            self.group_of |= {number: group for number, _ in self.transfers}
            self.statement(f"EndCoalescing {group}")
        self.transfers.clear()

    def wait(self, communication: int) -> None:
        self.post_transfers()
        number = self.group_of.get(communication, communication)
        if number not in self.awaited:
            self.awaited.add(number)
            self.statement(f"Wait(Communication {number})")

    # -- operators that every rule needs -------------------------------------------------------------------------------

    def elementwise(self, spelling: str, operands: Sequence[Operand], dtype: str) -> Value:
        """Applies an elementwise operator, ``{} + {}``, with broadcasting as in PyTorch."""
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
        texts = [aligned[it].name if isinstance(it, Value) else self.scalar(it, tensors[0].dtype) for it in operands]
        result = self.value(dtype, shape, sharded)
        self.statement(f"{result.name} = {spelling.format(*texts)};")
        return result

    def scalar(self, value: PerRank | Number, dtype: str) -> str:
        """The text of a constant, as an operand next to a tensor of the given type."""
        if isinstance(value, PerRank):
            text = self.scalar(value.values[-1], dtype)
            for rank in reversed(range(len(value.values) - 1)):
                text = f"where(( rank == {rank} ), {self.scalar(value.values[rank], dtype)}, {text})"
            return text
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int) and not is_float(dtype):
            return str(value)
        return f"double({number(float(value))})"

    def convert(self, value: Value, dtype: str) -> Value:
        """Converts the elements, if their type is another one."""
        if value.dtype == dtype:
            return value
        if dtype == "bool":
            return self.elementwise("{} != {}", [value, 0], "bool")
        if dtype == "uint8" and is_float(value.dtype):
            # As in PyTorch, -1.0 becomes 255.
            return self.convert(self.convert(value, "int64"), dtype)
        return self.elementwise(f"__to_{ELEMENT_TYPES[dtype].removeprefix('__')}({{}})", [value], dtype)

    def with_ndim(self, value: Value, ndim: int) -> Value:
        """Adds axes of extent 1 before those of the local tensor."""
        return self.insert_axes(value, range(ndim - value.ndim)) if value.ndim < ndim else value

    def insert_axes(self, value: Value, dims: Sequence[int]) -> Value:
        """Adds axes of extent 1. ``dims`` are their positions in the result."""
        shape = list(value.shape)
        for dim in sorted(dims):
            shape.insert(dim, 1)
        result = self.value(value.dtype, shape, value.sharded)
        self.broadcast(value.name, result, [self.mesh.ndim + dim for dim in dims])
        return result

    def broadcast(self, name: str, result: Value, new: Sequence[int]) -> None:
        """Writes a result that has more axes of extent 1 than a tensor, at the given positions among all axes."""
        flags = ", ".join(word(i in new) for i in range(self.mesh.ndim + result.ndim))
        self.statement(f"{result.name} = broadcast( {name}, flags = {{{flags}}} )")

    def squeeze(self, value: Value, dims: Sequence[int]) -> Value:
        """Removes axes of extent 1."""
        removed = set(dims)
        if not removed:
            return value
        shape = [extent for dim, extent in enumerate(value.shape) if dim not in removed]
        result = self.value(value.dtype, shape, value.sharded)
        flags = [False] * self.mesh.ndim + [dim in removed for dim in range(value.ndim)]
        self.statement(f"{result.name} = squeeze( {value.name}, flags = {{{', '.join(map(word, flags))}}} )")
        return result

    def expand(self, value: Value, shape: Sequence[int], sharded: Sequence[bool] | None = None) -> Value:
        """Repeats axes of extent 1, also those of the mesh."""
        value = self.with_ndim(value, len(shape))
        sharded = value.sharded if sharded is None else tuple(sharded)
        if value.shape == tuple(shape) and value.sharded == tuple(sharded):
            return value
        result = self.value(value.dtype, shape, sharded)
        self.statement(f"{result.name} = expand( {value.name} )")
        return result

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
        result = self.value(value.dtype, shape, value.sharded)
        self.statement(f"{result.name} = reshape( {value.name} )")
        return result

    def permute(self, value: Value, order: Sequence[int]) -> Value:
        """Moves axes: axis ``i`` of the result is axis ``order[i]`` of the operand."""
        if list(order) == list(range(value.ndim)):
            return value
        shape = [value.shape[dim] for dim in order]
        first = self.mesh.ndim
        axes = [self.mesh_axis(dim, it) for dim, it in enumerate(value.sharded)]
        axes += [self.local_axis(value.shape[dim], first + dim) for dim in order]
        result = self.value(value.dtype, shape, value.sharded, axes)
        self.statement(f"{result.name} = Set.Permute( {value.name} )")
        return result

    def reduce(self, value: Value, op: str, initial: str, dims: Sequence[int], keepdim: bool = False) -> Value:
        """Reduces axes of the local tensor."""
        summed = [dim for dim in dims if value.shape[dim] != 1]
        single = [dim for dim in dims if value.shape[dim] == 1]
        result = value
        if summed:
            axes = self.axes(value.shape, value.sharded)
            for dim in summed:
                axes[self.mesh.ndim + dim] = "r" + axes[self.mesh.ndim + dim][1:]
            shape = [extent for dim, extent in enumerate(value.shape) if dim not in summed]
            result = self.value(value.dtype, shape, value.sharded, axes)
            self.statement(
                f"{result.name} = reduction( {value.name}, op = {op}, initial value = {initial}, allreduce = false )"
            )
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
        summed = f"rS{len(axes)}{{{a.shape[-1]}}}"
        result = self.value(a.dtype, shape, sharded, [*axes, summed])
        self.statement(f"{result.name} = matmul({a.name}, {b.name})")
        return result

    def full(self, shape: Sequence[int], fill: Number, dtype: str) -> Value:
        """A constant tensor, the same on all ranks."""
        result = self.value(dtype, shape, [False] * self.mesh.ndim)
        extents = ", ".join(str(it) for it in (*[1] * self.mesh.ndim, *shape))
        self.statement(f"{result.name} = full({{{extents}}}, {constant(fill, dtype)});")
        return result

    def constant(self, elements: tuple[object, ...], shape: Sequence[int], dtype: str) -> Value:
        """A tensor of the given elements, in row-major order; elements may differ between ranks."""
        first = self.mesh.ndim
        differ = any(isinstance(it, PerRank) for it in elements)
        # With different elements, row `r` has those of rank `r`.
        ranks = range(self.mesh.size if differ else 1)
        rows = [[it.values[r] if isinstance(it, PerRank) else it for it in elements] for r in ranks]
        texts = [self.scalar(it, dtype) for row in rows for it in row if isinstance(it, (bool, int, float))]
        flat = self.declare(dtype, [self.local_axis(len(texts), 0)])
        self.statement(f"{flat} = TensorConstruct({{{', '.join(texts)}}})")
        extents = (*self.mesh.shape, *shape) if differ else shape
        whole = self.declare(dtype, [self.local_axis(extent, i) for i, extent in enumerate(extents)])
        self.statement(f"{whole} = reshape( {flat} )")
        result = self.value(dtype, shape, [differ] * first)
        if differ:
            self.statement(f"{result.name} = Set( {whole} )")
        else:
            self.broadcast(whole, result, range(first))
        return result

    def iota(self, extent: int, start: int = 0, step: int = 1, dtype: str = "int64") -> Value:
        """An arithmetic progression, the same on all ranks."""
        name = self.declare(dtype, [self.local_axis(extent, 0)])
        self.statement(f"{name} = iota({extent}, {start}, {step}, {ELEMENT_TYPES[dtype]});")
        result = self.value(dtype, [extent], [False] * self.mesh.ndim)
        self.broadcast(name, result, range(self.mesh.ndim))
        return result

    def slice(self, value: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
        """Selects a range of an axis."""
        if (start, stop, step) == (0, value.shape[dim], 1):
            return value
        shape = list(value.shape)
        shape[dim] = max(0, -(-(stop - start) // step))
        extents = [self.mesh.shape[d] if it else 1 for d, it in enumerate(value.sharded)]
        ranges = [f"{{0, {it}, 1}}" for it in (*extents, *value.shape)]
        ranges[self.mesh.ndim + dim] = f"{{{start}, {stop}, {step}}}"
        result = self.value(value.dtype, shape, value.sharded)
        self.statement(f"{result.name} = slice( {value.name}, {{ {' '.join(ranges)} }} )")
        return result

    def select(self, value: Value, dim: int, index: int) -> Value:
        """Selects one index of an axis."""
        shape = [extent for d, extent in enumerate(value.shape) if d != dim]
        axis = value.axes[self.mesh.ndim + dim]
        if value.shape[dim] == 1:
            return self.squeeze(value, [dim])
        result = self.value(value.dtype, shape, value.sharded)
        self.statement(f"{result.name} = select( {value.name}, axis = {axis}, index = {index} )")
        return result

    def cat(self, values: Sequence[Value], dim: int) -> Value:
        """Concatenates along an axis."""
        if len(values) == 1:
            return values[0]
        parts = self.with_equal_sharding(values)
        shape = list(parts[0].shape)
        shape[dim] = sum(it.shape[dim] for it in parts)
        result = self.value(parts[0].dtype, shape, parts[0].sharded)
        names = ", ".join(it.name for it in parts)
        self.statement(f"{result.name} = cat( {names}, {self.mesh.ndim + dim} )")
        return result


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def max_extent(extents: Sequence[int]) -> int:
    """The extent of an axis after broadcasting."""
    return next((it for it in extents if it != 1), 1)


def number(value: float) -> str:
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return "nan" if math.isnan(value) else repr(value)


def constant(value: Number, dtype: str) -> str:
    """The text of a constant of an element type."""
    if dtype == "bool":
        return word(bool(value))
    if is_float(dtype):
        return f"{'double' if dtype == 'float64' else 'float'}({number(float(value))})"
    return str(int(value))


def zero(dtype: str) -> str:
    return constant(0, dtype)


def word(flag: bool) -> str:
    return "true" if flag else "false"
