"""From the graphs of all ranks to a program."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Sequence

from ._align import BY_RANK, PerRank, align
from ._builder import ELEMENT_TYPES, Builder, Value
from ._by_rank import chosen_by_rank, depends_on_rank, of_each_rank
from ._communicating import WITHOUT_COMMUNICATION, is_called_by_all, registered
from ._equal_groups import check_equal_groups, is_collective
from ._graph import (
    TRANSFERS,
    Argument,
    DifferentRanks,
    Graph,
    Node,
    Other,
    Ref,
    TensorType,
    TorchFaultError,
    TorchImportError,
    TransferOrder,
    Unbound,
    map_argument,
)
from ._mesh import Mesh, mesh_of
from ._order import together
from ._patterns import fused, is_communication
from ._subgraphs import NAMESPACE
from ._streams import STREAMS, Streams, uses_streams
from .operators import (
    ARITHMETIC,
    COMMUNICATIONS,
    ON_HOST,
    OPERATORS,
    PARTS,
    UNORDERED,
    Call,
    Operator,
    arithmetic,
    partition,
    rendezvous,
    takes_complex,
)

#: The ranks of each process group, by name, for each rank.
AllGroups = tuple[dict[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Imported:
    """A program, and how the inputs and outputs of the graphs correspond to its tensors."""

    name: str
    world: int
    #: The mesh of a program that is the same on all ranks; None if each rank has statements of its own.
    mesh: Mesh | None
    text: str
    #: For each line of the text, the line of the Python program from which it comes.
    places: dict[int, str]
    #: The inputs and outputs of each rank: tensors of the program, or values that are no tensors.
    inputs: tuple[tuple[Any, ...], ...]
    outputs: tuple[tuple[Any, ...], ...]
    #: Operators that hir does not know: they are checked, but do not run.
    opaque: tuple[str, ...]
    #: Those of which it does not know whether they communicate.
    unknown: tuple[str, ...]
    #: Names of inputs that the program writes.
    written: tuple[str, ...]
    #: Why the ranks have statements of their own.
    note: str | None = None
    #: Whether the program of all ranks selects streams, so that passes choose none.
    has_streams: bool = False
    #: The communicators of transfers that are in no batch, as the check takes it; None: what is a fault with either is found.
    p2p: str | None = None


@dataclass
class Ports:
    """Inputs and outputs of one graph, as they are found."""

    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)


def import_graphs(graphs: Sequence[Graph], *, each_rank: bool = False) -> Imported:
    """Imports the graphs of all ranks.

    If all ranks execute the same statements, their local tensors become tensors with device axes, and collectives become
    reshardings. Otherwise, or with ``each_rank``, each rank gets its own statements and posts its own communications.
    """
    graphs = sorted(graphs, key=lambda it: it.rank)
    world = graphs[0].world if graphs else 0
    if [it.rank for it in graphs] != list(range(world)):
        raise TorchImportError(f"the graphs are those of the ranks {[it.rank for it in graphs]}, of {world} ranks")
    groups = tuple(dict(it.groups) for it in graphs)
    note = None
    if not each_rank:
        try:
            nodes = align(graphs)
            mesh = mesh_of(world, [partition(groups, *it) for it in named_groups(nodes)])
            # Other orders of the statements are others on their streams.
            return _one_program(graphs[0].name, nodes if uses_streams(nodes) else together(fused(nodes)), mesh, groups)
        except DifferentRanks as error:
            note = str(error)
    check_equal_groups(graphs)
    return _program_of_each_rank(graphs, groups, note)


def _one_program(name: str, nodes: Sequence[Node], mesh: Mesh, groups: AllGroups) -> Imported:
    builder, ports = Builder(mesh), Ports()
    _write(builder, nodes, ports, Call(nodes[0], builder, groups), OPERATORS)
    inputs, outputs = tuple(ports.inputs), tuple(ports.outputs)
    text, places = _finished(name, builder, [inputs], [outputs])
    world = mesh.size
    return Imported(
        name,
        world,
        mesh,
        text,
        places,
        (inputs,) * world,
        (outputs,) * world,
        tuple(builder.opaque),
        tuple(dict.fromkeys(builder.unknown)),
        _written(builder, [inputs]),
        has_streams=uses_streams(nodes),
    )


def has_equal_splits(graph: Graph) -> bool:
    """Whether each all-to-all sends and receives as many elements to and from each rank."""
    exchanges = [node for node in graph.nodes if node.target == "_c10d_functional.all_to_all_single.default"]
    return all(len(set((*(node.args[1] or ()), *(node.args[2] or ())))) <= 1 for node in exchanges)


def _program_of_each_rank(graphs: Sequence[Graph], groups: AllGroups, note: str | None) -> Imported:
    table = {**OPERATORS, **COMMUNICATIONS}
    all_ports = []
    builder = Builder(Mesh(()), equal_splits=all(has_equal_splits(graph) for graph in graphs))
    for graph in graphs:
        # Names of tensors and numbers of communications are those of the whole program.
        builder.use(Mesh((), graph.rank))
        ports = Ports()
        builder.program.begin_rank(graph.rank)
        _write(builder, graph.nodes, ports, Call(graph.nodes[0], builder, groups, graph.rank, graph.orders), table)
        builder.program.end()
        all_ports.append(ports)
    inputs = tuple(tuple(it.inputs) for it in all_ports)
    outputs = tuple(tuple(it.outputs) for it in all_ports)
    name = graphs[0].name
    text, places = _finished(name, builder, inputs, outputs)
    written = _written(builder, inputs)
    unknown = tuple(dict.fromkeys(builder.unknown))
    opaque, p2p = tuple(builder.opaque), communicators_of_transfers(graphs)
    return Imported(name, len(graphs), None, text, places, inputs, outputs, opaque, unknown, written, note, p2p=p2p)


def communicators_of_transfers(graphs: Sequence[Graph]) -> str | None:
    """Whether NCCL has a communicator for each pair of ranks or for all of them, if the graphs say it."""
    transfers = [(graph, node) for graph in graphs for node in graph.nodes if node.target.startswith(TRANSFERS)]
    orders = {graph.orders.get(node.args[-1]) for graph, node in transfers}
    if not orders or None in orders or TransferOrder.PAIR in orders and len(orders) > 1:
        return None
    return "pair" if TransferOrder.PAIR in orders else "communicator"


def _written(builder: Builder, inputs: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """The inputs that statements write."""
    return tuple(it.name for ports in inputs for it in ports if isinstance(it, Value) and it.name in builder.written)


def named_groups(nodes: Sequence[Node]) -> list[tuple[Any, Node]]:
    """The process groups that the collectives of a program name, each with its first collective."""
    found: dict[Any, Node] = {}
    for node in nodes:
        if is_collective(node.target):
            if node.target not in OPERATORS and node.target not in COMMUNICATIONS:
                raise TorchImportError("hir does not know this collective", node)
            found.setdefault(node.args[-1], node)
    return list(found.items())


def _write(builder: Builder, nodes: Sequence[Node], ports: Ports, call: Call, table: dict[str, Operator]) -> None:
    """Writes the statements of a graph."""
    environment: dict[str, Any] = {}
    streams = Streams(builder, nodes, call.rank)
    for node in nodes:
        if node.target not in UNORDERED:
            builder.post_transfers()
        builder.place = node.place
        try:
            if node.op == "output":
                streams.leave()
                ports.outputs += _resolved(node.args[0], environment, node)
            elif node.target.startswith(STREAMS):
                environment[node.name] = None
                streams.call(node)
            else:
                streams.enter(node)
                own = replace(call, node=node)
                environment[node.name] = _statement(builder, node, environment, own, table)
            if node.op == "placeholder":
                ports.inputs.append(environment[node.name])
        except TorchImportError as error:
            raise error if error.node else type(error)(str(error), node) from error


def _statement(builder: Builder, node: Node, environment: dict[str, Any], call: Call, table: dict[str, Operator]) -> Any:
    if node.op == "placeholder":
        return _placeholder(builder, node)
    if node.op == "call_function":
        return _called(builder, node, environment, call, table)
    if node.op != "get_attr":
        raise TorchImportError("hir imports functional graphs: placeholders, calls of operators and an output", node)
    if node.result is None:
        return None  # A mesh, a process group or another object: the graph says what depends on it.
    if node.elements is None:
        return _opaque(call, node, (), {}, "hir imports only tensors of up to 4096 elements as constants; pass it as an argument")
    return builder.constant(node.elements, node.result.shape, node.result.dtype)


def _placeholder(builder: Builder, node: Node) -> Any:
    """An input: every rank has a tensor of its own."""
    if isinstance(node.result, TensorType):
        if node.result.dtype not in ELEMENT_TYPES:
            builder.opaque.append(f"an input with elements of `{node.result.dtype}`")
        return builder.value(node.result.dtype, node.result.shape, [True] * builder.mesh.ndim)
    return node.result


def _called(builder: Builder, node: Node, environment: dict[str, Any], call: Call, table: dict[str, Operator]) -> Any:
    args = _resolved(node.args, environment, node)
    kwargs = {name: _resolved(it, environment, node) for name, it in node.kwargs.items()}
    if node.target == "_operator.getitem":
        if isinstance(args[1], PerRank):
            return of_each_rank(call, [args[0][it] for it in args[1].values])
        # Some operators do not say what all their results are.
        return args[0][args[1]] if isinstance(args[0], tuple) else _opaque(call, node, args, kwargs)
    if node.target == BY_RANK:
        return of_each_rank(call, args[0])
    if node.target.startswith(("_operator.", "math.", "aten.sym_")):
        if node.target in ARITHMETIC and any(isinstance(it, Value) for it in args):
            return arithmetic(call, args)
        # Arithmetic on sizes, which have the values of the example.
        return node.result
    if node.target not in table and "_copy." in node.target:
        # A copy of a view: values do not change.
        node = replace(node, target=node.target.replace("_copy.", "."))
    if node.target not in ON_HOST:
        map_argument((node.result, args, tuple(kwargs.values())), partial(_check_bound, node))
    if node.target not in table:
        return _opaque(call, node, args, kwargs)
    reason = _unsupported(node, (args, tuple(kwargs.values())))
    if reason and not is_communication(node):
        return _opaque(call, node, args, kwargs, reason)
    if is_communication(node) and depends_on_rank(args[:-1]):
        raise DifferentRanks("the ranks call it with different arguments", node)
    entry, before = table[node.target], builder.program.mark()
    try:
        if entry.by_rank or not depends_on_rank((args, kwargs)):
            result = entry.rule(call, *args, **kwargs)
        else:
            result = chosen_by_rank(call, entry.rule, args, kwargs)
        _compare(node, result)
        return result
    except (DifferentRanks, TorchFaultError):
        raise
    except TorchImportError as error:
        reason = error.reason
    except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError) as error:
        others = [it.text for it in args if isinstance(it, Other)]
        reason = f"hir does not know the argument `{others[0]}`" if others else f"hir does not know these arguments: {error}"
    if is_communication(node):
        raise TorchImportError(reason, node)
    builder.program.back_to(before)
    return _opaque(call, node, args, kwargs, reason)


def _unsupported(node: Node, operands: Any) -> str | None:
    """Why the rule of an operator does not take the types of its elements."""
    found: list[str] = []
    map_argument((operands, node.result), lambda it: found.append(it.dtype) if isinstance(it, (Value, TensorType)) else None)
    unknown = next((it for it in found if it not in ELEMENT_TYPES), None)
    if unknown:
        return f"hir has no element type `{unknown}`"
    is_complex = any(it in PARTS for it in found) and not takes_complex(node.target)
    return "hir does not know it for complex numbers" if is_complex else None


def _check_bound(node: Node, it: Argument) -> None:
    if isinstance(it, Unbound):
        raise TorchImportError(f"the size or number `{it.size}` depends on values of tensors; hir needs it before a run", node)


def _resolved(argument: Argument, environment: dict[str, Any], node: Node) -> Any:
    def value(it: Argument) -> Any:
        if not isinstance(it, Ref):
            return it
        if it.name not in environment:
            raise TorchImportError(f"the graph does not define `{it.name}`", node)
        return environment[it.name]

    return map_argument(argument, value)


def _compare(node: Node, result: Any) -> None:
    """Compares what a rule made with what the graph says about the result."""
    results = result if isinstance(result, tuple) else (result,)
    types = node.result if isinstance(node.result, tuple) else (node.result,)
    for value, expected in zip(results, types):
        if isinstance(value, Value) and isinstance(expected, TensorType):
            if (value.shape, value.dtype) != (expected.shape, expected.dtype):
                raise TorchImportError(
                    f"hir computes {value.dtype}{list(value.shape)}, but the graph has {expected.dtype}{list(expected.shape)}",
                    node,
                )


def _opaque(call: Call, node: Node, args: Any, kwargs: dict[str, Any], reason: str | None = None) -> Any:
    """A call that hir does not know: it reads its tensors and writes its results. It is checked, but does not run."""
    builder = call.to
    if node.target in COMMUNICATIONS:
        raise DifferentRanks("each rank posts its own transfers", node)
    if is_collective(node.target):
        raise TorchImportError("hir does not know this collective", node)
    if node.op == "call_function" and is_called_by_all(node.target) is not False:
        _wait_for_callers(call, node, (*args, *kwargs.values()))
    operands: list[Value] = []
    map_argument((args, tuple(kwargs.values())), lambda it: operands.append(it) if isinstance(it, Value) else None)
    written: list[Value] = []

    def allocated(it: Argument) -> Argument:
        if not isinstance(it, TensorType):
            return it
        written.append(builder.allocate(builder.value(it.dtype, it.shape, [True] * builder.mesh.ndim)))
        return written[-1]

    result = map_argument(node.result, allocated)
    if operands or written:
        builder.add("LaunchKernel", None, Inputs=operands, Outputs=written, **{"Group ID": len(builder.opaque)})
    name = node.target.removesuffix(WITHOUT_COMMUNICATION)
    builder.opaque.append(f"{node.place or 'unknown line'}: `{name}`" + (f" ({reason})" if reason else ""))
    return result


def _wait_for_callers(call: Call, node: Node, args: Sequence[Any]) -> None:
    """The ranks that call an operator without a rule wait for each other, if hir knows them."""
    called, known, groups = is_called_by_all(node.target), registered(node.target), call.groups[call.rank]
    if called and call.to.mesh.shape:
        raise DifferentRanks("each rank posts its own communication", node)
    position = None if known is None else known[1]
    teams = [groups[it] for it in (args if position is None else args[position : position + 1]) if isinstance(it, str) and it in groups]
    if known is not None and position is None:
        teams = [tuple(range(len(call.groups)))]
    if called and teams:
        rendezvous(call, teams[-1])
    else:
        reason = f"{'which ranks call it' if called else 'whether it communicates'} (`hir.torch.register_operator` says it)"
        if node.target.startswith(NAMESPACE):
            reason = "how often each rank calls what communicates in it"
        name = node.target.removesuffix(".default")
        call.to.unknown.append(f"{node.place or 'unknown line'}: `{name}`: hir does not know {reason}")


def _finished(
    name: str, builder: Builder, inputs: Sequence[Sequence[Any]], outputs: Sequence[Sequence[Any]]
) -> tuple[str, dict[int, str]]:
    """The text of the program, and the places of its lines."""
    names = [it.name for ports in inputs for it in ports if isinstance(it, Value)]
    # An input is an output only if the program writes it.
    results = [*_written(builder, inputs)]
    results += [it.name for ports in outputs for it in ports if isinstance(it, Value) and it.name not in names]
    text = f"// {name}: imported from PyTorch\n{builder.program.finish(names, list(dict.fromkeys(results)))}"
    return text, places_of(text)


def places_of(text: str) -> dict[int, str]:
    """The lines of the Python program behind those of a text."""
    comments = [line.partition("  // ") for line in text.splitlines()]
    return {number: place for number, (before, _, place) in enumerate(comments, 1) if before and place}
