"""Hangs from dumps, and the commands that the package installs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hir


def record(seq: int, name: str, state: str = "scheduled") -> dict:
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": seq,
        "profiling_name": f"nccl:{name}",
        "state": state,
        "time_created_ns": seq,
        "retired": state == "completed",
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
    }


@pytest.fixture
def dumps(tmp_path):
    def write(*ranks):
        for rank, entries in enumerate(ranks):
            config = {"0": {"name": "0", "desc": "default_pg", "ranks": json.dumps(list(range(len(ranks))))}}
            dump = {"version": "2.10", "pg_config": config, "entries": entries}
            (tmp_path / f"rank_{rank}.json").write_text(json.dumps(dump))
        return tmp_path

    return write


DONE = record(1, "all_reduce", "completed")


def test_the_rank_that_diverges_is_named(dumps):
    folder = dumps([DONE, record(2, "all_reduce")], [DONE, record(2, "broadcast")], [DONE, record(2, "all_reduce")])
    report = hir.hang(folder)
    assert report.is_hang
    assert report.findings[0].code == "E0801"
    assert report.findings[0].message.startswith("rank 1 calls broadcast where ranks 0 and 2 call all_reduce")
    assert report.findings[0].message in str(report)
    assert report.table
    with pytest.raises(hir.FindingsError) as caught:
        report.raise_if_found()
    assert caught.value.code == "E0801"


def test_no_hang_no_finding(dumps):
    report = hir.hang(dumps([DONE], [DONE]))
    assert not report.is_hang
    assert report.findings == ()
    report.raise_if_found()


def test_files_that_are_no_dumps(tmp_path):
    with pytest.raises(hir.HirError, match="missing"):
        hir.hang(tmp_path / "missing")
    (tmp_path / "rank_0.json").write_text("no dump")
    with pytest.raises(hir.HirError):
        hir.hang(tmp_path)


def command(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, timeout=60, **options)


def script(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def test_commands_are_the_tools(tmp_path, dumps):
    program = tmp_path / "gather.hir"
    program.write_text(hir.EXAMPLE)
    for words in ([script("hir-opt")], [script("hir"), "opt"], [sys.executable, "-m", "hir", "opt"]):
        result = command(*words, program, "--passes", "lower-to-communication")
        assert (result.returncode, result.stderr) == (0, "")
        assert "type=Allgather" in result.stdout
    result = command(script("hir-run"), program)
    assert result.stdout.splitlines()[-1].startswith("[SUCCESS]")
    result = command(script("hir"), "hang", dumps([DONE, record(2, "all_reduce")], [DONE, record(2, "broadcast")]))
    assert result.returncode == 4
    assert "E0801" in result.stderr


def test_unknown_tools_and_options(tmp_path):
    result = command(script("hir"), "fly")
    assert result.returncode == 2 and "unrecognized subcommand 'fly'" in result.stderr
    assert command(script("hir-opt"), "--no-such-flag").returncode == 2
    assert command(script("hir"), "--help").returncode == 0
    assert "hir hang" in command(script("hir"), "hang", "--help").stdout


def test_the_command_is_the_native_program_and_starts_the_tools_of_python():
    assert Path(script("hir")).read_bytes()[:4] == b"\x7fELF"
    result = command(script("hir"), "job", "--help")
    assert result.returncode == 0 and "python -m hir job SCRIPT" in result.stdout
