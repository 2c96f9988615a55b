"""Times models of `torch_models.py` in PyTorch and with `torch.compile(model, backend="hir")`, in turns in one job.

    torchrun --standalone --nproc-per-node=2 torch_compile.py [-b BACKEND#BACKEND…] [-m] [-p] [-r ROUNDS] [-t SECONDS] [CASE...]

A backend is eager, compile, micro, hir or hir:PASSES. A case is MODEL:ROWS:WIDTH:STEP, such as `block-products:4096:4096:backward`, or
`llama:8192:4096:backward` for a block of Llama 3 8B. A step is `forward` or `backward`, which is both. In each round, the backends run in another order: after one that needs much power, the clock
is lower for the next one. Each line of the output is a JSON object: the median time of a step on the slowest rank, in microseconds, and the
norm of the difference of results and gradients from those of eager PyTorch, relative to the norm, of the worst tensor. `of` has the ratio to
each backend before: the median of the rounds and its 95 % interval. `device_gb` is the memory of the device that is taken after the first
steps; with `-m`, no step of eager PyTorch runs before, and nothing is compared. `-p` also prints the kernels of a step of rank 0. After SECONDS, no more case begins. NVLink multicast is off.
"""

import argparse
import json
import os
import random
import statistics
import time

os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1")

import hir.torch  # noqa: E402, F401: before CUDA starts
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import torch_models  # noqa: E402

CASES = (
    "block-products:4096:4096:backward",
    "mlp:8192:8192:backward",
    "mlp:4096:4096:backward",
    "mlp:4096:8192:backward",
    "mlp:4096:4096:forward",
    "block-sdpa:4096:4096:forward",
)
STEPS, WARMUP = 8, 4


def compiled(backend, model):
    """Returns the model as a backend runs it."""
    if backend == "eager":
        return model
    name, _, passes = backend.partition(":")
    if name == "hir":
        chosen = {"run": "hir"} | ({"passes": passes} if passes else {})
        return torch.compile(model, backend="hir", dynamic=False, fullgraph=True, options=chosen)
    options = {}
    if backend == "micro":
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        enable_symm_mem_for_group(dist.group.WORLD.group_name)
        options = {"options": {"_micro_pipeline_tp": True}}
    return torch.compile(model, dynamic=False, fullgraph=True, **options)


class Case:
    """A model with its input and the gradient of its result."""

    def __init__(self, text, device):
        model, rows, width, self.step_name = text.split(":")
        rows, width, ranks = int(rows), int(width), dist.get_world_size()
        torch.manual_seed(dist.get_rank())
        is_llama = model.startswith("llama")
        shape = (1, rows // ranks, width) if is_llama else (rows // ranks, width)
        with device:
            if is_llama:
                self.model = torch_models.make_llama(model, width, rows)
            else:
                self.model = torch_models.make(model, width, ranks).bfloat16()
            self.x = torch.randn(shape, dtype=torch.bfloat16, requires_grad=self.step_name == "backward")
            self.grad = torch.randn(shape, dtype=torch.bfloat16)
        self.model.requires_grad_(self.step_name == "backward")

    def step(self, function):
        """Runs a step, and returns the result and the gradients."""
        self.x.grad = None
        for it in self.model.parameters():
            it.grad = None
        y = local(function(self.x))
        if self.step_name == "forward":
            return [y]
        y.backward(self.grad)
        return [y.detach(), self.x.grad, *(local(it.grad) for it in self.model.parameters())]


def local(tensor):
    """Returns the part of a DTensor that this rank has."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def ratio(runs, others):
    """Returns the median ratio of the rounds of two backends, and its 95 % interval by order statistics."""
    ratios = sorted(statistics.median(a) / statistics.median(b) for a, b in zip(runs, others, strict=True))
    aside = max(int(len(ratios) / 2 - 0.98 * len(ratios) ** 0.5), 0)
    return [round(it, 3) for it in (statistics.median(ratios), ratios[aside], ratios[-1 - aside])]


def difference(results, expected):
    """Returns the relative difference of the worst tensor."""
    pairs = zip(results, expected, strict=True)
    return max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in pairs)


def times(case, function, tiny):
    """Returns the times of steps on the slowest rank, in microseconds."""
    marks = []
    for _ in range(WARMUP + STEPS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.all_reduce(tiny)
        begin.record()
        case.step(function)
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize()
    slowest = torch.tensor([b.elapsed_time(e) * 1e3 for b, e in marks[WARMUP:]], device=tiny.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.tolist()


def kernels(case, function):
    """Returns the kernels and copies of a step: start, duration, stream and name."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    dist.barrier()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            case.step(function)
        torch.cuda.synchronize()
    path = f"/tmp/hir-profile-{os.getpid()}.json"
    found.export_chrome_trace(path)
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    os.unlink(path)
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    events = sorted((it for it in events if it.get("cat") in kinds), key=lambda it: it["ts"])
    events = events[2 * len(events) // 3 :]
    first = events[0]["ts"] if events else 0
    return [(it["ts"] - first, it["dur"], it["args"].get("stream"), it["name"]) for it in events]


def measure(text, options, device, tiny):
    rank = dist.get_rank()
    case, functions, lines = Case(text, device), {}, {}
    expected = None if options.memory else [it.clone() for it in case.step(case.model)]
    for backend in options.backends.split("#"):
        line = lines[backend] = {"case": text, "backend": backend, "us": None, "error": None}
        begin = time.monotonic()
        try:
            function = compiled(backend, case.model)
            for _ in range(3):
                results = case.step(function)
            line["difference"] = difference(results, expected) if expected else None
            functions[backend] = function
        except Exception as error:  # noqa: BLE001: the line reports it
            line["error"] = (str(error).splitlines() or [type(error).__name__])[0][:300]
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        line["device_gb"] = round((total - free) / 1e9, 2)
        line["compile_s"] = round(time.monotonic() - begin, 1)
    runs, order = {backend: [] for backend in functions}, list(functions)
    # The same on all ranks.
    chance = random.Random(text)
    for _ in range(options.rounds):
        chance.shuffle(order)
        for backend in order:
            runs[backend].append(times(case, functions[backend], tiny))
    done = []
    for backend, line in lines.items():
        if runs.get(backend):
            steps = [it for run in runs[backend] for it in run]
            line.update(us=round(statistics.median(steps), 1), min_us=round(min(steps), 1))
            line["of"] = {other: ratio(runs[backend], runs[other]) for other in done}
            done.append(backend)
        if rank == 0:
            print(json.dumps(line), flush=True)
    if options.profile:
        for backend, function in functions.items():
            found = kernels(case, function)
            if rank == 0:
                print(f"# kernels of {backend}, {text}: start, time, stream")
                for start, took, stream, name in found:
                    print(f"# {start:9.1f} {took:8.1f} {stream} {name[:110]}")
    torch._dynamo.reset()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--backends", default="eager#compile#micro#hir")
    parser.add_argument("-m", "--memory", action="store_true")
    parser.add_argument("-p", "--profile", action="store_true")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("-t", "--seconds", type=float, default=1e9)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    begin = time.monotonic()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch._dynamo.config.recompile_limit = 64
    dist.init_process_group("nccl", device_id=device)
    tiny = torch.zeros(1, device=device)
    for text in options.cases:
        late = torch.tensor(float(time.monotonic() - begin > options.seconds), device=device)
        dist.all_reduce(late)
        if late.item() > 0:
            break
        measure(text, options, device, tiny)
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
