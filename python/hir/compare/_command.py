"""The command ``python -m hir compare``."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path
from typing import Any, Callable, Sequence

from .._diagnostic import HirError

USAGE = "python -m hir compare PARALLEL SINGLE --ranks N [options]"


def main(words: Sequence[str]) -> int:
    about = "Compares the values of a parallel PyTorch program with those of the same program on one device."
    parser = argparse.ArgumentParser(prog="hir compare", usage=USAGE, description=about, allow_abbrev=False)
    parser.add_argument("parallel", help="FILE.py:FUNCTION, which returns (model, step) or (model, inputs) for a rank")
    parser.add_argument("single", help="FILE.py:FUNCTION of the program on one device; without FILE.py: that of the first")
    parser.add_argument("--ranks", type=int, required=True, help="the number of ranks")
    parser.add_argument("--cuda", action="store_true", help="runs a program for GPUs: a stand-in puts on the CPU what is on the GPU")
    parser.add_argument("--timeout", type=float, default=300, help="how many seconds ranks may make no call while others wait (300)")
    options = parser.parse_args(list(words))
    if options.ranks < 1:
        parser.error("--ranks needs a positive number")
    file, _, name = options.parallel.rpartition(":")
    other, _, other_name = options.single.rpartition(":")
    for it in (file, other or file):
        if not Path(it).is_file():
            parser.error(f"there is no file {it or '?'}: name a function as FILE.py:FUNCTION")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from ._compare import StoppedError, compare

    try:
        modules = {it: load(it) for it in dict.fromkeys((file, other or file))}
        functions = [function_of(parser, modules[it], it, of) for it, of in ((file, name), (other or file, other_name))]
        result = compare(*functions, ranks=options.ranks, timeout=options.timeout, cuda=options.cuda)
    except StoppedError as error:
        print(error)
        return error.exit_code
    except HirError as error:
        print(f"[FAILED] not run: {error}")
        return 6
    print(result)
    return result.code


def load(file: str) -> dict[str, Any]:
    """Runs a file as a module: what is under ``if __name__ == "__main__"`` does not run."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    return runpy.run_path(file, run_name=Path(file).stem)


def function_of(parser: argparse.ArgumentParser, module: dict[str, Any], file: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] | None = module.get(name)
    if not callable(found):
        parser.error(f"{file} has no function {name}")
    return found
