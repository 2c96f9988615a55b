"""Modules of StableHLO as JAX writes them, and parts of them: what comes before an operation, and what follows it."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

from .._diagnostic import HirError

#: The name of a mesh, its axes, and an order of its devices.
_MESH = re.compile(r'sdy\.mesh @(\w+) = <\[([^\]]*)\](, device_ids=\[[\d, ]*\])?>')


def _ir() -> Any:
    """MLIR, as JAX has it."""
    return importlib.import_module("jax.extend.mlir.ir")


def _context() -> Any:
    """What modules of JAX are parsed in."""
    jax = importlib.import_module("jax")
    return jax.jit(lambda: 0.0).lower().compiler_ir().context


class Module:
    """A module whose main function is a list of operations."""

    def __init__(self, text: str) -> None:
        ir = _ir()
        self.text = text
        self._context = _context()
        with self._context:
            try:
                self._module = ir.Module.parse(text)
            except ir.MLIRError as error:
                raise HirError(f"JAX cannot read the module: {error}") from None
        found = re.search(r"mhlo\.num_partitions = (\d+)", text)
        self.devices = int(found[1]) if found else 1
        meshes = _MESH.findall(text)
        if len({it[1] for it in meshes}) > 1 or any(it[2] for it in meshes) or "mhlo.sharding" in text or self.devices > 1 and not meshes:
            raise HirError("the module does not have one mesh of Shardy whose devices are in order: verify reads no other shardings")
        #: The extents of the axes of the mesh.
        self.mesh = [int(it) for it in re.findall(r'"=(\d+)', meshes[0][1])] if meshes else [1]
        self._mesh_name = meshes[0][0] if meshes else ""

    @property
    def _block(self) -> Any:
        return _main(self._module).regions[0].blocks[0]

    def operations(self) -> list[Operation]:
        """The operations of the main function, but its return."""
        all = [it.operation for it in self._block.operations]
        number = {_key(it): at for at, it in enumerate(all)}
        return [
            Operation(str(it).split("\n")[0].strip(), tuple(_origins(it, number)))
            for it in all[:-1]
        ]

    def returned(self) -> list[tuple[int, int]]:
        """The operation of each output and its result; an argument is the operation -1 with its number."""
        all = [it.operation for it in self._block.operations]
        number = {_key(it): at for at, it in enumerate(all)}
        return [_origin(it, number) for it in all[-1].operands]

    def types(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and element type of each argument."""
        if other := next((it for it in self._block.arguments if not hasattr(it.type, "element_type")), None):
            raise HirError(f"verify makes no inputs of the type {other.type}")
        return [(tuple(it.type.shape), str(it.type.element_type)) for it in self._block.arguments]

    def output_types(self) -> list[str]:
        """The element type of each output."""
        return [str(it.type.element_type) for it in list(self._block.operations)[-1].operation.operands]

    def before(self, operation: int) -> Module:
        """The module that returns, whole on each device, what an operation computes."""
        all = list(self._block.operations)
        return self.returning([(operation, number) for number in range(len(all[operation].operation.results))])

    def returning(self, wanted: Sequence[tuple[int, int]]) -> Module:
        """The module that returns these results of operations, whole on each device, without the operations behind them."""
        ir = _ir()
        module = Module(self.text)
        with module._context, ir.Location.unknown():
            main, block = _main(module._module), module._block
            all = list(block.operations)
            results = [all[operation].operation.results[number] for operation, number in wanted]
            for it in reversed(all[max((it[0] for it in wanted), default=-1) + 1 :]):
                it.operation.erase()
            with ir.InsertionPoint(block):
                ir.Operation.create("func.return", operands=results)
            module._set_type(main, [it.type for it in block.arguments], [it.type for it in results])
            main.attributes["res_attrs"] = ir.ArrayAttr.get([module._whole(it.type) for it in results])
            return Module(str(module._module))

    def behind(self, operation: int) -> tuple[Module, list[tuple[int, int]]]:
        """The module that takes what earlier operations compute as further arguments, whole on each device; and which results these are."""
        ir = _ir()
        module = Module(self.text)
        with module._context, ir.Location.unknown():
            main, block = _main(module._module), module._block
            all = list(block.operations)
            has_attributes = "arg_attrs" in main.attributes
            arguments = list(main.attributes["arg_attrs"]) if has_attributes else [ir.DictAttr.get({}) for _ in block.arguments]
            known: list[tuple[int, int]] = []
            for at, it in enumerate(all[:operation]):
                for number, result in enumerate(it.operation.results):
                    known.append((at, number))
                    arguments.append(module._whole(result.type))
                    result.replace_all_uses_with(block.add_argument(result.type, ir.Location.unknown()))
            for it in reversed(all[:operation]):
                it.operation.erase()
            main.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)
            outputs = [it.type for it in list(block.operations)[-1].operation.operands]
            module._set_type(main, [it.type for it in block.arguments], outputs)
            return Module(str(module._module)), known

    def unsharded(self) -> Module | None:
        """The module on one device; `None` if a part of it says what each device does."""
        ir = _ir()
        if "sdy.manual_computation" in self.text:
            return None
        module = Module(self.text)
        with module._context:
            for it in list(module._module.body.operations):
                if it.operation.name == "sdy.mesh":
                    it.operation.erase()
                else:
                    _without_shardings(it.operation)
            module._module.operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1)
            return Module(str(module._module))

    def _set_type(self, main: Any, inputs: list[Any], outputs: list[Any]) -> None:
        ir = _ir()
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, outputs))

    def _whole(self, type: Any) -> Any:
        ir = _ir()
        # A token has no shape.
        if not self._mesh_name or not hasattr(type, "shape"):
            return ir.DictAttr.get({})
        axes = ", ".join(["{}"] * len(type.shape))
        return ir.DictAttr.get({"sdy.sharding": ir.Attribute.parse(f"#sdy.sharding<@{self._mesh_name}, [{axes}]>")})


@dataclass(frozen=True)
class Operation:
    """An operation of the main function."""

    text: str
    #: The operations whose results it reads, also in its regions.
    reads: tuple[int, ...]


def _main(module: Any) -> Any:
    found = [it for it in module.body.operations if it.operation.name == "func.func" and it.attributes["sym_name"].value == "main"]
    if not found:
        raise HirError("the module has no function `main`")
    return found[0]


def _key(operation: Any) -> int:
    return hash(operation)


def _origin(value: Any, number: dict[int, int]) -> tuple[int, int]:
    ir = _ir()
    if isinstance(value.owner, ir.Block):
        return -1, ir.BlockArgument(value).arg_number
    result = ir.OpResult(value)
    return number[_key(result.owner)], result.result_number


def _origins(operation: Any, number: dict[int, int]) -> Sequence[int]:
    """The operations of the main function that an operation and its regions read."""
    ir = _ir()
    found: dict[int, None] = {}

    def look(it: Any) -> None:
        for value in it.operands:
            if not isinstance(value.owner, ir.Block):
                at = number.get(_key(ir.OpResult(value).owner))
                if at is not None:
                    found[at] = None
        for region in it.regions:
            for block in region.blocks:
                for inner in block.operations:
                    look(inner.operation)

    look(operation)
    return list(found)


def _without_shardings(operation: Any) -> None:
    """Removes what says where values are, from an operation and those in its regions."""
    ir = _ir()
    for name in ("arg_attrs", "res_attrs"):
        if name in operation.attributes:
            kept = [{it.name: it.attr for it in own if it.name != "sdy.sharding"} for own in operation.attributes[name]]
            operation.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(it) for it in kept])
    if "sdy.sharding" in operation.attributes:
        del operation.attributes["sdy.sharding"]
    for region in operation.regions:
        for block in region.blocks:
            for it in list(block.operations):
                if it.operation.name == "sdy.sharding_constraint":
                    it.operation.results[0].replace_all_uses_with(it.operation.operands[0])
                    it.operation.erase()
                else:
                    _without_shardings(it.operation)


def element_type(name: str) -> np.dtype[Any]:
    """The type of NumPy's elements for that of a tensor."""
    import ml_dtypes

    known: dict[str, Any] = {"i1": "bool", "bf16": ml_dtypes.bfloat16, "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2}
    if found := re.fullmatch(r"complex<f(\d+)>", name):
        known[name] = f"complex{2 * int(found[1])}"
    elif name not in known and (found := re.fullmatch(r"(ui|i|f)(\d+)", name)):
        known[name] = {"ui": "uint", "i": "int", "f": "float"}[found[1]] + found[2]
    if name in known:
        type: np.dtype[Any] = np.dtype(known[name])
        return type
    raise HirError(f"verify makes no inputs of the type {name}")
