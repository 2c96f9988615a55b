import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def emulator():
    """The library of emulated GPUs. It is built once for its sources, and keeps its compiled kernels beside it."""
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler to build emulated GPUs")
    folder = ROOT / "tests/gpu/emulator"
    # The library includes headers of the folder in each kernel.
    digest = hashlib.sha256(str(folder).encode())
    for file in sorted([*folder.glob("*.cpp"), *folder.glob("*.h")]):
        digest.update(file.read_bytes())
    builds = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    library = builds / f"python-tests/emulator-{digest.hexdigest()[:16]}/libgpu.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        fresh = library.with_name(f"libgpu-{os.getpid()}.so")
        options = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-o", fresh]
        subprocess.run(["c++", *options, *folder.glob("*.cpp"), "-ldl"], check=True, timeout=600)
        fresh.replace(library)
    return library
