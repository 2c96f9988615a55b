"""`torch.compile(model, backend="hir")` on GPUs: hir's executor works in the PyTorch process. The GPUs are emulated."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import hir.torch  # noqa: F401
from hir.torch import _watch


def test_gradients_are_those_of_pytorch(emulator):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    names = {name: str(emulator) for name in ("HIR_CUDA", "HIR_NVRTC", "HIR_CUBLASLT", "HIR_NCCL")} | {"HIR_CUDNN": "none"}
    options = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "HIR_EMULATED_ANY_MEMORY": "1", "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("torch_gpu_rank.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        command, env={**os.environ, **names, **options}, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    # The ranks may write at the same time.
    assert done.stdout.count("rank 1 is out of memory") == 2, done.stdout


def test_a_run_that_does_not_end_is_reported(monkeypatch):
    monkeypatch.setattr(_watch, "INTERVAL", 0.01)
    reported, messages = threading.Event(), []

    def end(message):
        messages.append(message)
        reported.set()

    watch = _watch.Watch(end)
    watch.add("the forward graph", lambda: (3, 3), 0.01)
    watch.add("the backward graph", lambda: (3, 1), 0.05)
    assert reported.wait(10)
    assert messages == [
        "run 2 of the backward graph has not ended for 0.05 s, of 3 that this rank has issued: another rank has ended, or has not "
        "called it"
    ]
