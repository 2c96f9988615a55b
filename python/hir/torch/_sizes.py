"""Graphs with symbolic sizes: each combination of sizes that a run has is compiled as a graph of its own."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Callable

from ._fallback import Backend, compiled

#: After so many combinations, another backend compiles the graph for all sizes.
MOST_SIZES = 16


def has_symbolic_sizes(module: Any) -> bool:
    import torch

    def is_symbolic(it: Any) -> bool:
        sizes = it.shape if isinstance(it, torch.Tensor) else (it,)
        return any(isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) for size in sizes)

    return any(is_symbolic(node.meta.get("val")) for node in module.graph.nodes if node.op == "placeholder")


class BySizes:
    """A graph with symbolic sizes. ``compile_graph`` compiles one without, and returns what runs it."""

    def __init__(self, module: Any, compile_graph: Callable[[Any], Callable[..., Any]], backend: Backend) -> None:
        self._module, self._compile, self._backend = module, compile_graph, backend
        self._known: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._for_all: Callable[..., Any] | None = None

    def run(self, *args: Any) -> Any:
        sizes = tuple(tuple(it.shape) if hasattr(it, "shape") else it for it in args)
        if sizes not in self._known and len(self._known) < MOST_SIZES:
            self._known[sizes] = self._compile(with_sizes(self._module, args))
        if sizes in self._known:
            return self._known[sizes](*args)
        if self._for_all is None:
            warnings.warn(f"PyTorch runs the graph: it has been called with more than {MOST_SIZES} sizes", stacklevel=2)
            inputs = [node.meta["val"] for node in self._module.graph.nodes if node.op == "placeholder"]
            self._for_all = compiled(self._module, inputs, self._backend)
        return self._for_all(*args)


def with_sizes(module: Any, args: tuple[Any, ...]) -> Any:
    """The graph with the sizes of these arguments."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    result = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(it, static_shapes=True) if isinstance(it, torch.Tensor) else it for it in args]
    FakeTensorProp(result, mode).propagate_dont_convert_inputs(*fakes)
    return result
