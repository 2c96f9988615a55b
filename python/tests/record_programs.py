"""Writes tests/recorded: programs that PyTorch and JAX handed over, with the values that the frameworks computed.

    python record_programs.py GRAPHS MODULES FOLDER

GRAPHS has folders of graphs that PyTorch recorded (`hir.torch.read_recorded`), `rank_R/KEY.json`, with the values `rank_R/KEY.in.I.npy` and
`KEY.out.I.npy` of all ranks. MODULES has folders of `lowered.mlir`, `manifest.json`, `in.I.npy` and `out.I.npy` of JAX. Each program becomes
FOLDER/NAME.hir or NAME.mlir, and NAME.safetensors with whole tensors: `in.T0` is the input `T0`, `out.T9` what the framework computed for
the output `T9`. The test `recorded::NAME` of `cargo test --test suite` runs the program and compares. It needs hir's Python package and NumPy.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

import hir
import hir.torch
from hir.torch._builder import Value
from hir.torch._program import to_bits

#: Folders of PyTorch's graphs, and which graphs of them.
GRAPHS = {
    "01-tp-mlp": ("backward",),
    "02-sp-mlp": ("forward",),
    "03-attention-tp": ("backward",),
    "04-llama-block": ("forward",),
    "05-simple-fsdp": ("forward", "backward"),
    "06-mesh-2d": ("backward",),
    "07-vocab-parallel-loss": ("forward",),
    "08-moe-all-to-all": ("forward",),
    "09-async-tp": ("inference",),
    "10-pipeline-stage": ("inference",),
    "11-zero3": ("forward",),
}
#: Folders of JAX's modules.
MODULES = ("02-tp-mlp-grad", "06-mesh-2d-step", "07-shard-map-mlp", "08-ring-matmul", "09-moe-all-to-all", "10-scan-layers", "12-pipeline")
TYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8", "bool": "BOOL"}


def write_tensors(path: Path, tensors: dict[str, tuple[np.ndarray, str]]) -> None:
    """Writes arrays with the names of their types in PyTorch or JAX. The bits of bfloat16 are uint16."""
    header, parts, offset = {}, [], 0
    for name, (array, dtype) in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        kind = "BF16" if dtype == "bfloat16" else TYPES[dtype]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        parts.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def typed(array: np.ndarray, dtype: str) -> np.ndarray:
    return to_bits(array) if dtype == "bfloat16" else array.astype(dtype, copy=False)


def record_graph(folder: Path, key: str, target: Path) -> None:
    first = json.loads((folder / "rank_0" / f"{key}.json").read_text())
    files = [folder / f"rank_{rank}" / f"{key}.json" for rank in range(first["world"])]
    graphs = [hir.torch.read_recorded(it if it.exists() else files[0], rank) for rank, it in enumerate(files)]
    program = hir.torch.from_graphs(graphs)
    imported, mesh = program._imported, program._imported.mesh

    def whole(ports: tuple[tuple[object, ...], ...], kind: str) -> dict[str, tuple[np.ndarray, str]]:
        """Tensors with an axis for each axis of the mesh, from the values of the ranks."""
        found: dict[str, tuple[np.ndarray, str]] = {}
        for rank, values in enumerate(ports):
            coordinates = mesh.coordinates(rank) if mesh else ()
            for number, value in enumerate(values):
                file = folder / f"rank_{rank}" / f"{key}.{kind}.{number}.npy"
                if not isinstance(value, Value) or not file.exists():
                    continue
                part = typed(np.load(file), value.dtype)
                # All ranks have inputs of their own, also those that are equal.
                sharded = value.sharded if kind == "out" else [True] * len(coordinates)
                shape = [extent if it else 1 for extent, it in zip(mesh.shape if mesh else (), sharded)]
                array, _ = found.setdefault(f"{kind}.{value.name}", (np.zeros((*shape, *part.shape), part.dtype), value.dtype))
                array[tuple(at if it else 0 for at, it in zip(coordinates, sharded))] = part
        return found

    # The lines of the Python program are places of the machine on which it was recorded.
    text = re.sub(r"  // [^\n]*/(\w+\.py:\d+)", r"  // \1", program.text)
    target.with_suffix(".hir").write_text(text)
    inputs, outputs = whole(imported.inputs, "in"), whole(imported.outputs, "out")
    # An output that is an input is not one of the program.
    names = {it.name for it in program.program.outputs}
    write_tensors(target.with_suffix(".safetensors"), inputs | {k: it for k, it in outputs.items() if k[4:] in names})


def record_module(folder: Path, target: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    text = (folder / "lowered.mlir").read_text()
    program = hir.read(text)
    target.with_suffix(".mlir").write_text(text)
    tensors = {}
    for kind, ports, names in (("in", manifest["inputs"], program.inputs), ("out", manifest["outputs"], program.outputs)):
        for number, (port, tensor) in enumerate(zip(ports, names, strict=True)):
            tensors[f"{kind}.{tensor.name}"] = (typed(np.load(folder / f"{kind}.{number}.npy"), port["dtype"]), port["dtype"])
    write_tensors(target.with_suffix(".safetensors"), tensors)


def main() -> None:
    graphs, modules, folder = (Path(it) for it in sys.argv[1:])
    folder.mkdir(exist_ok=True)
    for name, keys in GRAPHS.items():
        for key in keys:
            record_graph(graphs / name, key, folder / f"pytorch-{name[3:]}-{key}")
    for name in MODULES:
        record_module(modules / name, folder / f"jax-{name[3:]}")


if __name__ == "__main__":
    main()
