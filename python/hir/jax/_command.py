"""The command ``python -m hir jax verify``."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any, Sequence

from .._diagnostic import HirError
from ..compare._command import function_of, load

USAGE = "python -m hir jax verify FILE.py:FUNCTION|MODULE.mlir [options]"


def main(words: Sequence[str]) -> int:
    about = "Runs a JAX function in XLA and in hir, and names the first operation whose results differ."
    parser = argparse.ArgumentParser(prog="hir jax verify", usage=USAGE, description=about, allow_abbrev=False)
    parser.add_argument("verify", choices=["verify"], help=argparse.SUPPRESS)
    parser.add_argument("target", help="a text of StableHLO, or a function that returns jax.jit(f) and its arguments, as a tuple")
    parser.add_argument("--devices", type=int, help="the number of devices, on the CPU (8, or what the text states)")
    parser.add_argument("--passes", default="@lower", help="the passes after which hir runs the module (@lower)")
    parser.add_argument("--seed", type=int, default=0, help="for the inputs of a text, which are random (0)")
    parser.add_argument("--rtol", type=float, help="how much floats may differ (the square root of the type's epsilon)")
    options = parser.parse_args(list(words))
    file, _, name = (options.target, "", "") if options.target.endswith(".mlir") else options.target.rpartition(":")
    if not Path(file).is_file():
        parser.error(f"there is no file {file or '?'}: name a function as FILE.py:FUNCTION, or a file MODULE.mlir")
    text = Path(file).read_text(encoding="utf-8", errors="replace") if not name else ""
    stated = re.search(r"mhlo\.num_partitions = (\d+)", text)
    devices = options.devices or (int(stated[1]) if stated else 8)
    if devices < 1:
        parser.error("--devices needs a positive number")
    # Before JAX starts.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        from ._verify import verify

        given: tuple[Any, ...] = (text,)
        if name:
            found = function_of(parser, load(file), file, name)()
            given = found if isinstance(found, tuple) else (found,)
        result = verify(*given, seed=options.seed, rtol=options.rtol, passes=options.passes)
    except ImportError as error:
        print(f"[FAILED] not run: {error}: install JAX beside hir")
        return 6
    except (HirError, TypeError) as error:
        print(f"[FAILED] not run: {error}")
        return 1
    print(result)
    return result.code
