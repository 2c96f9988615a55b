"""The program as PyTorch runs it, for the check: each call on its stream, with its copies, writes in place, waits and frees.

hir's own program computes the same, but a copy may be a name for its operand, memory is its own, and waits stand where hir needs them. Here,
every call is a kernel that reads its tensors and writes its results and what its schema says that it writes. A tensor is freed behind the
last call that mentions it or a view of it, as AOTAutograd's graphs free values.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any, Iterator, Sequence

from ._builder import ELEMENT_TYPES, Builder, Value
from ._equal_groups import is_collective
from ._graph import TRANSFERS, Graph, Node, Ref, TensorType, TorchImportError, map_argument, references
from ._import import has_equal_splits, places_of
from ._mesh import Mesh
from ._streams import STREAMS, Streams, uses_streams
from .operators import COMMUNICATIONS, UNORDERED, Call
from .operators._host import READS

#: Calls whose result is the storage of their first argument, although the schema does not say so.
VIEWS = ("aten._unsafe_view.default", "aten.lift_fresh.default", "_c10d_functional.wait_tensor.default")
#: What shows its first argument, if PyTorch is not there to say it.
NAMED_VIEWS = (
    *("alias", "as_strided", "chunk", "detach", "diagonal", "expand", "narrow", "permute", "reshape", "select", "slice", "split"),
    *("split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view"),
)
#: Collectives that copy their operand on the current stream, and then work in place.
COPYING = ("_c10d_functional.all_reduce.default", "_c10d_functional.broadcast.default")
#: Calls that only allocate.
EMPTY = ("aten.empty.", "aten.empty_like.", "aten.empty_strided.", "aten.new_empty.", "aten.new_empty_strided.")


def differs(graphs: Sequence[Graph]) -> bool:
    """Whether PyTorch may have faults that hir's own program does not have: with streams, or with uses of a result before the wait for it."""
    return any(uses_streams(graph.nodes) or _uses_early(graph) for graph in graphs)


def _uses_early(graph: Graph) -> bool:
    pending: dict[str, set[str]] = {}
    for node in graph.nodes:
        used = set(references(node))
        if node.target.startswith("_c10d_functional.wait_tensor"):
            used = {name for work in used for name in pending.pop(work, ())} - used
        if any(name in pending for name in used) or node.op == "output" and pending:
            return True
        written = {it.name for it in _written_arguments(node) if isinstance(it, Ref)} if pending else set()
        if any(written & operands for operands in pending.values()):
            return True
        if is_collective(node.target):
            pending[node.name] = set(references(node))
    return False


def program(graphs: Sequence[Graph]) -> tuple[str, dict[int, str]]:
    """The text of the program of all ranks, and the line of the Python program of each of its lines."""
    builder = Builder(Mesh(()), equal_splits=all(has_equal_splits(graph) for graph in graphs))
    groups = tuple(dict(graph.groups) for graph in graphs)
    inputs: list[str] = []
    outputs: list[str] = []
    for graph in graphs:
        builder.use(Mesh((), graph.rank))
        builder.program.begin_rank(graph.rank)
        writer = _Writer(builder, graph, Call(graph.nodes[0], builder, groups, graph.rank, graph.orders))
        writer.write()
        builder.program.end()
        inputs += writer.inputs
        outputs += [it for it in writer.outputs if it not in inputs]
    outputs += [name for name in inputs if name in builder.written]
    text = f"// {graphs[0].name}: as PyTorch runs it\n{builder.program.finish(inputs, list(dict.fromkeys(outputs)))}"
    return text, places_of(text)


class _Writer:
    """Writes the statements of one rank."""

    def __init__(self, builder: Builder, graph: Graph, call: Call) -> None:
        self._to, self._nodes, self._call = builder, graph.nodes, call
        self._streams = Streams(builder, graph.nodes, graph.rank)
        self._types = {node.name: node.result for node in graph.nodes}
        self._environment: dict[str, Any] = {}
        #: The number of names for each storage.
        self._mentions: Counter[str] = Counter()
        self._views = {node.name for node in graph.nodes if _is_view(node)}
        #: The views that do not show each element of their storage once.
        self._partial: set[str] = set()
        self._kernels = 0
        self.inputs: list[str] = []
        self.outputs: list[str] = []

    def write(self) -> None:
        last = {name: at for at, node in enumerate(self._nodes) for name in (node.name, *references(node))}
        for at, node in enumerate(self._nodes):
            self._to.place = node.place
            if node.target not in UNORDERED:
                self._to.post_transfers()
            try:
                value = self._environment[node.name] = self._node(node)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise TorchImportError(f"hir does not know these arguments: {error}", node) from error
            self._mentions.update({it.name for it in _values(value)})
            if node.op != "output":
                self._free([name for name in dict.fromkeys((node.name, *references(node))) if last[name] == at])

    def _free(self, ended: Sequence[str]) -> None:
        """Frees the storage that no later call mentions."""
        for name in ended:
            for storage in dict.fromkeys(it.name for it in _values(self._environment[name])):
                self._mentions[storage] -= 1
                if not self._mentions[storage] and storage not in self.inputs:
                    self._to.add("Deallocate", None, storage)

    def _node(self, node: Node) -> Any:
        if node.op == "placeholder":
            value = self._value(node.result)
            self.inputs += [it.name for it in _values(value)]
            return value
        if node.op == "output":
            self._streams.leave()
            self.outputs += [it.name for arg in self._args(node.args) for it in _values(arg)]
            return None
        if node.target.startswith(STREAMS):
            return self._stream(node)
        self._streams.enter(node)
        args = self._args(node.args)
        if node.target == "_operator.getitem":
            return args[0][args[1]] if isinstance(args[0], tuple) else args[0]
        if node.target in READS:
            self._to.add("Synchronize", None, target="host")
            return node.result
        if node.target in COMMUNICATIONS:
            return self._communication(node, args)
        if is_collective(node.target):
            raise TorchImportError("hir does not know this collective", node)
        views = list(_values(args)) if node.name in self._views else []
        if views and not self._copies(node):
            if _elements(node.result) != math.prod(views[0].shape):
                self._partial.add(node.name)
            return tuple(views[0] for _ in node.result) if isinstance(node.result, tuple) else views[0]
        return self._kernel(node, args)

    def _copies(self, node: Node) -> bool:
        """Whether `contiguous` copies: what a call computes is contiguous, and what a view shows may not be."""
        return node.target.startswith("aten.contiguous") and next(references(node), None) in self._views

    def _kernel(self, node: Node, args: Any) -> Any:
        """A call that reads its tensors, and writes its results and what it changes in place."""
        given = (args, tuple(self._args(tuple(node.kwargs.values()))))
        changed = [it.name for it in _written_arguments(node) if isinstance(it, Ref) and it.name not in self._partial]
        written = [it for name in changed for it in _values(self._environment[name])]
        if written and node.result is not None and not isinstance(node.result, tuple):
            result: Any = written[0]
        else:
            result = self._value(node.result)
            new = [self._to.allocate(it) for it in _values(result)]
            written += [] if node.target.startswith(EMPTY) else new
        self._to.written += [it.name for it in written if it.name in self.inputs]
        if written:
            self._launch(list(_values(given)), written)
        return result

    def _launch(self, operands: list[Value], written: list[Value]) -> None:
        inputs, outputs = (list(dict.fromkeys(it.name for it in all)) for all in (operands, written))
        self._to.add("LaunchKernel", None, Inputs=inputs, Outputs=outputs, **{"Group ID": self._kernels})
        self._kernels += 1

    def _communication(self, node: Node, args: Any) -> Any:
        own, temporary = replace(self._call, node=node), []
        if not node.target.startswith(("_c10d_functional.wait_tensor", *TRANSFERS)):
            value = args[0]
            is_partial = next(references(node)) in self._partial
            if isinstance(value, Value) and (node.target in COPYING or is_partial):
                operand = self._to.allocate(self._value(self._types[next(references(node))]))
                self._launch([value], [operand])
                args = (operand, *args[1:])
                temporary = [operand]
        if node.target.startswith("_c10d_functional.all_to_all_single"):
            # A storage has one axis.
            shape = self._types[next(references(node))].shape
            row = math.prod(shape[1:])
            args = (args[0], *(splits and tuple(it * row for it in splits) for splits in args[1:3]), *args[3:])
        result = COMMUNICATIONS[node.target].rule(own, *args, **node.kwargs)
        # A division after the sum is NCCL's.
        self._to.averages.clear()
        for it in temporary:
            self._to.add("Deallocate", None, it.name)
        return result

    def _stream(self, node: Node) -> None:
        if node.target.startswith("streams.record_stream"):
            tensor, stream = self._args(node.args)
            for it in _values(tensor):
                self._streams.record(it.name, stream)
            return
        self._streams.call(node)

    def _args(self, args: Any) -> Any:
        return map_argument(args, lambda it: self._environment[it.name] if isinstance(it, Ref) else it)

    def _value(self, result: Any) -> Any:
        """New tensors of the types of a result, each with one axis."""
        if isinstance(result, tuple):
            return tuple(self._value(it) for it in result)
        if not isinstance(result, TensorType):
            return result
        dtype = result.dtype if result.dtype in ELEMENT_TYPES else "uint8"
        return self._to.value(dtype, (math.prod(result.shape),), ())


def _values(it: Any) -> Iterator[Value]:
    """The tensors of an argument or a result."""
    if isinstance(it, Value):
        yield it
    elif isinstance(it, (tuple, list)):
        for each in it:
            yield from _values(each)
    elif hasattr(it, "parts"):
        yield from it.parts


def _elements(result: Any) -> int:
    return math.prod(result.shape) if isinstance(result, TensorType) else -1


@cache
def _schema(target: str) -> Any:
    """The schema of an operator; None if PyTorch does not have it."""
    try:
        import torch

        namespace, name, overload = target.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema
    except (ImportError, ValueError, AttributeError, RuntimeError):
        return None


def _is_view(node: Node) -> bool:
    if node.target in VIEWS or node.target.startswith("aten.contiguous"):
        return True
    if node.op != "call_function":
        return False
    schema = _schema(node.target)
    if schema is None:
        return node.target.startswith("aten.") and node.target.split(".")[1] in NAMED_VIEWS
    return any(it.alias_info is not None and not it.alias_info.is_write for it in schema.returns)


def _written_arguments(node: Node) -> list[Any]:
    """The arguments that a call writes in place."""
    schema = _schema(node.target) if node.op == "call_function" else None
    if schema is None:
        return list(node.args[:1]) if f".{node.target}.".split(".")[2].endswith("_") else []
    written: list[Any] = []
    for at, it in enumerate(schema.arguments):
        if it.alias_info is not None and it.alias_info.is_write:
            given = node.kwargs.get(it.name, node.args[at] if at < len(node.args) else None)
            written += given if isinstance(given, tuple) else [given]
    return written
