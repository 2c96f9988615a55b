"""The command ``python -m hir job``."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import os
import random
import runpy
import socket
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn, Sequence

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
    parser.add_argument("--timeout", type=float, default=300, help="how many seconds a job may make no call while ranks wait (300)")
    options, rest = _split(parser, list(words))
    if options.ranks < 1:
        parser.error("--ranks needs a positive number")
    if not options.is_module and not Path(options.script).is_file():
        parser.error(f"there is no file {options.script}")
    return options, rest


def _split(parser: argparse.ArgumentParser, words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options of hir are before the script or directly behind it, up to another word or ``--``; ``--ranks`` is one anywhere."""
    own, rest, has_script, is_leading = [], [], False, True
    at = 0
    takes = {"--ranks", "-o", "--backend", "--timeout"}
    while at < len(words):
        word = words[at]
        if word == "--" and has_script:
            rest += words[at + is_leading :]
            break
        name = word.partition("=")[0]
        if has_script and name != "--ranks" and not (is_leading and name in (*takes, "--cuda")):
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
    import torch

    from ._judge import judge
    from ._supervise import Supervisor

    try:
        if options.folder:
            options.folder.mkdir(parents=True, exist_ok=True)
        files = [os.memfd_create(f"hir-job-{rank}") for rank in range(options.ranks)]
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        server.listen(128)
        pipes = [Pipe() for _ in range(options.ranks)]
    except OSError as error:
        print(f"[FAILED] {error.strerror}{f': {error.filename}' if error.filename else ''}")
        return 6
    sys.stdout.flush()
    sys.stderr.flush()
    processes = []
    # Ranks share what is imported, until one of them writes to it.
    gc.freeze()
    for rank in range(options.ranks):
        process = os.fork()
        if process == 0:
            for other, (own, far) in enumerate(pipes):
                own.close()
                if other != rank:
                    far.close()
            port = server.getsockname()[1]
            server.close()
            _run_rank(rank, options, rest, pipes[rank][1], files, port)
        processes.append(process)
    for _, far in pipes:
        far.close()
    store = torch.distributed.TCPStore(
        "127.0.0.1", server.getsockname()[1], is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
    )
    supervisor = Supervisor([own for own, _ in pipes], processes, options.timeout)
    try:
        outcome = supervisor.run()
    except KeyboardInterrupt:
        print("[STOPPED] by SIGINT")
        return 130
    finally:
        supervisor.end()
        del store
    _leave(judge(outcome, options.folder))


def _leave(code: int) -> NoReturn:
    """Ends this process as Python does, but without taking PyTorch apart, which would copy the memory that ranks share."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _run_rank(rank: int, options: argparse.Namespace, rest: Sequence[str], connection: Connection, files: Sequence[int], port: int) -> NoReturn:
    """Runs the script in this process as torchrun does."""
    import torch

    from ._rank import Rank, run_script
    from ._register import register

    ranks = str(options.ranks)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks, GROUP_RANK="0", ROLE_RANK=str(rank),
        GROUP_WORLD_SIZE="1", ROLE_WORLD_SIZE=ranks, ROLE_NAME="default", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID="hir-job", TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS="0", TORCHELASTIC_USE_AGENT_STORE="True",
    )  # fmt: skip
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    # Processes that `torchrun` starts draw different numbers, unless the script seeds them.
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    recorder = Rank(rank, connection, files)
    sys.argv = [options.script, *rest]

    def run() -> None:
        register(recorder, options.backend, "cuda" if options.cuda else "cpu", options.ranks, port)
        if options.cuda:
            from ._cuda import stand_in

            stand_in(rank, options.ranks, recorder.uses, recorder.synchronize)
        if options.is_module:
            sys.path[0] = os.getcwd()
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(options.script))
            runpy.run_path(options.script, run_name="__main__")

    _leave(run_script(run, recorder))
