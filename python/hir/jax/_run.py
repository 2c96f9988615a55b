"""Runs a module in XLA on the devices of this process, and in hir, with the same whole inputs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

from .. import _hir
from .._diagnostic import HirError
from .._program import Program
from ._module import Module

#: An output: the parts that devices have, with their places in the whole.
Parts = list[tuple[int, tuple[slice, ...], np.ndarray]]


def in_xla(module: Module, inputs: Sequence[np.ndarray]) -> list[Parts]:
    """What XLA computes on each device."""
    jax = importlib.import_module("jax")
    xla_client = importlib.import_module("jaxlib.xla_client")

    count, devices = module.devices, jax.devices()
    if len(devices) < count:
        raise HirError(f"the module needs {count} devices, and JAX has {len(devices)}: set XLA_FLAGS=--xla_force_host_platform_device_count={count}")
    devices = devices[:count]
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    options.num_partitions = build.num_partitions = count
    options.num_replicas = build.num_replicas = 1
    build.use_spmd_partitioning = build.use_shardy_partitioner = count > 1
    build.device_assignment = xla_client.DeviceAssignment.create(np.arange(count).reshape(1, count))
    try:
        compiled = devices[0].client.compile_and_load(module.text.encode(), xla_client.DeviceList(tuple(devices)), options)
        classes = importlib.import_module("jax.sharding")
        mesh = classes.Mesh(np.array(devices).reshape(module.mesh), [str(it) for it in range(len(module.mesh))])
        # XLA chooses shardings where the module leaves them open.
        of_inputs, of_outputs = compiled.get_parameter_shardings(), compiled.get_output_shardings()
        arguments = [jax.device_put(it, _sharding(of_inputs and of_inputs[at], mesh, it.ndim)) for at, it in enumerate(inputs)]
        found = compiled.execute_sharded(arguments).disassemble_into_single_device_arrays()
    except RuntimeError as error:
        raise HirError(f"XLA does not run the module: {error}") from None
    results = []
    for number, shards in enumerate(found):
        sharding = _sharding(of_outputs and of_outputs[number], mesh, shards[0].ndim)
        spans = [int(np.prod([mesh.shape[name] for name in axes or ()], dtype=int)) for axes in sharding.spec]
        whole = tuple(extent * span for extent, span in zip(shards[0].shape, spans))
        places = sharding.devices_indices_map(whole)
        results.append([(at, places[device], np.asarray(value)) for at, (device, value) in enumerate(zip(devices, shards))])
    return results


def _sharding(proto: Any, mesh: Any, rank: int) -> Any:
    """The sharding of an argument or output over the axes of the mesh, whose devices are in order."""
    classes, xla_client = (importlib.import_module(it) for it in ("jax.sharding", "jaxlib.xla_client"))
    found = xla_client.HloSharding.from_proto(proto) if proto else None
    spec: list[tuple[str, ...] | None] = [None] * rank
    if found is not None and not (found.is_replicated() or found.is_maximal()):
        tiles = np.array(found.tile_assignment_devices()).reshape(found.tile_assignment_dimensions())
        for dim in range(rank):
            row = np.moveaxis(tiles, dim, 0).reshape(tiles.shape[dim], -1)[:, 0]
            places = np.unravel_index(row, mesh.devices.shape)
            # Of the axes along a dimension, the one whose coordinate changes last is the outermost.
            changes = [(int(np.argmax(it != it[0])), axis) for axis, it in zip(mesh.axis_names, places) if (it != it[0]).any()]
            spec[dim] = tuple(axis for _, axis in sorted(changes, reverse=True)) or None
    return classes.NamedSharding(mesh, classes.PartitionSpec(*spec))


def in_hir(module: Module, inputs: Sequence[np.ndarray], passes: str) -> list[np.ndarray]:
    """The whole outputs that hir computes after passes.

    Raises `HirError` where hir does not read or run the module.
    """
    program = Program(_hir.read(module.text, "<jax>", None, [])[0])
    program = program.run_passes(passes) if passes else program
    found = program.simulate({port.name: value for port, value in zip(program.inputs, inputs)}, ranks=module.devices)
    return [_as_complex(found[port.name], type) for port, type in zip(program.outputs, module.output_types())]


def _as_complex(value: np.ndarray, type: str) -> np.ndarray:
    """Pairs of floats as complex numbers."""
    if not type.startswith("complex"):
        return value
    return np.ascontiguousarray(value).view(np.complex64 if value.dtype == np.float32 else np.complex128)[..., 0]


@dataclass(frozen=True)
class Element:
    """An element that differs."""

    device: int
    index: tuple[int, ...]
    xla: Any
    hir: Any
    #: How many numbers of the type lie between them; `None` for others than floats, and for NaN and infinities.
    ulp: int | None
    #: How many elements of the device differ.
    count: int

    def __str__(self) -> str:
        ulp = "" if self.ulp is None else f", {self.ulp} ulp apart"
        more = f"; {self.count} elements of this device differ" if self.count > 1 else ""
        return f"device {self.device}, element {list(self.index)}: {self.xla} in XLA, {self.hir} in hir{ulp}{more}"


def first_difference(parts: Parts, whole: np.ndarray, rtol: float | None) -> Element | None:
    """The first element that differs by more than rounding.

    Integers have to be equal. Floats may differ by `rtol` of the larger of the element and the root mean square of the tensor; the default is
    the square root of the type's epsilon, since XLA adds in another order and has other functions.
    """
    wide = np.asarray(whole, dtype=np.complex128 if whole.dtype.kind == "c" else np.float64) if _is_real(whole) else None
    for device, place, value in parts:
        own = whole[place]
        if value.shape != own.shape:
            raise HirError(f"device {device} has the shape {value.shape} in XLA, and {own.shape} in hir")
        if wide is None:
            differs = value != own
        else:
            finite = np.abs(wide[np.isfinite(wide)])
            scale = float(np.sqrt((finite**2).mean())) if finite.size else 0.0
            tolerance = rtol if rtol is not None else _epsilon(whole) ** 0.5
            a, b = value.astype(wide.dtype), wide[place]
            with np.errstate(invalid="ignore"):
                near = np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= tolerance * np.maximum(np.abs(b), scale))
            differs = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
        if differs.any():
            at = tuple(int(it) for it in np.argwhere(differs)[0]) if differs.ndim else ()
            index = tuple(it + (part.start or 0) for it, part in zip(at, place)) if place else at
            return Element(device, index, value[at], own[at], _ulp(value[at], own[at]), int(differs.sum()))
    return None


def _is_real(value: np.ndarray) -> bool:
    return value.dtype.kind in "fc" or value.dtype.name.startswith(("bfloat", "float8"))


def _epsilon(value: np.ndarray) -> float:
    import ml_dtypes

    epsilon: Any = ml_dtypes.finfo(value.real.dtype).eps  # type: ignore[no-untyped-call]
    return float(epsilon)


def _ulp(a: Any, b: Any) -> int | None:
    if a.dtype.kind == "c" or not _is_real(a) or not (np.isfinite(float(a)) and np.isfinite(float(b))):
        return None
    bits = [int(np.asarray(it).view(f"int{8 * it.dtype.itemsize}")) for it in (a, b)]
    lowest = -1 << (8 * a.dtype.itemsize - 1)
    # Negative floats are ordered from the other end.
    ordered = [it if it >= 0 else lowest - it for it in bits]
    distance: int = abs(ordered[0] - ordered[1])
    return distance
