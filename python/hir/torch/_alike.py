"""What the calls of a layer depend on, to find layers that make equal calls."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement

#: A layer that refers to more objects, such as the whole model, is equal to none.
MOST_OBJECTS = 4096
_VALUES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, Placement)
#: What is equal to itself only.
_SINGLE = (type, types.ModuleType, types.BuiltinFunctionType, DeviceMesh, torch.distributed.ProcessGroup)


class UnknownObjectError(Exception):
    """A layer refers to something that is not compared."""


class Walk:
    """The objects to which some objects refer, as a value that is equal for equal ones. ``tensors`` are those that it meets."""

    def __init__(self, *ignored: Any) -> None:
        self.tensors: list[Any] = []
        #: In the order of their first use; they stay alive, so that no other object gets their addresses.
        self._objects: dict[int, tuple[int, Any]] = {id(it): (-1, it) for it in ignored}

    def of(self, it: Any) -> Any:
        if isinstance(it, _VALUES):
            return type(it), repr(it)
        if id(it) in self._objects:
            return self._objects[id(it)][0]
        self._objects[id(it)] = len(self._objects), it
        if len(self._objects) > MOST_OBJECTS:
            raise UnknownObjectError
        return id(type(it)), *self._parts(it)

    def _parts(self, it: Any) -> tuple[Any, ...]:
        if isinstance(it, torch.Tensor):
            self.tensors.append(it)
            places = str(getattr(it, "placements", "")), id(getattr(it, "device_mesh", None))
            return it.shape, it.stride(), it.dtype, it.device, it.requires_grad, it.is_leaf, *places
        if isinstance(it, types.FunctionType):
            cells = [cell.cell_contents for cell in it.__closure__ or () if cell != types.CellType()]
            read = [it.__globals__.get(name) for name in it.__code__.co_names]
            state = [value for value in read if isinstance(value, (*_VALUES, list, dict))]
            return id(it.__code__), *map(self.of, (it.__defaults__, it.__kwdefaults__, *cells, *state))
        if isinstance(it, types.MethodType):
            return self.of(it.__func__), self.of(it.__self__)
        if isinstance(it, functools.partial):
            return tuple(map(self.of, (it.func, *it.args, it.keywords)))
        if isinstance(it, (list, tuple)):
            return tuple(map(self.of, it))
        if isinstance(it, (set, frozenset)):
            return tuple(sorted(repr(self.of(value)) for value in it))
        if isinstance(it, OrderedDict) and all(isinstance(key, int) for key in it):
            return tuple(map(self.of, it.values()))  # Hooks, by numbers that count all hooks.
        if isinstance(it, dict):
            return tuple((self.of(key), self.of(value)) for key, value in it.items())
        if isinstance(it, _SINGLE):
            return (id(it),)
        if not hasattr(it, "__dict__"):
            raise UnknownObjectError
        own = [kind for kind in type(it).__mro__ if not kind.__module__.startswith(("torch.", "builtins"))]
        functions = [value for kind in own for value in vars(kind).values() if isinstance(value, types.FunctionType)]
        return self.of(vars(it)), *map(self.of, functions)
