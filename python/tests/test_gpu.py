"""Programs that run by hir's executor in the processes of their ranks, on emulated GPUs: no GPU and no PyTorch is needed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hir

ROOT = Path(__file__).parents[2]


def run_ranks(emulator, folder, ranks):
    """Runs the job of a folder, and returns what its ranks print."""
    names = {name: str(emulator) for name in ("HIR_CUDA", "HIR_NVRTC", "HIR_CUBLASLT", "HIR_NCCL")} | {"HIR_CUDNN": "none"}
    environment = {**os.environ, **names, "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    script = Path(__file__).with_name("gpu_rank.py")
    started = [
        subprocess.Popen(
            [sys.executable, script, str(rank), folder], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(ranks)
    ]
    try:
        printed = [it.communicate(timeout=300)[0] for it in started]
    finally:
        for it in started:
            it.kill()
    assert [it.returncode for it in started] == [0] * ranks, "\n".join(printed)
    return printed


@pytest.mark.parametrize("passes", ["@lower", "@overlap{}"])
def test_runs_in_memory_of_the_caller(emulator, tmp_path, passes):
    text = (ROOT / "docs/examples/pytorch/mlp.hir").read_text()
    ranks, runs = 2, 8
    generator = np.random.default_rng(0)
    shapes = {"T0": (ranks, 4, 8), "T1": (ranks, 16, 8), "T2": (ranks, 8, 16)}
    # Small integers, on which sums are exact.
    inputs = [
        {name: generator.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(runs)
    ]
    arrays = {f"{name}-{run}": array for run in range(runs) for name, array in inputs[run].items()}
    np.savez(tmp_path / "job.npz", program=text, passes=passes, ranks=ranks, runs=runs, donated=[], **arrays)
    printed = run_ranks(emulator, tmp_path, ranks)
    program = hir.read(text)
    for run in range(runs):
        [expected] = program.simulate(inputs[run]).values()
        for rank in range(ranks):
            result = np.load(tmp_path / f"out-T12-{run}-{rank}.npy")
            np.testing.assert_array_equal(result.reshape(4, 8), expected[rank])
    assert all("refused: " in it and "at 0x10" in it for it in printed), printed


@pytest.mark.parametrize("donated", [[], ["T0"]])
def test_results_lie_in_inputs_that_are_given_away(emulator, tmp_path, donated):
    tensors = [f"T{it}_g_float[iS0{{8}}, iS1{{8}}]" for it in range(5)]
    products = (f"  {tensors[it + 1]} = matmul({tensors[it if it > 1 else 0]}, {tensors[1]})\n" for it in range(1, 4))
    text = f"%HostIrContainer {{ ({tensors[0]}, {tensors[1]}) -> ({tensors[4]}) :\n{''.join(products)}}} // %HostIrContainer\n"
    runs = 5
    inputs = [
        {name: np.random.default_rng(run).integers(-3, 4, (1, 8, 8)).astype(np.float32) for name in ("T0", "T1")} for run in range(runs)
    ]
    arrays = {f"{name}-{run}": array for run in range(runs) for name, array in inputs[run].items()}
    np.savez(tmp_path / "job.npz", program=text, passes="", ranks=1, runs=runs, donated=donated, **arrays)
    [printed] = run_ranks(emulator, tmp_path, 1)
    assert printed.count("overwritten: T0") == runs * len(donated), printed
    for run in range(runs):
        first, second = (inputs[run][name][0] for name in ("T0", "T1"))
        np.testing.assert_array_equal(np.load(tmp_path / f"out-T4-{run}-0.npy"), first @ second @ second @ second)


def test_a_plan_that_makes_the_host_wait_runs_step_by_step(emulator, tmp_path):
    text = (ROOT / "tests/cases/check/host-wait.hir").read_text()
    # More runs with the same addresses than it takes to capture one.
    ranks, runs = 2, 4
    inputs = np.random.default_rng(0).integers(-3, 4, (runs, ranks, 4)).astype(np.float32)
    arrays = {f"T0-{run}": inputs[run] for run in range(runs)}
    np.savez(tmp_path / "job.npz", program=text, passes="", ranks=ranks, runs=runs, donated=[], **arrays)
    printed = run_ranks(emulator, tmp_path, ranks)
    for run in range(runs):
        for rank in range(ranks):
            for name, expected in (("T1", -inputs[run, rank]), ("T2", abs(inputs[run, rank]))):
                np.testing.assert_array_equal(np.load(tmp_path / f"out-{name}-{run}-{rank}.npy"), expected)
    note = "cannot be replayed as a CUDA graph, so all are issued step by step: rank 0: line 15: a CUDA graph cannot make the host wait"
    assert all(note in it for it in printed), printed
