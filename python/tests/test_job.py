"""Jobs of torch.distributed, run and checked by ``python -m hir job``: right ones have no fault, and each fault is reported with its line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hir

pytest.importorskip("torch")

PROGRAMS = Path(__file__).with_name("job_programs.py")
#: The jobs and their numbers of ranks.
JOBS = {"operations": 3, "groups": 3, "crossed": 2, "eager": 3, "messages": 3, "objects": 3}
JOBS |= {"optimizer": 3, "hooks": 2, "ring": 3, "ddp": 3, "fsdp": 2, "fsdp1": 2, "pipelining": 2, "tensor_parallel": 2}

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
    return next(at for at, line in enumerate(lines[begin:], begin + 1) if f"# {fault}" in line)


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
        ("eager", "host", "E0701"),
        ("groups", "other", "E0805"),
        ("groups", "subset", "E0805"),
        ("crossed", "order", "E0707"),
        ("crossed", "blocking", "E0803"),
        ("messages", "late", "E0701"),
        ("messages", "ungrouped", "E0803"),
        ("messages", "peer", "E0804"),
        ("messages", "unreceived", "E0801"),
        ("optimizer", "late", "E0701"),
        ("hooks", "late", "E0701"),
        ("ring", "late", "E0701"),
        ("ring", "same", "E0701"),
        ("ring", "itself", "E0803"),
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
    assert code == (7 if finding.startswith("E07") else 4)


@pytest.mark.parametrize(
    "fault, options, verdict, code",
    [
        ("raise", [], "[FAILED] rank 1 failed: ValueError: bad batch", 1),
        ("kill", [], "[FAILED] rank 1 failed: it was ended by SIGKILL", 1),
        ("leave", [], "[FAILED] hang: rank 1 ends without the all_reduce (job_programs.py:{line}) in which ranks 0 and 2 wait", 4),
        ("sleep", ["--timeout", 1], "[FAILED] no call for 1 s: ranks 0 and 2 wait, first in all_reduce (job_programs.py:{line})", 4),
    ],
)
def test_a_rank_that_does_not_come_is_named(job, fault, options, verdict, code):
    found, text = job(PROGRAMS.name, "--ranks", 3, *options, "failing", fault)
    assert text.splitlines()[-1].startswith(verdict.format(line=line_of("failing", "leave"))), text
    assert found == code


def test_a_script_for_gpus_runs_with_a_stand_in(job):
    code, text = job(PROGRAMS.name, "--ranks", 2, "gpu")
    assert code == 1 and "# help: `hir job --cuda`" in text, text
    code, text = job(PROGRAMS.name, "--ranks", 2, "--cuda", "gpu")
    assert code == 0 and "under NCCL" in text, text
    code, text = job(PROGRAMS.name, "--ranks", 2, "--cuda", "gpu", "graph")
    assert code == 1 and "does not run CUDA graphs" in text.splitlines()[-1], text
    for fault in ("before", "copy", "late", "stream"):
        code, text = job(PROGRAMS.name, "--ranks", 2, "--cuda", "gpu", fault)
        assert code == 7 and f"[FAILED] {PROGRAMS.name}:{line_of('gpu', fault)}: " in text, text


def test_large_tensors_without_values(job, tmp_path):
    begin = [PROGRAMS.name, "--ranks", 2, "--fake"]
    value = f"{PROGRAMS.name}:{line_of('large', 'value')}"
    code, text = job(*begin, "large")
    assert code == 1 and f"a value is read of a tensor that has none: answer it with --answer {value}=VALUE" in text, text
    code, text = job(*begin, "--answer", 1, "large", "memory")
    assert code == 0 and "tensor(...) is 1.0" in text and "no fault in 14 calls" in text, text
    code, text = job(*begin, "--answer", f"{value}=3", "--answer", 7, "-o", tmp_path / "fake", "large")
    assert code == 0 and "tensor(...) is 3.0" in text and "no fault in 12 calls" in text, text
    code, text = job(*begin, "--answer", 1, "large", "late")
    assert code == 7 and f"{PROGRAMS.name}:{line_of('large', 'late')}: mul writes a buffer of the all_reduce" in text, text
    code, text = job(*begin, "--answer", 1, "large", "sizes")
    assert code == 1 and "aten::index needs the values of a tensor that has none" in text and f"{PROGRAMS.name}:{line_of('large', 'sizes')})" in text, text
    assert job(PROGRAMS.name, "--ranks", 2, "-o", tmp_path / "real", "large")[0] == 0
    shapes = [
        [(it["profiling_name"], it["input_sizes"], it["input_dtypes"], it["output_sizes"]) for it in json.loads((tmp_path / kind / "rank_1.json").read_text())["entries"]]
        for kind in ("fake", "real")
    ]
    assert shapes[0][:-1] == shapes[1]


def test_what_the_record_does_not_have_is_named(job, tmp_path):
    (tmp_path / "deep_ep").mkdir()
    (tmp_path / "deep_ep/__init__.py").write_text("")
    script = tmp_path / "job.py"
    begin = "import torch, torch.distributed as dist, ctypes\ndist.init_process_group('gloo')\ndist.barrier()\n"
    script.write_text(begin + "try: import transformer_engine\nexcept ImportError: import deep_ep\n")
    code, text = job(script, "--ranks", 2)
    assert code == 0 and text.count("# not covered: DeepEP") == 1 and f"DeepEP ({script}:5)" in text, text
    assert text.splitlines()[-1].endswith("before the wait; not covered: DeepEP"), text
    library = tmp_path / "libnccl.so.2"
    library.symlink_to(hir._hir.__file__)
    script.write_text(begin + f"ctypes.CDLL('{library}')\n")
    code, text = job(script, "--ranks", 2)
    assert code == 0 and f"# not covered: NCCL by ctypes ({script}:4)" in text, text
    pytest.importorskip("triton")
    script.write_text(begin + "import triton\n@triton.jit\ndef kernel(x): pass\nkernel[(1,)](torch.ones(1))\n")
    code, text = job(script, "--ranks", 2)
    assert code == 1 and f"# not covered: a Triton kernel ({script}:7)" in text, text


def test_scripts_that_start_ranks_and_scripts_without_calls(job, tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(
        "import torch.multiprocessing as mp, torch.distributed as dist\n"
        "def main(rank, size):\n"
        "    dist.init_process_group('gloo', init_method='tcp://127.0.0.1:1', rank=rank, world_size=size)\n"
        "    dist.barrier()\n"
        "if __name__ == '__main__': mp.spawn(main, (2,), nprocs=2)\n"
    )
    code, text = job(script, "--ranks", 2)
    assert code == 0 and "no fault in 2 calls of 2 ranks" in text, text
    code, text = job(script, "--ranks", 3)
    assert code == 1 and "run it with --ranks 2" in text, text
    script.write_text("")
    code, text = job(script, "--ranks", 2)
    assert code == 8 and text.splitlines()[-1].startswith("[UNDECIDED] "), text
    # Public examples end at once if they find no GPU.
    assert "--cuda" in text.splitlines()[-2], text
    code, text = job(script, "--ranks", 2, "--cuda")
    assert code == 8 and "# help" not in text, text


def test_the_script_gets_its_own_options(job, tmp_path):
    script = tmp_path / "options.py"
    script.write_text("import sys; print(sys.argv[1:])")
    for words in (["--cuda", "a", "--cuda", "-o", "b"], ["--", "a", "--cuda", "-o", "b"]):
        assert "['a', '--cuda', '-o', 'b']" in job(script, "--ranks", 1, *words)[1]


def test_records_are_dumps(job, tmp_path):
    job(PROGRAMS.name, "--ranks", 3, "-o", tmp_path, "eager", "skip")
    report = hir.hang(tmp_path)
    assert report.findings[0].code == "E0801"


RECORDED = """
import datetime, sys, time
import torch, torch.distributed as dist
import hir.torch.recorder
rank = int(sys.argv[1])
dist.init_process_group("hir:gloo", sys.argv[2], datetime.timedelta(seconds=5), 2, rank)
x, parts = torch.full((4,), rank + 1.0), [None, None]
dist.all_reduce(x)
dist.all_gather_object(parts, rank)
y = torch.empty(4)
for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]):
    work.wait()
pair = dist.new_group([0, 1])
dist.all_reduce(y, group=pair, async_op=True).wait()
assert y.tolist() == [6] * 4 and parts == [0, 1]
if rank == 0:
    time.sleep(1000)
dist.broadcast(x, 0)
"""


def test_a_recorder_around_a_backend_writes_dumps(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(RECORDED)
    environment = {**os.environ, "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "dumps/rank_"), "OMP_NUM_THREADS": "1"}
    store = f"file://{tmp_path}/store"
    ranks = [subprocess.Popen([sys.executable, script, str(rank), store], stderr=subprocess.PIPE, env=environment) for rank in (0, 1)]
    error = ranks[1].communicate(timeout=300)[1].decode()
    ranks[0].terminate()
    ranks[0].communicate(timeout=300)
    assert [it.returncode for it in ranks] == [-15, 1], error
    entries = json.loads((tmp_path / "dumps/rank_1").read_text())["entries"]
    assert {it["state"] for it in entries[:-1]} == {"completed"} and entries[-1]["state"] == "scheduled"
    assert entries[-1]["profiling_name"] == "gloo:broadcast" and entries[-1]["frames"][0]["name"] == "broadcast"
    line = RECORDED[: RECORDED.index("dist.broadcast")].count("\n") + 1
    report = hir.hang(tmp_path / "dumps")
    assert "rank 1 waits in broadcast" in report.verdict and f"train.py:{line}" in report.verdict, report


def test_the_rules_of_the_backend_hold(job):
    code, text = job(PROGRAMS.name, "--ranks", 2, "ddp", "", "gloo")
    assert code == 0 and "under gloo" in text, text
    code, text = job(PROGRAMS.name, "--ranks", 2, "messages", "tag", "gloo")
    assert code == 4 and f"tag 3 of the send to rank 1 (job_programs.py:{line_of('messages', 'tag')}) is not tag 4 of the recv" in text, text
    # With gloo, a send and a receive that are not in a batch proceed.
    code, text = job(PROGRAMS.name, "--ranks", 3, "messages", "ungrouped", "gloo")
    assert code == 0, text
    code, text = job(PROGRAMS.name, "--ranks=3", "--backend", "nccl", "messages", "ungrouped", "gloo")
    assert code == 4, text
