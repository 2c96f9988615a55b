"""Builds the wheel: with maturin, after cargo has built the command `hir`, which the wheel installs as it is.

This is the backend of `pip install .`. `python python/build_wheel.py OPTIONS` is `maturin build OPTIONS`; with `--zig`, cargo-zigbuild builds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import maturin
from maturin import build_sdist, get_requires_for_build_editable, get_requires_for_build_sdist, get_requires_for_build_wheel
from maturin import prepare_metadata_for_build_editable, prepare_metadata_for_build_wheel

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def command(arguments: list[str]) -> Iterator[None]:
    """Builds `hir` with the options of cargo among these. Within, it is where maturin takes it from; no later build takes it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--locked", "--offline", "--quiet", "--release", "--zig"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--profile", default="release")
    parser.add_argument("--target")
    options, _ = parser.parse_known_args(arguments)
    cargo = ["cargo", "zigbuild" if options.zig else "build", "--bin", "hir", "--profile", options.profile]
    cargo += [f"--{name}" for name in ("locked", "offline", "quiet") if getattr(options, name)]
    if options.target:
        # The glibc of manylinux2014, as maturin has it with `--zig`.
        cargo += ["--target", options.target + (".2.17" if options.zig else "")]
    cargo += ["--message-format", "json-render-diagnostics"]
    built = subprocess.run(cargo, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    (executable,) = [it["executable"] for it in messages if it.get("executable")]
    copy = Path(shutil.copy(executable, ROOT / "python/hir.data/scripts/hir"))
    try:
        yield
    finally:
        copy.unlink()


def build_wheel(folder: str, settings: Mapping[str, Any] | None = None, metadata: str | None = None) -> str:
    with command(maturin.get_maturin_pep517_args(settings)):
        return maturin.build_wheel(folder, settings, metadata)


def build_editable(folder: str, settings: Mapping[str, Any] | None = None, metadata: str | None = None) -> str:
    with command(maturin.get_maturin_pep517_args(settings)):
        return maturin.build_editable(folder, settings, metadata)


if __name__ == "__main__":
    with command(sys.argv[1:]):
        sys.exit(subprocess.run([sys.executable, "-m", "maturin", "build", *sys.argv[1:]], cwd=ROOT).returncode)
