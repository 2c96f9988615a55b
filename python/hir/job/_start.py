"""Starts the ranks of a job: one process each, forked from this one, and a process of the supervisor, which is this one."""

from __future__ import annotations

import atexit
import gc
import os
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Callable, NoReturn, Sequence

import torch

from ._outside import kernel_of
from ._rank import Rank
from ._stacks import OWN, is_of_script
from ._supervise import Outcome, Supervisor


@dataclass
class Start:
    """What a process needs to be a rank."""

    rank: int
    ranks: int
    #: The port of the store of the job.
    port: int
    recorder: Rank


def start_ranks(ranks: int, timeout: float, run: Callable[[Start], object]) -> Outcome:
    """Runs a function in a process of each rank, as torchrun does, until all have ended or none can proceed. Errors are ``OSError``."""
    files = [os.memfd_create(f"hir-job-{rank}") for rank in range(ranks)]
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(128)
    port = server.getsockname()[1]
    pipes = [Pipe() for _ in range(ranks)]
    sys.stdout.flush()
    sys.stderr.flush()
    processes = []
    # Ranks share what is imported, until one of them writes to it.
    gc.freeze()
    for rank in range(ranks):
        process = os.fork()
        if process == 0:
            for other, (own, far) in enumerate(pipes):
                own.close()
                if other != rank:
                    far.close()
            server.close()
            _be_rank(rank, ranks, port, pipes[rank][1], files, run)
        processes.append(process)
    gc.unfreeze()
    for _, far in pipes:
        far.close()
    for file in files:
        os.close(file)
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())
    supervisor = Supervisor([own for own, _ in pipes], processes, timeout)
    try:
        return supervisor.run()
    finally:
        supervisor.end()
        for own, _ in pipes:
            own.close()
        del store


def _be_rank(rank: int, ranks: int, port: int, connection: Connection, files: Sequence[int], run: Callable[[Start], object]) -> NoReturn:
    count = str(ranks)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=count, LOCAL_WORLD_SIZE=count, GROUP_RANK="0", ROLE_RANK=str(rank),
        GROUP_WORLD_SIZE="1", ROLE_WORLD_SIZE=count, ROLE_NAME="default", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID="hir-job", TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS="0", TORCHELASTIC_USE_AGENT_STORE="True",
    )  # fmt: skip
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    recorder = Rank(rank, connection, files)
    leave(run_script(lambda: run(Start(rank, ranks, port, recorder)), recorder))


def leave(code: int) -> NoReturn:
    """Ends this process as Python does, but without taking PyTorch apart, which would copy the memory that ranks share."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _error_text(error: BaseException) -> str:
    """Returns the first line of an error, with the line of the script."""
    text = traceback.format_exception_only(type(error), error)[-1].strip().partition("\n")[0]
    places = [f"{it.filename}:{it.lineno}" for it in traceback.extract_tb(error.__traceback__) if is_of_script(it.filename) and not it.filename.startswith(OWN)]
    return f"{text} ({places[-1]})" if places else text


def run_script(run: Callable[[], object], rank: Rank) -> int:
    """Runs the script, and returns the exit code of the rank."""
    code, text = 0, ""
    try:
        run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        text = f"it ended with {end.code!r}" if code else ""
        if code and end.__context__ is not None:
            text += f" after {_error_text(end.__context__)}"
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        # The frames of hir and of what runs the script are left out.
        trace = error.__traceback__
        while trace is not None and (trace.tb_frame.f_code.co_filename.startswith(OWN) or "runpy" in trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        if not isinstance(error, KeyboardInterrupt):
            text = "".join(traceback.format_exception(type(error), error, trace))
            print("\n".join(f"[rank{rank.rank}]: {it}" for it in text.rstrip().split("\n")), file=sys.stderr)
        code = 1
        text = _error_text(error)
        kernel = kernel_of(error)
        if kernel:
            rank.send("outside", *kernel)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    rank.send("end", code, text)
    return code
