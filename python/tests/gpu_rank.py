"""A rank that runs a program by hir's executor in this process, on emulated GPUs. Arguments: rank, folder of the job.

The folder has the program, the inputs of all ranks for each run, and the messages of the ranks. `test_gpu.py` starts it.
"""

import ctypes
import os
import sys
import time
from pathlib import Path

import numpy as np

import hir
from hir import _hir

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
job = np.load(folder / "job.npz", allow_pickle=True)
world, ranks, runs = job["program"].item(), int(job["ranks"]), int(job["runs"])
messages = 0


def exchange(mine: bytes) -> list[bytes]:
    global messages
    number, messages = messages, messages + 1
    partial = folder / f"partial-{rank}"
    partial.write_bytes(mine)
    partial.rename(folder / f"{number}-{rank}")
    paths = [folder / f"{number}-{other}" for other in range(ranks)]
    while not all(it.exists() for it in paths):
        time.sleep(0.001)
    return [it.read_bytes() for it in paths]


def check(status: int) -> None:
    assert status == 0, f"CUDA: {status}"


program = hir.read(world).run_passes(job["passes"].item())
gpu = _hir.Gpu(rank, rank, ranks, exchange)
donated = list(job["donated"])
loaded = gpu.load(program._world(ranks), True, donated)
cuda = ctypes.CDLL(os.environ["HIR_CUDA"])
stream = ctypes.c_void_p()
check(cuda.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0))


def allocate(bytes: int) -> int:
    address = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), max(bytes, 1)))
    return address.value


print(*loaded.notes(), sep="\n")
keep = []
for run in range(runs):
    if run % 4 == 0:
        # Three more runs use this memory: the last two are launched as graphs.
        addresses = [allocate(length * size) for _, length, size, _, _ in loaded.buffers()]
    for port in loaded.inputs():
        data = np.ascontiguousarray(job[f"{port[0]}-{run}"][rank])
        keep.append(data)
        check(cuda.cuMemcpyHtoDAsync_v2(ctypes.c_uint64(addresses[port[1]]), ctypes.c_void_p(data.ctypes.data), data.nbytes, stream))
    loaded.run(addresses, stream.value)
    for port in loaded.inputs():
        after = np.empty_like(job[f"{port[0]}-{run}"][rank])
        check(cuda.cuStreamSynchronize(stream))
        check(cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(after.ctypes.data), ctypes.c_uint64(addresses[port[1]]), after.nbytes))
        if (after != job[f"{port[0]}-{run}"][rank]).any():
            assert port[0] in donated
            print("overwritten:", port[0])
    for name, buffer, offset, shape, strides in loaded.outputs():
        _, length, _, _, _ = loaded.buffers()[buffer]
        whole = np.empty(length, np.float32)
        check(cuda.cuStreamSynchronize(stream))
        check(cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(whole.ctypes.data), ctypes.c_uint64(addresses[buffer]), whole.nbytes))
        view = np.lib.stride_tricks.as_strided(whole[offset:], shape, [4 * it for it in strides])
        np.save(folder / f"out-{name}-{run}-{rank}.npy", view)
issued, complete = loaded.progress()
assert issued == complete == runs, (issued, complete)
try:
    loaded.run([16] * len(loaded.buffers()), stream.value)
except hir.HirError as error:
    print("refused:", error)
