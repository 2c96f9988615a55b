"""Layers of a model that are equal: PyTorch traces one of each class, and calls its graph for the others."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any, Callable, Iterator

#: As many layers of a class have one graph. Of fewer, a graph that is called costs more than it saves.
FEWEST = 4


@contextlib.contextmanager
def marked(function: Callable[..., Any], mark: Callable[[Any], Any] | None) -> Iterator[bool]:
    """Changes the functions of modules that stand several times in a list of modules, and returns whether there are any."""
    kinds = {kind for model in _models(function) for kind in _repeated(model)} if mark else set()
    forwards = {kind: kind.forward for kind in kinds}
    try:
        for kind, forward in forwards.items():
            kind.forward = mark(forward) if mark else forward
        yield bool(kinds)
    finally:
        for kind, forward in forwards.items():
            kind.forward = forward


def traced_once(function: Callable[..., Any]) -> contextlib.AbstractContextManager[bool]:
    """Lets PyTorch trace such modules once. It compares what a trace depends on, and traces a module again that differs."""
    import torch

    return marked(function, getattr(torch.compiler, "nested_compile_region", None))


def with_bodies(module: Any) -> Any:
    """Writes the bodies of marked layers where a graph of Dynamo calls them, in place: PyTorch loses the placements of DTensors in calls."""
    import torch

    graph, called = module.graph, torch.ops.higher_order.invoke_subgraph
    for node in graph.find_nodes(op="call_function", target=called):
        body = with_bodies(getattr(module, node.args[0].target)).graph
        if body.find_nodes(op="get_attr"):
            raise NotImplementedError("a layer with constants")
        values = dict(zip(body.find_nodes(op="placeholder"), node.args[2:]))
        with graph.inserting_before(node):
            results = graph.graph_copy(body, values)
        for item in list(node.users):
            item.replace_all_uses_with(results[item.args[1]])
            graph.erase_node(item)
        graph.erase_node(node)
    module.recompile()
    return module


def _models(function: Any) -> Iterator[Any]:
    import torch

    cells = (it.cell_contents for it in getattr(function, "__closure__", None) or () if it != type(it)())
    for it in (function, getattr(function, "__self__", None), *cells):
        if isinstance(it, torch.nn.Module):
            yield it


def _repeated(model: Any) -> Iterator[Any]:
    import torch

    for it in model.modules():
        if isinstance(it, (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)):
            kinds = Counter(type(child) for child in it.children())
            yield from (kind for kind, count in kinds.items() if count >= FEWEST and not kind.__module__.startswith("torch."))
