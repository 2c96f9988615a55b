"""Ranks whose graphs are equal, found without a capture: what their functions call is equal, on tensors without values."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ._alike import UnknownObjectError, Walk
from ._layers import marked


class _UnknownError(Exception):
    """Something is called that is not compared."""


@dataclass(frozen=True)
class Calls:
    """What a function calls on a rank."""

    #: The operators with their arguments and results. Tensors are numbers, in the order of their first use, with their types.
    calls: list[Any]
    #: The tensors that the function is given, in the order of their first use.
    given: list[Any]

    def inputs_as(self, other: Calls, inputs: Sequence[Any]) -> list[Any] | None:
        """Returns the inputs of the graph of this rank, for those of an equal rank. None if the ranks are not equal, or if some are not found."""
        if self.calls != other.calls:
            return None
        own = {_identity(theirs): ours for theirs, ours in zip(other.given, self.given)}
        found = [own.get(_identity(it)) if isinstance(it, torch.Tensor) else it for it in inputs]
        return None if any(it is None for it in found) else found


def calls_of(function: Callable[..., Any], args: Sequence[Any], direction: str) -> Calls | None:
    """Runs a function without values. None if it needs them, or calls what is not compared."""
    recorder = _Recorder()
    try:
        with torch.compiler.set_stance("force_eager"), FakeTensorMode(allow_non_fake_inputs=True):
            # DTensor computes shapes with operators, and keeps them for the next run.
            _run(function, args, direction, _Recorder())
            _run(function, args, direction, recorder)
    except Exception:  # Whatever a function of the user raises, its capture says it.
        return None
    return Calls(recorder.calls, recorder.given)


def _run(function: Callable[..., Any], args: Sequence[Any], direction: str, recorder: _Recorder) -> None:
    with marked(function, recorder.once), recorder:
        results, structure = pytree.tree_flatten(function(*args))
        recorder.calls.append((str(structure), [recorder.token(it) for it in results]))
        if direction == "backward":
            wanted = [it.sum() for it in results if isinstance(it, torch.Tensor) and it.requires_grad]
            leaves = [it for it in recorder.given if it.requires_grad and it.is_leaf]
            torch.autograd.grad(wanted, leaves, [torch.ones_like(it) for it in wanted], allow_unused=True)


def _storage(tensor: Any) -> int:
    return int(getattr(tensor, "_local_tensor", tensor).untyped_storage()._cdata)


def _identity(tensor: Any) -> tuple[Any, ...]:
    """What is equal for tensors that show the same elements of one storage."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.given: list[Any] = []
        self._numbers: dict[Any, int] = {}
        #: Layers that have run: their numbers and results.
        self._layers: dict[Any, tuple[int, list[Any], Any]] = {}
        #: While they live, no other tensor has their identity.
        self._tensors: list[Any] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(it not in (torch.Tensor, torch.nn.Parameter, FakeTensor) for it in types):
            # Its class calls others on local tensors.
            return NotImplemented
        if isinstance(operator, HigherOrderOperator):
            raise _UnknownError
        is_constant = operator is torch.ops.aten.lift_fresh.default
        before = args[0].tolist() if is_constant else [self.token(it) for it in pytree.tree_leaves((args, kwargs))]
        result = operator(*args, **(kwargs or {}))
        self.calls.append((operator, before, [self.token(it) for it in pytree.tree_leaves(result)]))
        return result

    def once(self, forward: Any) -> Any:
        """Makes the function of a layer one that runs once for layers that call the same: the others have copies of its results."""

        @functools.wraps(forward)
        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            walk = Walk(self, run)
            try:
                key = walk.of((torch.is_grad_enabled(), torch.is_autocast_enabled(), forward, module, args, kwargs))
            except UnknownObjectError:
                return forward(module, *args, **kwargs)
            if key in self._layers:
                number, leaves, structure = self._layers[key]
                self.calls.append((number, [self.token(it) for it in walk.tensors]))
                return pytree.tree_unflatten([it.clone() if isinstance(it, torch.Tensor) else it for it in leaves], structure)
            result = forward(module, *args, **kwargs)
            leaves, structure = pytree.tree_flatten(result)
            given = {_storage(it) for it in walk.tensors}
            if all(isinstance(it, FakeTensor) and _storage(it) not in given for it in leaves):
                self._layers[key] = len(self._layers), leaves, structure
            return result

        return run

    def token(self, it: Any) -> Any:
        """What is equal on equal ranks."""
        if isinstance(it, torch.Tensor):
            it = getattr(it, "_local_tensor", it)
            identity = _identity(it)
            if identity not in self._numbers:
                self._numbers[identity] = len(self._numbers)
                self._tensors.append(it)
                if not isinstance(it, FakeTensor):
                    self.given.append(it)
            return self._numbers[identity], tuple(it.shape), it.dtype, it.requires_grad
        if isinstance(it, torch.distributed.ProcessGroup):
            return it.group_name
        if it is None or isinstance(it, (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return repr(it)
        raise _UnknownError
