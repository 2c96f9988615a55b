"""Jobs of torch.distributed, run and checked by ``python -m hir job``: right ones have no fault, and each fault is reported with its line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAMS = Path(__file__).with_name("job_programs.py")
#: The jobs and their numbers of ranks.
JOBS = {"eager": 3, "messages": 3, "objects": 3, "ddp": 3, "fsdp": 2, "pipelining": 2, "tensor_parallel": 2}

#: Runs commands in processes that begin with PyTorch imported: a line of words, then one of the exit code.
SERVER = """
import json, os, sys, tempfile
os.environ["OMP_NUM_THREADS"] = "1"
from hir.job import _command
_command.imports()
for line in sys.stdin:
    words, output = json.loads(line)
    process = os.fork()
    if process == 0:
        file = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1), os.dup2(file, 2)
        os._exit(_command.main(words))
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROGRAMS.parent)
    count = 0

    def run(*words) -> tuple[int, str]:
        nonlocal count
        count += 1
        output = folder / str(count)
        server.stdin.write(json.dumps([[str(it) for it in words], str(output)]) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline()), output.read_text()

    yield run
    server.stdin.close()
    server.wait()


def line_of(job: str, fault: str) -> int:
    """The line with the name of a fault in a comment, in the function of the job."""
    lines = PROGRAMS.read_text().split("\n")
    begin = lines.index(f"def {job}() -> None:")
    return next(at for at, line in enumerate(lines[begin:], begin + 1) if line.endswith(f"# {fault}"))


@pytest.mark.parametrize("name", JOBS)
def test_a_right_job_has_no_fault(job, name):
    code, text = job(PROGRAMS.name, name, "--ranks", JOBS[name])
    assert text.splitlines()[-1].startswith("[SUCCESS] no fault in "), text
    assert code == 0


@pytest.mark.parametrize(
    "name, fault, finding",
    [
        ("eager", "skip", "E0801"),
        ("eager", "size", "E0802"),
        ("eager", "late", "E0701"),
        ("eager", "root", "E0802"),
        ("eager", "reduction", "E0802"),
        ("eager", "swap", "E0801"),
        ("eager", "group", "E0801"),
        ("messages", "late", "E0701"),
        ("messages", "ungrouped", "E0803"),
        ("messages", "peer", "E0804"),
        ("messages", "unreceived", "E0801"),
        ("objects", "skip", "E0801"),
        ("ddp", "skip", "E0801"),
        ("fsdp", "skip", "E0801"),
        ("pipelining", "skip", "E0803"),
        ("tensor_parallel", "skip", "E0801"),
    ],
)
def test_a_fault_is_reported_with_its_line(job, name, fault, finding):
    code, text = job(PROGRAMS.name, "--ranks", JOBS[name], name, fault)
    verdict = text.splitlines()[-1]
    assert verdict.startswith("[FAILED] "), text
    assert f"{PROGRAMS.name}:{line_of(name, fault)}" in verdict, text
    assert f"[{finding}] Error" in text
    assert code == (7 if finding == "E0701" else 4)


def test_the_rules_of_the_backend_hold(job):
    # With gloo, a send and a receive that are not in a batch proceed.
    code, text = job(PROGRAMS.name, "--ranks", 3, "messages", "ungrouped", "gloo")
    assert code == 0, text
    code, text = job(PROGRAMS.name, "--ranks=3", "--backend", "nccl", "messages", "ungrouped", "gloo")
    assert code == 4, text
