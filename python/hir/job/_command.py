"""The command ``python -m hir job``."""

from __future__ import annotations

import argparse
import importlib
import os
import random
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    from ._start import Start

USAGE = "python -m hir job SCRIPT --ranks N [options] [--] [arguments of the script]"


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Splits options of hir from those of the script."""
    about = "Runs a PyTorch script for many ranks without GPUs, and checks what they call."
    parser = argparse.ArgumentParser(prog="hir job", usage=USAGE, description=about, allow_abbrev=False)
    parser.add_argument("script", help="the Python script, or with -m the module, that torchrun would start")
    parser.add_argument("--ranks", type=int, required=True, help="the number of ranks")
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("-o", dest="folder", type=Path, help="keeps the records of all ranks, which `hir hang` reads, in this folder")
    parser.add_argument("--backend", choices=("nccl", "gloo"), help="the backend whose rules hold, instead of that of the script")
    parser.add_argument("--cuda", action="store_true", help="runs a script for GPUs: a stand-in puts on the CPU what is on the GPU")
    parser.add_argument("--fake", action="store_true", help="computes no floating tensors of 1 MiB or more, so that large models fit")
    about = "what a script reads that --fake does not compute: FILE:LINE=VALUE, or VALUE for all lines; may be repeated"
    parser.add_argument("--answer", action="append", type=_answer, default=[], help=about)
    parser.add_argument("--timeout", type=float, default=300, help="how many seconds a job may make no call while ranks wait (300)")
    options, rest = _split(parser, list(words))
    if options.ranks < 1:
        parser.error("--ranks needs a positive number")
    if not options.is_module and not Path(options.script).is_file():
        parser.error(f"there is no file {options.script}")
    return options, rest


def _answer(text: str) -> str:
    float(text.rpartition("=")[2])
    return text


def _split(parser: argparse.ArgumentParser, words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options of hir are before the script or directly behind it, up to another word or ``--``; ``--ranks`` is one anywhere."""
    own, rest, has_script, is_leading = [], [], False, True
    at = 0
    takes = {"--ranks", "-o", "--backend", "--timeout", "--answer"}
    while at < len(words):
        word = words[at]
        if word == "--" and has_script:
            rest += words[at + is_leading :]
            break
        name = word.partition("=")[0]
        if has_script and name != "--ranks" and not (is_leading and name in (*takes, "--cuda", "--fake")):
            rest.append(word)
            is_leading = False
        else:
            own.append(word)
            if word in takes and at + 1 < len(words):
                at += 1
                own.append(words[at])
            elif not word.startswith("-"):
                has_script = True
        at += 1
    return parser.parse_args(own), rest


def imports() -> str | None:
    """Imports what ranks share; returns why the job cannot run, if it cannot."""
    if not hasattr(os, "memfd_create"):
        return "`hir job` needs Linux"
    # A compiled function calls what the function calls.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # A module of the current folder is none of PyTorch's.
    paths, sys.path = sys.path, [it for it in sys.path if it not in ("", os.getcwd())]
    try:
        import torch.distributed
    except ImportError as error:
        return f"`hir job` needs PyTorch, which cannot be imported: {error}"
    if not torch.distributed.is_available():
        return "this PyTorch is built without torch.distributed"
    # Most scripts import these.
    for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining"):
        importlib.import_module(name)
    sys.path = paths
    return None


def main(words: Sequence[str]) -> int:
    options, rest = parse(words)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    missing = imports()
    if missing:
        print(f"[FAILED] not run: {missing}")
        return 6
    from ._judge import judge
    from ._start import leave, start_ranks

    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    outcome = start_ranks(options.ranks, options.timeout, lambda it: _run_script(it, options, rest))
    leave(judge(outcome, options.folder, options.cuda))


def _run_script(start: Start, options: argparse.Namespace, rest: Sequence[str]) -> None:
    """Runs the script in this process as torchrun does."""
    from ._outside import notice
    from ._register import register

    # Processes that `torchrun` starts draw different numbers, unless the script seeds them.
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    sys.argv = [options.script, *rest]
    register(start.recorder, options.backend, "cuda" if options.cuda else "cpu", options.ranks, start.port)
    if options.cuda:
        from ._cuda import stand_in

        stand_in(start.rank, options.ranks, start.recorder.uses, start.recorder.synchronize)
    if options.fake:
        from ._absent import Absent

        start.recorder.absent = Absent(options.answer, start.recorder.uses, start.recorder.place)
        start.recorder.absent.install()
    notice(start.recorder.report_outside)
    if options.is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(options.script))
        runpy.run_path(options.script, run_name="__main__")
