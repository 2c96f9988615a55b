#!/usr/bin/env python3
"""Times the alternatives to hir-run on GPUs, and checks hir-run's results. compare.sh calls this script.

    torchrun --nproc-per-node 8 peers.py time WORKLOAD:M:N:K[:SLICES]...
        prints a JSON line for each way to do each of these in PyTorch, and a record when one is done
    peers.py ours RANKS FOLDER/WORKLOAD:M:N:K:SLICES...
        prints hir-run's measurements as such lines, and checks its outputs against float32 sums; the folder
        of a case contains inputs/, and for each measurement a folder with name, issue, times.json and outputs,
        or with failure instead of times.json
    peers.py table FILE
        prints all lines as a table with ratios; the exit code is 1 if a measurement of hir-run failed
    peers.py measured FILE
        prints what the file contains, for compare.sh to skip
    peers.py versions
        prints the versions of the libraries
    peers.py libraries
        prints the paths of PyTorch's NCCL and cuBLASLt, so that hir-run uses the same

Workloads, in bf16, for d ranks:
  allgather-linear       C[m,n]   = allgather(A[m/d,k]) @ B[n,k].t()
  linear-allreduce       Y[m,n]   = allreduce(X[m,k/d] @ W[n,k/d].t())
  matmul-reduce-scatter  Y[m/d,n] = reduce_scatter(A[m,k/d] @ B[n,k/d].t())
  column-parallel        Y[m,n/d] = allgather(X[m/d,k]) @ W[n/d,k].t(), for few rows
  row-parallel           Y[m,n]   = allreduce(X[m,k/d] @ W[n,k/d].t()), for few rows
  mlp                    Y[m/d,n] = reduce_scatter(relu(allgather(X[m/d,n]) @ V[k/d,n].t()) @ W[n,k/d].t())
  block                  H = X + attention(X), Y[m/d,n] = H + mlp(H), with attention by matmuls and softmax
  local-WORKLOAD         the products of one rank of these, without communication (of hir-run only)
  allgather, allreduce, reduce-scatter, all-to-all    of M elements in total (N and K are 1); all-to-all: of M
                         elements on each rank

A time is that of the slowest rank between two CUDA events after a barrier on the GPU, with the call queued
before it begins. Times are medians over iterations, in microseconds. Calls follow each other without pauses,
like hir-run's runs: a GPU that is idle between calls would be cooler, and faster.
A run of a collective, of column-parallel or of row-parallel has 20 calls one after another, and its time is
divided by 20, because a single short call takes less time than the barrier before it varies. With SLICES > 1
the calls go over slices of larger tensors, and the L2 cache is overwritten before each run.
Inputs are random and new for each measurement. Results are poisoned with NaN before each run and must be
finite afterwards. NVLink multicast is off.
"""
import argparse
import glob
import json
import os
import sys

# Processes of torchrun would write the same cache files.
sys.dont_write_bytecode = True

import cases  # noqa: E402: after the line above
import checks  # noqa: E402
import tables  # noqa: E402


def run_time(options):
    import collectives
    import layers
    import timing

    it = timing.Bench(options)
    for case in options.cases:
        it.case = case
        if case["workload"] in cases.COLLECTIVES:
            collectives.TIMED[case["workload"]](it, case["m"])
        else:
            layers.TIMED[case["workload"]](it, case["m"], case["n"], case["k"])
        if it.rank == 0:
            print(json.dumps({"record": "done", **case, "ranks": it.ranks, "round": options.round}), flush=True)
    it.dist.barrier()
    it.dist.destroy_process_group()


def run_table(options):
    lines, records = tables.read(options.file)
    for row in tables.table(lines, records):
        print(row)
    sys.exit(any(it["who"] == "ours" and it.get("error") for it in lines))


def run_measured(options):
    for row in tables.measured_keys(*tables.read(options.file)):
        print(row)


def run_versions(_):
    try:
        import torch
    except ImportError:
        print("# PyTorch is not installed: nothing to compare with, and no float32 sums to check the results")
        sys.exit(1)
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "none"
    print(f"# PyTorch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}, Python {sys.version.split()[0]}")


def run_libraries(_):
    import importlib.util

    package = importlib.util.find_spec("nvidia")
    for variable, pattern in (("HIR_NCCL", "nccl/lib/libnccl.so.*"), ("HIR_CUBLASLT", "*/lib/libcublasLt.so.*")):
        for place in package.submodule_search_locations if package else ():
            for path in sorted(glob.glob(os.path.join(place, pattern)))[:1]:
                print(f"{variable}={path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    timing = commands.add_parser("time")
    timing.add_argument("cases", type=cases.parse, nargs="+")
    timing.add_argument("--iters", type=int, default=20)
    mine = commands.add_parser("ours")
    mine.add_argument("ranks", type=int)
    mine.add_argument("folders", nargs="+")
    mine.add_argument("--simulated", action="store_true", help="hir-run has already checked its results on the simulator")
    for command in (timing, mine):
        command.add_argument("--round", type=int, default=0)
    commands.add_parser("table").add_argument("file")
    commands.add_parser("measured").add_argument("file")
    commands.add_parser("versions")
    commands.add_parser("libraries")
    options = parser.parse_args()
    {"time": run_time, "ours": checks.run, "table": run_table, "measured": run_measured, "versions": run_versions,
     "libraries": run_libraries}[options.command](options)


if __name__ == "__main__":
    main()
