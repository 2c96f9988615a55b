"""Times calls of PyTorch on the GPUs of one torchrun."""
import datetime
import json
import math
import os
import statistics

import cases

# Bytes that are written before each run in which the calls go over slices, so that the L2 cache contains none
# of the slices. The L2 cache of an H100 or H200 has 50 or 60 MB.
FLUSHED = 128 << 20


class NotAvailable(Exception):
    """The reason why an alternative cannot be measured here."""


class Bench:
    """The processes of one torchrun, and their way of timing."""

    def __init__(self, options):
        # NVLink multicast is off, whatever the environment says.
        os.environ["NCCL_NVLS_ENABLE"] = "0"
        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        os.environ["NVSHMEM_DISABLE_NVLS"] = "1"
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.options = torch, dist, options
        local = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", local)
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl", device_id=self.device, timeout=datetime.timedelta(seconds=60))
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.tiny = torch.zeros(1, device=self.device)
        self.flushed = torch.zeros(FLUSHED, device=self.device, dtype=torch.uint8)
        torch.manual_seed(int.from_bytes(os.urandom(4), "little"))

    def random(self, *shape):
        return self.torch.empty(*shape, device=self.device, dtype=self.torch.bfloat16).uniform_(-1, 1)

    def poisoned(self, *shape):
        return self.torch.full(shape, math.nan, device=self.device, dtype=self.torch.bfloat16)

    def times(self, call, before, iters, warmup=5):
        torch, dist = self.torch, self.dist
        # A millisecond; four for a short layer, whose calls have several operators each.
        cycles = 8_000_000 if self.case["workload"] in cases.SHORT_LAYERS else 2_000_000

        def timed(count, sleeps):
            marks = []
            for _ in range(count):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                # The GPU sleeps while the host queues a short run, and the ranks synchronise on the GPU. So
                # neither the host's time nor a late rank adds to the time of a run, as in hir-run.
                if sleeps:
                    torch.cuda._sleep(cycles)
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

    def measure(self, name, make, graph=False, eager=True):
        """Times a call and prints its line. `make()` returns the call; the list of tensors that it writes, or a
        function that returns that list; and optionally a function to run before each run. The argument of the
        call is the index of its slice. A failure is reported in the line and is not fatal."""
        line = {"who": "peer", "name": name, **self.case, "ranks": self.ranks, "round": self.options.round}
        line["machine"] = os.environ.get("HIR_BENCH_MACHINE")
        for captured in [it for it, wanted in ((False, eager), (True, graph)) if wanted]:
            line["issue"] = "graph" if captured else "eager"
            try:
                runs = self.timed(*make(), captured=captured)
                line.update(us=statistics.median(runs), min_us=min(runs), max_us=max(runs), error=None)
            except NotAvailable as reason:
                line.update(us=None, error=f"not available: {reason}")
            except Exception as error:  # noqa: BLE001: every error is reported in the line
                line.update(us=None, error=(str(error).splitlines() or [type(error).__name__])[0][:200])
            if self.rank == 0:
                print(json.dumps(line), flush=True)
            self.torch.cuda.empty_cache()

    def timed(self, call, result, before=None, captured=False):
        """Returns the time of one call in each run, in microseconds."""
        calls, slices = cases.calls(self.case["workload"]), self.case["slices"]

        def run():
            for index in range(calls):
                call(index % slices)

        def prepare():
            if before:
                before()
            elif not callable(result):
                for it in result:
                    it.fill_(math.nan)
            if slices > 1:
                self.flushed.fill_(0)

        once = self.captured(run) if captured else run
        runs = [us / calls for us in self.times(once, prepare, self.options.iters)]
        for it in result() if callable(result) else result:
            if not self.torch.isfinite(it).all().item():
                raise RuntimeError("its result is not finite")
        return runs

    def group(self):
        """Returns the module and the group for symmetric memory."""
        try:
            import torch.distributed._symmetric_memory as symmetric
        except ImportError as error:
            raise NotAvailable(error) from error

        # For few rows, PyTorch's all-gather + matmul would use multicast.
        if symmetric._SymmetricMemory.has_multicast_support(self.torch._C._autograd.DeviceType.CUDA, self.device.index):
            raise NotAvailable("PyTorch does not turn off NVLink multicast")
        name = self.dist.group.WORLD.group_name
        # Later versions of PyTorch do this implicitly.
        if hasattr(symmetric, "enable_symm_mem_for_group"):
            symmetric.enable_symm_mem_for_group(name)
        return symmetric, name

    def shared(self, *shape):
        """Returns a tensor in symmetric memory, which all ranks can address."""
        symmetric, name = self.group()
        tensor = symmetric.empty(*shape, device=self.device, dtype=self.torch.bfloat16)
        symmetric.rendezvous(tensor, name)
        return tensor
