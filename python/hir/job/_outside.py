"""What a job uses that its record does not have: libraries with communication or kernels of their own. It is named where it is met."""

from __future__ import annotations

import ctypes
import importlib.machinery
import sys
import traceback
from typing import Any, Callable, Sequence

#: Packages, and what they are.
PACKAGES = {
    "cupy": "CuPy",
    "deep_ep": "DeepEP",
    "mori": "MORI",
    "mpi4py": "MPI",
    "mscclpp": "MSCCL++",
    "nccl": "NCCL by nccl4py",
    "nvshmem": "NVSHMEM",
    "pycuda": "PyCUDA",
    "transformer_engine": "Transformer Engine",
}
#: Shared libraries, by what their names contain.
LIBRARIES = {"nccl": "NCCL by ctypes", "nvshmem": "NVSHMEM by ctypes", "libcuda": "CUDA by ctypes", "libmpi": "MPI by ctypes"}
#: Files in which kernels fail that have no GPU.
KERNELS = {"/triton/": "a Triton kernel", "/torch/utils/cpp_extension.py": "a CUDA kernel", "/torch/cuda/_utils.py": "a CUDA kernel"}


def notice(report: Callable[[str, Any], None]) -> None:
    """Reports from now on what is used, with the frame."""

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
            if name in PACKAGES and importlib.machinery.PathFinder.find_spec(name, path) is not None:
                report(PACKAGES[name], sys._getframe(1))

    sys.meta_path.insert(0, Finder)
    load = ctypes.CDLL.__init__

    def loaded(library: Any, name: Any, *args: Any, **kwargs: Any) -> None:
        load(library, name, *args, **kwargs)
        file = str(name).rpartition("/")[2]
        for part, what in LIBRARIES.items():
            if part in file:
                report(what, sys._getframe(1))

    setattr(ctypes.CDLL, "__init__", loaded)


def kernel_of(error: BaseException) -> tuple[str, str] | None:
    """Returns the kind of the kernel that an error comes from, and the line that launches it."""
    frames = traceback.extract_tb(error.__traceback__)
    for before, frame in zip(frames, frames[1:]):
        for part, what in KERNELS.items():
            if part in frame.filename:
                return what, f"{before.filename}:{before.lineno}"
    return None
