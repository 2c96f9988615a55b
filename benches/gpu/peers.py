#!/usr/bin/env python3
"""Times the alternatives to hir-run on GPUs, and checks hir-run's results. compare.sh calls this script.

    torchrun --nproc-per-node 8 peers.py time WORKLOAD:M:N:K...
        prints a JSON line for each way to do each of these in PyTorch
    peers.py ours RANKS FOLDER/WORKLOAD:M:N:K...
        prints hir-run's measurements as such lines, and checks its outputs against float32 sums; the folder
        of a case contains inputs/, and for each measurement a folder with times.json, name and outputs
    peers.py table FILE
        prints all lines as a table with ratios
    peers.py versions
        prints the versions of the libraries
    peers.py libraries
        prints the paths of PyTorch's NCCL and cuBLASLt, so that hir-run uses the same

Workloads, in bf16, for d ranks:
  allgather-linear       C[m,n]   = allgather(A[m/d,k]) @ B[n,k].t()
  linear-allreduce       Y[m,n]   = allreduce(X[m,k/d] @ W[n,k/d].t())
  matmul-reduce-scatter  Y[m/d,n] = reduce_scatter(A[m,k/d] @ B[n,k/d].t())
  allgather, allreduce, reduce-scatter, all-to-all    of M elements in total (N and K are 1); all-to-all: of M
                         elements on each rank. A run has CALLS calls one after another, and its time is divided by
                         CALLS, because a single short call takes less time than the barrier before it varies.

A time is that of the slowest rank between two CUDA events after a barrier on the GPU, with the call queued
before it begins. Times are medians over iterations, in microseconds. Calls follow each other without pauses,
like hir-run's runs: a GPU that is idle between calls would be cooler, and faster.
Inputs are random and new for each measurement. Results are poisoned with NaN before each call and must be
finite afterwards. NVLink multicast is not used.
"""
import argparse
import ctypes
import datetime
import glob
import json
import math
import os
import statistics
import sys

COLLECTIVES = ("allgather", "allreduce", "reduce-scatter", "all-to-all")
# Calls of a collective in one run; compare.sh has the same number.
CALLS = 20


# ---- Timing the alternatives to hir-run ----


def repeated(call, calls):
    """Returns a function that does `calls` calls."""

    def run():
        for _ in range(calls):
            call()

    return run if calls > 1 else call


class Bench:
    """The processes of one torchrun, and their way of timing."""

    def __init__(self, options):
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.options = torch, dist, options
        local = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", local)
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl", device_id=self.device, timeout=datetime.timedelta(seconds=60))
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.tiny = torch.zeros(1, device=self.device)
        torch.manual_seed(int.from_bytes(os.urandom(4), "little"))

    def random(self, *shape):
        return self.torch.empty(*shape, device=self.device, dtype=self.torch.bfloat16).uniform_(-1, 1)

    def poisoned(self, *shape):
        return self.torch.full(shape, math.nan, device=self.device, dtype=self.torch.bfloat16)

    def times(self, call, before, iters, warmup=5):
        torch, dist = self.torch, self.dist

        def timed(count, sleeps):
            marks = []
            for _ in range(count):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                # The GPU sleeps for a millisecond while the host queues a short call, and the ranks
                # synchronise on the GPU. So neither the host's time nor a late rank adds to the time of a call,
                # as in hir-run.
                if sleeps:
                    torch.cuda._sleep(2_000_000)
                before()
                dist.all_reduce(self.tiny)
                begin.record()
                call()
                end.record()
                marks.append((begin, end))
            torch.cuda.synchronize()
            slowest = torch.tensor([b.elapsed_time(e) * 1e3 for b, e in marks], device=self.device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            return slowest.tolist()

        is_short = statistics.median(timed(3, True)) < 2000
        return timed(warmup + iters, is_short)[warmup:]

    def captured(self, call):
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        self.dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    def measure(self, name, make, graph=False):
        """Times a call and prints its line. `make()` returns the call, the tensor that it writes or a
        function that returns that tensor, and optionally a function to run before each call. A failure is
        reported in the line and is not fatal."""
        line = {"who": "peer", "name": name, **self.case, "ranks": self.ranks, "round": self.options.round}
        for captured in (False, True) if graph else (False,):
            line["issue"] = "graph" if captured else "eager"
            try:
                call, result, *before = make()
                poison = (lambda: None) if callable(result) else (lambda: result.fill_(math.nan))
                before = before[0] if before else poison
                calls = CALLS if self.case["workload"] in COLLECTIVES else 1
                call = repeated(call, calls)
                call = self.captured(call) if captured else call
                runs = [us / calls for us in self.times(call, before, self.options.iters)]
                written = result() if callable(result) else result
                if not self.torch.isfinite(written).all().item():
                    raise RuntimeError("its result is not finite")
                line.update(us=statistics.median(runs), min_us=min(runs), max_us=max(runs), error=None)
            except Exception as error:  # noqa: BLE001: every error is reported in the line
                line.update(us=None, error=(str(error).splitlines() or [type(error).__name__])[0][:200])
            if self.rank == 0:
                print(json.dumps(line), flush=True)
            self.torch.cuda.empty_cache()

    def group(self):
        """Returns the group for symmetric memory. If PyTorch lacks it, `measure` reports the error."""
        import torch.distributed._symmetric_memory as symmetric

        name = self.dist.group.WORLD.group_name
        # Later versions of PyTorch do this implicitly.
        if hasattr(symmetric, "enable_symm_mem_for_group"):
            symmetric.enable_symm_mem_for_group(name)
        return symmetric, name


def time_allgather_linear(it, m, n, k):
    torch, dist, d = it.torch, it.dist, it.ranks

    def matmul():
        a, b, c = it.random(m, k), it.random(n, k), it.poisoned(m, n)
        return lambda: torch.mm(a, b.t(), out=c), c

    def gather():
        a, whole = it.random(m // d, k), it.poisoned(m, k)
        return lambda: dist.all_gather_into_tensor(whole, a), whole

    def eager():
        a, b = it.random(m // d, k), it.random(n, k)
        whole, c = it.poisoned(m, k), it.poisoned(m, n)

        def call():
            dist.all_gather_into_tensor(whole, a)
            torch.mm(whole, b.t(), out=c)

        return call, c

    def fused():
        symmetric, name = it.group()
        a, b = symmetric.empty(m // d, k, device=it.device, dtype=torch.bfloat16), it.random(n, k)
        a.copy_(it.random(m // d, k))
        last = []

        def call():
            last[:] = torch.ops.symm_mem.fused_all_gather_matmul(a, [b.t()], 0, name, return_A=False)[1]

        return call, lambda: last[0]

    it.measure("matmul only", matmul)
    it.measure("all-gather only, NCCL", gather)
    it.measure("PyTorch, NCCL", eager, graph=True)
    it.measure("PyTorch, symmetric memory", fused)


def time_linear_allreduce(it, m, n, k):
    torch, dist, part = it.torch, it.dist, k // it.ranks

    def operands():
        return it.random(m, part), it.random(n, part), it.poisoned(m, n)

    def matmul():
        x, w, y = operands()
        return lambda: torch.mm(x, w.t(), out=y), y

    def reduce():
        x, y = it.random(m, n), it.poisoned(m, n)
        return lambda: dist.all_reduce(y), y, lambda: y.copy_(x)

    def streams(chunks):
        def make():
            x, w, y = operands()
            pool = [torch.cuda.Stream() for _ in range(chunks)]

            def call():
                current = torch.cuda.current_stream()
                for stream, rows, out in zip(pool, x.chunk(chunks), y.chunk(chunks)):
                    stream.wait_stream(current)
                    with torch.cuda.stream(stream):
                        torch.mm(rows, w.t(), out=out)
                        dist.all_reduce(out, async_op=True).wait()
                for stream in pool:
                    current.wait_stream(stream)

            return call, y

        return make

    it.measure("matmul only", matmul)
    it.measure("all-reduce only, NCCL", reduce)
    for chunks in (1, 2, 4, 8):
        it.measure(f"PyTorch, NCCL, {chunks} chunks", streams(chunks), graph=True)


def time_matmul_reduce_scatter(it, m, n, k):
    torch, dist, d = it.torch, it.dist, it.ranks

    def operands():
        return it.random(m, k // d), it.random(n, k // d)

    def matmul():
        (a, b), c = operands(), it.poisoned(m, n)
        return lambda: torch.mm(a, b.t(), out=c), c

    def scatter():
        c, y = it.random(m, n), it.poisoned(m // d, n)
        return lambda: dist.reduce_scatter_tensor(y, c), y

    def eager():
        (a, b), c, y = operands(), it.poisoned(m, n), it.poisoned(m // d, n)

        def call():
            torch.mm(a, b.t(), out=c)
            dist.reduce_scatter_tensor(y, c)

        return call, y

    def fused():
        _, name = it.group()
        a, b = operands()
        last = []

        def call():
            last[:] = [torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b.t(), "sum", 0, name)]

        return call, lambda: last[0]

    it.measure("matmul only", matmul)
    it.measure("reduce-scatter only, NCCL", scatter)
    it.measure("PyTorch, NCCL", eager, graph=True)
    it.measure("PyTorch, symmetric memory", fused)


class Nccl:
    """A communicator of all ranks, and direct calls of PyTorch's NCCL, as nccl.h declares them."""

    BF16, SUM = 9, 0

    def __init__(self, it):
        self.it, self.library = it, ctypes.CDLL("libnccl.so.2")
        identifier = (ctypes.c_char * 128)()
        if it.rank == 0:
            self.call("ncclGetUniqueId", ctypes.byref(identifier))
        told = [bytes(identifier)]
        it.dist.broadcast_object_list(told, device=it.device)

        class Identifier(ctypes.Structure):
            _fields_ = [("internal", ctypes.c_char * 128)]

        self.comm = ctypes.c_void_p()
        self.call(
            "ncclCommInitRank", ctypes.byref(self.comm), it.ranks, Identifier.from_buffer_copy(told[0]), it.rank
        )

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned {status}")

    def collective(self, name, x, y, count, *more):
        """Returns a call on the stream that is current in PyTorch. The call keeps the tensors alive."""

        def call():
            at = [ctypes.c_void_p(it.data_ptr()) for it in (x, y)]
            stream = ctypes.c_void_p(self.it.torch.cuda.current_stream().cuda_stream)
            self.call(name, *at, ctypes.c_size_t(count), self.BF16, *more, self.comm, stream)

        return call


def measure_collective(it, make, name, count, *more):
    """Measures the direct NCCL call and the collective in PyTorch, with the same number of elements."""

    def direct():
        if not hasattr(it, "nccl"):
            it.nccl = Nccl(it)
        x, y = it.random(count), it.poisoned(count)
        if name == "ncclAllGather":
            x = x[: count // it.ranks]
        elif name == "ncclReduceScatter":
            y = y[: count // it.ranks]
        return it.nccl.collective(name, x, y, min(x.numel(), y.numel()), *more), y

    it.measure("NCCL, called directly", direct, graph=True)
    it.measure("PyTorch, NCCL", make, graph=True)


def time_allgather(it, count, _n, _k):
    def make():
        x, y = it.random(count // it.ranks), it.poisoned(count)
        return lambda: it.dist.all_gather_into_tensor(y, x), y

    measure_collective(it, make, "ncclAllGather", count)


def time_allreduce(it, count, _n, _k):
    # In place, as in PyTorch, on new data each time, because repeated sums would overflow.
    def make():
        x, y = it.random(count), it.poisoned(count)
        return lambda: it.dist.all_reduce(y), y, lambda: y.copy_(x)

    def symmetric():
        symmetric, name = it.group()
        x = it.random(count)
        shared = symmetric.empty(count, device=it.device, dtype=it.torch.bfloat16)
        symmetric.rendezvous(shared, name)
        return name, shared, lambda: shared.copy_(x)

    def one_shot():
        name, shared, fill = symmetric()
        last = []

        def call():
            last[:] = [it.torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", name)]

        return call, lambda: last[0], fill

    def two_shot():
        name, shared, fill = symmetric()
        return lambda: it.torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", name), lambda: shared, fill

    measure_collective(it, make, "ncclAllReduce", count, Nccl.SUM)
    if count <= 4 << 20:
        it.measure("PyTorch, symmetric memory, one-shot", one_shot, graph=True)
    it.measure("PyTorch, symmetric memory, two-shot", two_shot, graph=True)


def time_reduce_scatter(it, count, _n, _k):
    def make():
        x, y = it.random(count), it.poisoned(count // it.ranks)
        return lambda: it.dist.reduce_scatter_tensor(y, x), y

    measure_collective(it, make, "ncclReduceScatter", count, Nccl.SUM)


def time_all_to_all(it, count, _n, _k):
    def make():
        x, y = it.random(count), it.poisoned(count)
        return lambda: it.dist.all_to_all_single(y, x), y

    it.measure("PyTorch, NCCL", make, graph=True)


TIMED = {
    "allgather-linear": time_allgather_linear,
    "linear-allreduce": time_linear_allreduce,
    "matmul-reduce-scatter": time_matmul_reduce_scatter,
    "allgather": time_allgather,
    "allreduce": time_allreduce,
    "reduce-scatter": time_reduce_scatter,
    "all-to-all": time_all_to_all,
}


def run_time(options):
    it = Bench(options)
    for case in options.cases:
        it.case = case
        TIMED[case["workload"]](it, case["m"], case["n"], case["k"])
    it.dist.barrier()
    it.dist.destroy_process_group()


# ---- Checking the outputs of hir-run ----


# Number of random rows to check, besides those at the edges of shards.
ROWS = 64


def header(path):
    """Returns the tensor entries of a .safetensors file, and the offset of their data."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return entries, 8 + length


def load(torch, path, device):
    """Returns the only tensor of a file, in bf16."""
    entries, start = header(path)
    (entry,) = entries.values()
    if entry["dtype"] != "BF16":
        raise ValueError(f"{path} contains {entry['dtype']}, expected BF16")
    begin, end = entry["data_offsets"]
    flat = torch.from_file(path, shared=False, size=start + end, dtype=torch.uint8)[start + begin : start + end]
    # The data may be at any offset. A copy is aligned for 2-byte elements.
    return flat.clone().view(torch.bfloat16).to(device).reshape(entry["shape"])


def wanted(torch, device, case, folder):
    """Returns float32 sums of the inputs, the bound on their rounding error, and the rows that they are."""
    d, m, n, k, kind = (case[it] for it in ("ranks", "m", "n", "k", "workload"))

    def tensor(name, rank):
        return load(torch, os.path.join(folder, "inputs", f"{name}.{rank}.safetensors"), device)

    if kind in COLLECTIVES:
        inputs = [tensor("T0", rank).flatten() for rank in range(d)]
        if kind == "allgather":
            whole = torch.cat(inputs).float()
            return whole, torch.zeros_like(whole), slice(None)
        if kind == "all-to-all":
            # Part r of every rank goes to rank r.
            whole = torch.stack([it.reshape(d, -1) for it in inputs], dim=1).flatten().float()
            return whole, torch.zeros_like(whole), slice(None)
        # Each of the d - 1 additions rounds a partial sum to bf16, which is at most the sum of magnitudes.
        return sum(it.float() for it in inputs), (d - 1) * 2.0**-8 * sum(it.float().abs() for it in inputs), slice(None)
    # Random rows, and those at the edges of shards.
    edges = [row for rank in range(d) for row in (rank * m // d, (rank + 1) * m // d - 1)]
    rows = torch.cat([torch.tensor(edges), torch.randint(0, m, (ROWS,))]).to(device)
    if kind == "allgather-linear":
        a = torch.cat([tensor("T0", rank).reshape(-1, k) for rank in range(d)])[rows]
        partial = [a.float() @ tensor("T1", 0).reshape(n, k).float().t()]
    else:
        partial = []
        for rank in range(d):
            a, b = tensor("T0", rank).reshape(m, k // d), tensor("T1", rank).reshape(n, k // d)
            partial.append(a[rows].float() @ b.float().t())
    # Each part and each intermediate sum is rounded to bf16 once. Products are summed in float32.
    bound = (2 * len(partial) - 1) * 2.0**-8 * sum(it.abs() for it in partial) + k**1.5 * 2.0**-24
    return sum(partial), bound, rows


def check(torch, device, case, reference, folder):
    """Compares the outputs in a folder with the reference. Returns the largest fraction of the bound that was
    used, or raises `Wrong`."""
    whole, bound, rows = reference
    d, m, n, kind = (case[it] for it in ("ranks", "m", "n", "workload"))
    out = "T1" if kind in COLLECTIVES else "T3" if kind == "linear-allreduce" else "T2"
    worst = 0.0
    scattered = kind in ("reduce-scatter", "all-to-all", "matmul-reduce-scatter")
    m = d * m if kind == "all-to-all" else m
    for rank in range(d if scattered else 1):
        found = load(torch, os.path.join(folder, f"{out}.{rank}.safetensors"), device).reshape(-1, n)
        if not torch.isfinite(found).all():
            raise Wrong(f"rank {rank}: {out} has elements that are not finite, so they were not written")
        first, last = (rank * m // d, (rank + 1) * m // d) if scattered else (0, m)
        if kind in COLLECTIVES:
            found, mine = found.flatten(), slice(first, last)
        else:
            mine = (rows >= first) & (rows < last)
            found = found[rows[mine] - first]
        worst = max(worst, differs(torch, found, whole[mine], bound[mine], f"rank {rank}"))
    return worst


class Wrong(Exception):
    """The error for a wrong result."""


def differs(torch, found, wanted, bound, where):
    """Returns the largest fraction of the bound that was used, or raises `Wrong` if the bound is exceeded."""
    if found.shape != wanted.shape:
        raise Wrong(f"{where}: shape {tuple(found.shape)}, expected {tuple(wanted.shape)}")
    off = (found.float() - wanted).abs()
    # A NaN is outside every bound.
    wrong = ~(off <= bound)
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        raise Wrong(
            f"{where}: {int(wrong.sum())} of {wrong.numel()} elements are wrong, the first at {at}: "
            f"{found[at].item()}, expected {wanted[at].item()} within {bound[at].item():.3g}"
        )
    return (off / bound.clamp(min=1e-30)).max().item() if off.numel() else 0.0


# ---- Lines and tables ----


def run_ours(options):
    """Prints a line for each measurement of hir-run after checking it. A failure is reported, and its line
    has no time."""
    torch = device = None
    if not options.simulated:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    status = 0
    for folder in options.folders:
        shape = {**case(os.path.basename(os.path.normpath(folder))), "ranks": options.ranks}
        reference, lack = None, None
        try:
            reference = None if options.simulated else wanted(torch, device, shape, folder)
        except Exception as error:  # noqa: BLE001: a failure of one case must not stop the others
            lack = f"no reference to check with: {error}"
        for times in sorted(glob.glob(os.path.join(folder, "*", "times.json"))):
            line = measured(torch, device, shape, reference, lack, os.path.dirname(times))
            if line["error"]:
                status = 1
                what = f"{shape['workload']}, {options.ranks} ranks, {line['name']} ({line['issue']})"
                print(f"# FAILED: {what}: {line['error']}", file=sys.stderr)
            print(json.dumps({**line, "round": options.round}), flush=True)
    sys.exit(status)


def measured(torch, device, shape, reference, lack, folder):
    """Returns the line of a measurement of hir-run. Without a reference it is not checked here."""
    with open(os.path.join(folder, "times.json")) as file:
        data = json.load(file)
    with open(os.path.join(folder, "name")) as file:
        name = file.read().strip()
    issue = "eager" if data["graph_nodes"] is None else "graph"
    line = {"who": "ours", "name": name, **shape, "issue": issue, "error": None, "bound_used": None}
    calls = CALLS if shape["workload"] in COLLECTIVES else 1
    line.update(us=data["median_us"] / calls, min_us=data["min_us"] / calls, max_us=data["max_us"] / calls)
    try:
        if reference:
            line["bound_used"] = check(torch, device, shape, reference, folder)
    except Exception as error:  # noqa: BLE001: as above
        lack = f"wrong: {error}"
    if lack:
        line.update(us=None, error=lack[:300])
    return line


def table(lines):
    """Returns rows of text: medians over rounds by workload and shape, and the ratio of hir-run to the
    fastest alternative that does the same work."""
    cases, rows = {}, []
    for line in lines:
        key = (line["workload"], line["ranks"], line["m"], line["n"], line["k"])
        cases.setdefault(key, {}).setdefault((line["who"], line["name"], line["issue"]), []).append(line)
    for (workload, ranks, m, n, k), case in cases.items():
        shape = f"{m} elements" if n == k == 1 else f"m={m} n={n} k={k}"
        rows.append(f"# {workload}, {ranks} ranks, {shape}")
        rows.append(f"# {'':5} {'issue':6} {'what':40} {'rounds':>6} {'us':>11} {'least':>11} {'ratio':>7}")
        medians = {}
        for key, measured in case.items():
            good = [it for it in measured if it["us"] is not None]
            if good:
                medians[key] = statistics.median(it["us"] for it in good)
        # An alternative that does only a part of the work is not compared.
        whole = {key: us for key, us in medians.items() if key[0] == "peer" and "only" not in key[1]}
        best = min(whole.values(), default=None)
        for key, measured in case.items():
            who, name, issue = key
            error = next((it["error"] for it in measured if it.get("error")), None)
            if key not in medians:
                rows.append(f"  {who:5} {issue:6} {name:40} {'-':>6} {error}")
                continue
            good = [it for it in measured if it["us"] is not None]
            ratio = f"{medians[key] / best:7.3f}" if who == "ours" and best else f"{'-':>7}"
            least = min(it["min_us"] for it in good)
            rows.append(f"  {who:5} {issue:6} {name:40} {len(good):>6} {medians[key]:11.2f} {least:11.2f} {ratio}")
        mine = {key: us for key, us in medians.items() if key[0] == "ours"}
        if mine and whole:
            fastest, peer = min(mine, key=mine.get), min(whole, key=whole.get)
            rows.append(
                f"# best: {fastest[1]} ({fastest[2]}) {mine[fastest]:.2f} us, {peer[1]} ({peer[2]}) {whole[peer]:.2f} us, "
                f"ratio {mine[fastest] / whole[peer]:.3f}"
            )
        else:
            rows.append("# best: nothing to compare")
    return rows


def run_table(options):
    with open(options.file) as file:
        for row in table([json.loads(line) for line in file if line.startswith("{")]):
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


def case(text):
    """Parses WORKLOAD:M:N:K."""
    workload, *shape = text.split(":")
    if workload not in TIMED:
        raise argparse.ArgumentTypeError(f"{workload} is not one of {', '.join(TIMED)}")
    m, n, k = map(int, shape)
    return {"workload": workload, "m": m, "n": n, "k": k}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    timing = commands.add_parser("time")
    timing.add_argument("cases", type=case, nargs="+")
    timing.add_argument("--iters", type=int, default=20)
    mine = commands.add_parser("ours")
    mine.add_argument("ranks", type=int)
    mine.add_argument("folders", nargs="+")
    mine.add_argument("--simulated", action="store_true", help="hir-run has already checked its results on the simulator")
    for command in (timing, mine):
        command.add_argument("--round", type=int, default=0)
    commands.add_parser("table").add_argument("file")
    commands.add_parser("versions")
    commands.add_parser("libraries")
    options = parser.parse_args()
    {"time": run_time, "ours": run_ours, "table": run_table, "versions": run_versions,
     "libraries": run_libraries}[options.command](options)


if __name__ == "__main__":
    main()
