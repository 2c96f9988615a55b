"""What hir does not run: another backend of ``torch.compile`` compiles it."""

from __future__ import annotations

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from typing import Any, Callable, Sequence

from ._graph import TRANSFERS
from ._pairing import busy

#: A name of a backend, or a backend.
Backend = str | Callable[..., Any]


class LeftToPyTorch(Exception):
    """Ends a compilation by hir. The message is the reason."""


def copied(module: Any) -> Any:
    """Returns another graph with the same parameters and attributes."""
    import torch

    own = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    own.meta.update(module.meta)
    return own


def compiled(module: Any, inputs: Sequence[Any], backend: Backend) -> Callable[..., Any]:
    """Compiles a graph of Dynamo, or one of AOTAutograd, which has no gradients. If the backend fails, PyTorch runs the graph, with the reason.

    The backend gets another graph, because backends change graphs.
    """
    import torch

    compiler = torch._dynamo.lookup_backend(backend)
    try:
        with busy():
            result: Callable[..., Any] = compiler(copied(module), inputs)
        return result
    except Exception as error:
        name = backend if isinstance(backend, str) else getattr(backend, "__name__", "fallback")
        first = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(f"PyTorch runs the graph without a compiler: the backend `{name}` fails: {first}", stacklevel=2)
        forward: Callable[..., Any] = module.forward
        return forward


class Piece:
    """A graph of AOTAutograd, which is compiled when it runs for the first time."""

    def __init__(self, module: Any, backend: Backend) -> None:
        self._module, self._backend = module, backend
        self._run: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        import torch

        if self._run is None:
            # Compilers may move or remove transfers, whose results nothing needs.
            as_it_is = any(str(node.target).startswith(TRANSFERS) for node in self._module.graph.nodes)
            self._run = self._module.forward if as_it_is else self._compiled(args)
        with torch.no_grad():
            return self._run(*args)

    def _compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        """Compiles the graph in a thread: in this one, AOTAutograd has switched operators of compilers off."""
        import torch

        device = next((it.device for it in args if getattr(it, "is_cuda", False)), None)

        def work() -> Callable[..., Any]:
            with torch.no_grad(), torch.cuda.device(device) if device else nullcontext():
                return compiled(self._module, args, self._backend)

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(copy_context().run, work).result()
