"""Runs a program in one process and records its tensors: of modules by hooks, gradients and parameters around the steps of optimizers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from typing import Any, Callable, Iterator, Sequence

import torch
import torch.nn.functional
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils import _pytree as pytree

from ..job._stacks import kind_of
from ._entry import Entry, Key, Layout, Record

#: Modules that wrap another one, which is under this name: they have no name of their own.
WRAPPERS = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod")

#: Functions that drop elements at random. Masks of several ranks are not parts of one, so they are off.
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def call_builder(build: Callable[..., Any], rank: int, ranks: int) -> tuple[list[nn.Module], Callable[[], Any]]:
    """Calls the function of the user. It returns a model, or several, and the step or the inputs of the model."""
    wanted = [it for it in inspect.signature(build).parameters.values() if it.kind <= it.POSITIONAL_OR_KEYWORD and it.default is it.empty]
    result = build(*(rank, ranks)[: len(wanted)])
    name = getattr(build, "__qualname__", "the function")
    if not (isinstance(result, tuple) and len(result) == 2):
        raise TypeError(f"{name} has to return (model, step) or (model, inputs), not {type(result).__name__}")
    models, step = result
    models = list(models) if isinstance(models, (list, tuple)) else [models]
    if not all(isinstance(it, nn.Module) for it in models):
        raise TypeError(f"{name} has to return a torch.nn.Module, or a list of them, first, not {type(models[0]).__name__ if models else 'nothing'}")
    if callable(step):
        return models, step
    inputs = step if isinstance(step, (list, tuple)) else (step,)

    def call() -> Any:
        result = models[0](*inputs)
        if isinstance(result, torch.Tensor) and result.numel() == 1 and result.requires_grad:
            result.backward()
        return result

    return models, call


def _walk(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yields modules with names that do not depend on wrappers."""
    children = dict(module.named_children())
    wrapped = "module" if isinstance(module, nn.parallel.DistributedDataParallel) else next((it for it in WRAPPERS if it in children), None)
    if wrapped is not None:
        yield from _walk(children[wrapped], name)
        return
    yield name, module
    for child, it in children.items():
        yield from _walk(it, f"{name}.{child}" if name else child)


def layout_of(tensor: Any) -> Layout:
    from torch.distributed.tensor import Partial
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements
    text = ", ".join(map(str, placements))
    coordinate = mesh.get_coordinate()
    shape, offsets = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    unknown = None if coordinate is not None else "this rank is not in its mesh"
    partials = [it for it in placements if it.is_partial()]
    partial = None
    if partials and coordinate is not None:
        if any(type(it) is not Partial for it in partials) or len({it.reduce_op for it in partials}) > 1:
            unknown = f"its placements are {text}"
        peers = mesh.mesh[tuple(slice(None) if it.is_partial() else at for it, at in zip(placements, coordinate))]
        partial = (getattr(partials[0], "reduce_op", "sum"), tuple(int(it) for it in peers.flatten()))
    if tuple(shape) != tuple(tensor.to_local().shape):
        unknown = f"its local shape is {tuple(tensor.to_local().shape)}, which is not that of {text} of {tuple(tensor.shape)}"
    return Layout(tuple(tensor.shape), tuple(offsets), text, partial, unknown)


def _is_dtensor(tensor: Any) -> bool:
    return type(tensor).__name__ == "DTensor" or hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


class Recorder:
    """Records the step of one process. ``noise``: multiplies parameters and results of modules by 1 ± noise, at random."""

    def __init__(self, models: Sequence[nn.Module], noise: float = 0.0) -> None:
        self.record = Record()
        self._models = models
        self._noise = noise
        self._generator = torch.Generator().manual_seed(1)
        self._calls: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        #: The number of the first use of each parameter, and its line.
        self._uses: dict[str, tuple[int, str]] = {}
        self._hooked: dict[int, Any] = {}
        self._depth = self._step = 0
        self._handles: list[Any] = []
        for model in models:
            for name, module in _walk(model, ""):
                self.record.modules.add(name)
                self._handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
                self._handles.append(module.register_forward_hook(self._after(name)))
        self._handles.append(optimizers.register_optimizer_step_pre_hook(self._before_step))
        self._handles.append(optimizers.register_optimizer_step_post_hook(self._after_step))

    def run(self, step: Callable[[], Any]) -> Record:
        for name, parameter in self._parameters():
            if self._noise and parameter.is_floating_point():
                self._disturb(parameter.data.to_local() if _is_dtensor(parameter) else parameter.data)
            self._add(Key("parameter", name), parameter, "")
        self._values = {name: it.detach().clone() for name, it in self._parameters()}
        before = torch.random.get_rng_state()
        with _without_dropout(self.record):
            result = step()
        after = torch.random.get_rng_state()
        self.record.random, self.record.is_random = after.numpy().tobytes(), not torch.equal(before, after)
        self._add_gradients([it for it in self._parameters() if it[0] not in self._steps and it[1].grad is not None], "")
        self._add_outputs(result, _place(step))
        for name, parameter in self._parameters():
            # An optimizer that is none of PyTorch's.
            before = self._values[name]
            if not self._step and before.shape == parameter.shape and not _is_equal(before, parameter):
                self._add(Key("update", name), parameter.detach() - before, "")
        for handle in self._handles:
            handle.remove()
        return self.record

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        for model in self._models:
            for name, module in _walk(model, ""):
                for own, parameter in module._parameters.items():
                    if parameter is not None:
                        yield f"{name}.{own}" if name else own, parameter

    def _add(self, key: Key, value: Any, place: str) -> None:
        layout = None
        if value is not None:
            value = value.detach()
            if value.is_floating_point():
                self.record.types.add(str(value.dtype).removeprefix("torch."))
            if _is_dtensor(value):
                layout, value = layout_of(value), value.to_local()
            value = (torch.view_as_real(value.resolve_conj()) if value.is_complex() else value).clone().cpu()
        self.record.entries.append(Entry(key, place or self._place_of(key), value, layout, self._step))

    def _place_of(self, key: Key) -> str:
        return self._uses.get(key.name, (0, ""))[1]

    def _disturb(self, tensor: Any) -> Any:
        """Multiplies each element by 1 + noise or 1 - noise."""
        signs = torch.randint(0, 2, tensor.shape, generator=self._generator) * 2 - 1
        return tensor.mul_(1 + self._noise * signs.to(tensor.dtype))

    def _add_outputs(self, result: Any, place: str) -> None:
        """Adds what the step returns: what has a gradient, such as the loss, is before the last gradients."""
        entries = self.record.entries
        last = max(self._step - 1, 0)
        first = next((at for at, it in enumerate(entries) if it.key.kind == "gradient" and it.step == last), len(entries))
        for path, value in pytree.tree_flatten_with_path(result)[0]:
            if isinstance(value, (torch.Tensor, float)):
                name = ".".join(str(getattr(it, "key", getattr(it, "idx", it))) for it in path)
                self._add(Key("output", name or "loss"), torch.as_tensor(value), place)
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    entries.insert(first, entries.pop())

    # Modules.

    def _before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if _is_backward() or _is_virtual((args, kwargs)):
                return
            place = _place(type(module).forward)
            for own, parameter in module._parameters.items():
                key = f"{name}.{own}" if name else own
                if parameter is None:
                    continue
                self._uses.setdefault(key, (len(self._uses), place))
                if parameter.requires_grad and torch.is_grad_enabled() and id(parameter) not in self._hooked:
                    self._hooked[id(parameter)] = parameter
                    parameter.register_hook(functools.partial(self._add_own, key))
            if not name:
                tensors = [it for it in pytree.tree_leaves((args, kwargs)) if isinstance(it, torch.Tensor)]
                for index, it in enumerate(tensors):
                    self._add(Key("input", name, self._calls.get(name, -1) + 1, index), it, place)

        return hook

    def _after(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, result: Any) -> Any:
            # A checkpoint runs modules again; others run them for the shapes.
            if _is_backward() or _is_virtual((args, result)):
                return None
            number = self._calls[name] = self._calls.get(name, -1) + 1
            if self._noise:
                result = pytree.tree_map(lambda it: self._disturbed(it), result)
            tensors = [it for it in pytree.tree_leaves(result) if isinstance(it, torch.Tensor) and (it.is_floating_point() or it.is_complex())]
            place = _place(type(module).forward)
            for index, it in enumerate(tensors):
                self._add(Key("forward", name, number, index), it, place)
            return result if self._noise else None

        return hook

    def _disturbed(self, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or _is_dtensor(tensor):
            return tensor
        result = tensor * self._disturb(torch.ones(tensor.shape, dtype=tensor.dtype))
        if result.requires_grad:
            result.register_hook(lambda gradient: self._disturb(gradient.clone()))
        return result

    def _add_own(self, name: str, gradient: Any) -> None:
        value = gradient.detach()
        value = (value.to_local() if _is_dtensor(value) else value).clone().float()
        key = (name, self._steps.get(name, 0))
        found = self.record.own.get(key)
        self.record.own[key] = value if found is None or found.shape != value.shape else found + value

    # Optimizers.

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._add_gradients(self._stepped(optimizer), _place())

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._step += 1
            place = _place()
            for name, parameter in self._stepped(optimizer):
                value = parameter.detach().clone()
                before = self._values.get(name)
                if before is not None and before.shape == value.shape:
                    self._add(Key("update", name, self._steps[name]), value - before, place)
                self._values[name] = value
                self._steps[name] += 1

    def _stepped(self, optimizer: Any) -> list[tuple[str, Any]]:
        stepped = {id(it) for group in optimizer.param_groups for it in group["params"]}
        return [it for it in self._parameters() if id(it[1]) in stepped]

    def _add_gradients(self, parameters: Sequence[tuple[str, Any]], place: str) -> None:
        # Those of the last modules come first, as they are computed.
        for name, parameter in sorted(parameters, key=lambda it: -self._uses.get(it[0], (-1, ""))[0]):
            step = self._steps.setdefault(name, 0)
            self._add(Key("gradient", name, step), parameter.grad, self._uses.get(name, (0, place))[1])


def _is_equal(one: Any, other: Any) -> bool:
    one, other = ((it.to_local() if _is_dtensor(it) else it) for it in (one, other))
    return bool(torch.equal(one, other))


def _is_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _is_virtual(value: Any) -> bool:
    return any(isinstance(it, torch.Tensor) and (it.is_meta or type(it).__name__ == "FakeTensor") for it in pytree.tree_leaves(value))


def _place(function: Any = None) -> str:
    """Returns the innermost line of the program on the stack, or else that of a function."""
    frame = sys._getframe(1)
    while frame is not None and kind_of(frame.f_code) != "run":
        if kind_of(frame.f_code) == "script":
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


@contextlib.contextmanager
def _without_dropout(record: Record) -> Iterator[None]:
    """Turns dropout off, and notes that a program has it."""
    functional = torch.nn.functional
    saved = {name: getattr(functional, name) for name in (*DROPOUTS, "scaled_dot_product_attention")}

    def identity(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        record.has_dropout |= bool(training and p)
        return input

    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **options: Any) -> Any:
        record.has_dropout |= bool(dropout_p)
        return saved["scaled_dot_product_attention"](query, key, value, attn_mask, 0.0, *args, **options)

    for name in saved:
        setattr(functional, name, identity if name in DROPOUTS else attend)
    try:
        yield
    finally:
        for name, function in saved.items():
            setattr(functional, name, function)
