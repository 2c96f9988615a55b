"""Graphs that were recorded in files: JSON of the schema ``fx-json/1``, one file for each rank."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Mapping

from ._graph import Argument, DType, Graph, Node, Other, Ref, TensorType, TorchImportError, Unbound

SCHEMA = "fx-json/1"


def read_recorded(path: str | os.PathLike[str], rank: int | None = None) -> Graph:
    """Reads the graph of one rank. ``rank`` replaces the rank of a file that stands for several ranks."""
    return recorded_graph(json.loads(Path(path).read_text(encoding="utf-8")), rank)


def recorded_graph(recorded: Mapping[str, Any], rank: int | None = None) -> Graph:
    """Returns the graph that a decoded file contains."""
    if recorded.get("schema") != SCHEMA:
        raise TorchImportError(f"the schema of the file is {recorded.get('schema')!r}, not {SCHEMA!r}")
    return Graph(
        name=recorded["name"],
        rank=recorded["rank"] if rank is None else rank,
        world=recorded["world"],
        nodes=tuple(_node(it) for it in recorded["nodes"]),
        groups={name: tuple(group["ranks"]) for name, group in recorded["groups"].items()},
        piece=recorded.get("piece"),
        orders={name: group["order"] for name, group in recorded["groups"].items() if "order" in group},
    )


def _node(it: Mapping[str, Any]) -> Node:
    return Node(
        name=it["name"],
        op=it["op"],
        target=it["target"],
        args=tuple(_argument(argument) for argument in it["args"]),
        kwargs={name: _argument(argument) for name, argument in it["kwargs"].items()},
        result=_result(it.get("val")),
        place=it.get("loc"),
        stream=it.get("stream"),
        elements=_argument(it.get("elements")),
    )


def _argument(it: Any) -> Argument:
    if isinstance(it, list):
        return tuple(_argument(element) for element in it)
    if not isinstance(it, dict):
        return it
    [(kind, value), *_] = it.items()
    if kind == "node":
        return Ref(value)
    if kind == "tuple":
        return tuple(_argument(element) for element in value)
    if kind == "dtype":
        return DType(value)
    if kind == "float":
        return float(value)
    if kind == "group":
        return value
    if kind == "sym":
        return _bound(it)
    if kind == "slice":
        return slice(*(_argument(element) for element in value))
    return Other(json.dumps(it))


def _bound(symbol: Mapping[str, Any]) -> int:
    """Returns the value that a symbolic size has in the example."""
    hint = symbol.get("hint")
    if not isinstance(hint, int):
        raise TorchImportError(f"the size `{symbol['sym']}` has no value in the example")
    return hint


def _result(it: Any) -> Any:
    if isinstance(it, list):
        return tuple(_result(element) for element in it)
    if not isinstance(it, dict):
        return it
    if "shape" in it:
        sizes = (_bound(size) if isinstance(size, dict) else size for size in it["shape"])
        return TensorType(tuple(sizes), it["dtype"])
    if "sym" in it:
        return _bound(it)
    return Unbound(it["unbound"]) if "unbound" in it else None


def to_recorded(graph: Graph) -> dict[str, Any]:
    """Returns what a file of the graph contains."""
    return {
        "schema": SCHEMA,
        "name": graph.name,
        "rank": graph.rank,
        "world": graph.world,
        "groups": {
            name: {"ranks": list(ranks), **({"order": graph.orders[name]} if name in graph.orders else {})}
            for name, ranks in graph.groups.items()
        },
        **({"piece": graph.piece} if graph.piece else {}),
        "nodes": [
            {
                "name": node.name,
                "op": node.op,
                "target": node.target,
                "args": [_to_json(it) for it in node.args],
                "kwargs": {name: _to_json(it) for name, it in node.kwargs.items()},
                "val": _result_to_json(node.result),
                **({"loc": node.place} if node.place else {}),
                **({} if node.stream is None else {"stream": node.stream}),
                **({} if node.elements is None else {"elements": _to_json(node.elements)}),
            }
            for node in graph.nodes
        ],
    }


def _to_json(it: Argument) -> Any:
    if isinstance(it, Ref):
        return {"node": it.name}
    if isinstance(it, DType):
        return {"dtype": it.name}
    if isinstance(it, Other):
        return {"other": it.text}
    if isinstance(it, tuple):
        return {"tuple": [_to_json(element) for element in it]}
    if isinstance(it, slice):
        return {"slice": [_to_json(element) for element in (it.start, it.stop, it.step)]}
    if isinstance(it, float) and not math.isfinite(it):
        return {"float": str(it)}
    return it


def _result_to_json(it: Any) -> Any:
    if isinstance(it, tuple):
        return [_result_to_json(element) for element in it]
    if isinstance(it, Unbound):
        return {"unbound": it.size}
    return {"shape": list(it.shape), "dtype": it.dtype} if isinstance(it, TensorType) else it
