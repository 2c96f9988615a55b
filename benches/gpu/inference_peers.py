"""Times the cases of inference.py in PyTorch, under torchrun: inference_peers.py FOLDER CASE... prints a JSON line for each way.

The ways differ in the all-reduce: NCCL by PyTorch, NCCL in a symmetric window, PyTorch's one-shot and two-shot kernels over
symmetric memory. What follows is compiled by torch.compile: the residual and the norm, the gate of the MLP, and the new entries of
the cache are one kernel each. Products write to the memory of the all-reduce. Everything is one CUDA graph."""
import argparse
import functools
import json
import math
import statistics
import sys
import types

sys.dont_write_bytecode = True

import checks  # noqa: E402: after the line above
import inference_model as model  # noqa: E402
from inference import TOLERANCE, case_of, difference  # noqa: E402
from inference_programs import EXTENT  # noqa: E402


class Simulated:
    """Stands in for `timing.Bench` without GPUs: nothing is timed."""

    def __init__(self, options):
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self.torch, self.dist, self.options, self.device = torch, dist, options, torch.device("cpu")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()


def reductions(it, simulate):
    """Returns the ways to reduce: name, a function that returns memory of a shape, and one that reduces it in place or returns
    the sum."""
    torch = it.torch

    def plain(*shape):
        return torch.zeros(shape, device=it.device, dtype=torch.bfloat16)

    def by_dist(parts):
        it.dist.all_reduce(parts)
        return parts

    ways = [("PyTorch, NCCL", plain, by_dist)]
    if simulate:
        return ways
    import collectives

    def window(*shape):
        return collectives.nccl_of(it).window(math.prod(shape)).view(shape)

    def by_nccl(parts):
        nccl = collectives.nccl_of(it)
        nccl.collective("ncclAllReduce", [parts], [parts], parts.numel(), nccl.SUM)(0)
        return parts

    def one_shot(parts):
        return torch.ops.symm_mem.one_shot_all_reduce(parts, "sum", it.group()[1])

    def two_shot(parts):
        torch.ops.symm_mem.two_shot_all_reduce_(parts, "sum", it.group()[1])
        return parts

    return [
        *ways,
        ("NCCL, symmetric window", window, by_nccl),
        ("PyTorch, symmetric memory, one-shot", it.shared, one_shot),
        ("PyTorch, symmetric memory, two-shot", it.shared, two_shot),
    ]


def compiled(torch, simulate):
    """Returns what is compiled: functions that write to memory or return a tensor."""

    def norm(parts, residual, factor, out):
        total, normed = model.residual_and_norm(torch, parts, residual, factor)
        out.copy_(normed)
        return total

    def gate(projected):
        gates = projected.view(projected.shape[0], -1, 2, EXTENT)
        inner = torch.nn.functional.silu(gates[:, :, 0].float()) * gates[:, :, 1].float()
        return inner.bfloat16().view(projected.shape[0], -1)

    def store(new, keys, values, position):
        for at, stored in ((0, keys), (1, values)):
            if position:
                stored[:, :, position - 1] = new[:, :, at]
            else:
                stored[0] = new[:, :, at].transpose(0, 1)

    functions = {"norm": norm, "gate": gate, "store": store}
    backend = "aot_eager" if simulate else "inductor"
    functions = {name: torch.compile(it, backend=backend, dynamic=False, fullgraph=True) for name, it in functions.items()}
    return types.SimpleNamespace(**functions)


def faster_attention(it, case, inputs):
    """Returns the faster of two forms of the attention of a decoded token."""
    torch = it.torch
    ways = [functools.partial(model.attention, torch, grouped=grouped) for grouped in (True, False)]
    if it.options.simulate or not case.cache:
        return ways[0]
    keys, values = inputs["keys"], inputs["values"]
    queries = it.random(case.rows, keys.shape[1], case.group, EXTENT)
    times = []
    for way in ways:
        replay = it.captured(lambda way=way: [way(case, queries, keys, values) for _ in range(10)])
        times.append(statistics.median(it.times(replay, lambda: None, 10)))
    return ways[times.index(min(times))]


def epilogue(it, case, inputs, functions, parts, reduce):
    """Returns a call, its results, and what to do before each run."""
    results = []

    def call():
        residual = inputs["residual"]
        for _ in range(case.calls):
            residual = functions.norm(reduce(parts), residual, inputs["factor"], parts)
        results[:] = [residual, parts]

    return call, results, lambda: parts.copy_(inputs["parts"].view(parts.shape))


def layers(it, case, inputs, functions, parts, reduce):
    torch, results = it.torch, []
    local = inputs["keys"].shape[1]

    def call():
        residual, normed = inputs["residual"], inputs["normed"]
        for _ in range(case.calls):
            projected = torch.mm(normed, inputs["qkv"].t()).view(case.rows, local, case.group + 2, EXTENT)
            functions.store(projected[:, :, case.group :], inputs["keys"], inputs["values"], case.cache)
            found = functions.attention(case, projected[:, :, : case.group], inputs["keys"], inputs["values"])
            torch.mm(found, inputs["out"].t(), out=parts)
            normed = torch.empty_like(inputs["normed"])
            residual = functions.norm(reduce(parts), residual, inputs["factor1"], normed)
            inner = functions.gate(torch.mm(normed, inputs["gates"].t()))
            torch.mm(inner, inputs["down"].t(), out=parts)
            normed = torch.empty_like(inputs["normed"])
            residual = functions.norm(reduce(parts), residual, inputs["factor2"], normed)
        results[:] = [residual, normed]

    return call, results, lambda: None


def measure(it, options, case, inputs, functions, name, memory, reduce):
    line = {"who": "peer", "name": name, "case": case.text, "us": None, "error": None}
    try:
        if "one-shot" in name and 2 * case.rows * case.h > 8 << 20:
            return None
        parts = memory(case.rows, case.h)
        make = epilogue if case.kind == "epilogue" else layers
        call, results, before = make(it, case, inputs, functions, parts, reduce)
        before()
        if options.simulate:
            call()
        else:
            replay = it.captured(call)

            def prepare():
                for result in results:
                    result.fill_(math.nan)
                before()

            runs = [us / case.calls for us in it.times(replay, prepare, options.iters)]
            line.update(us=statistics.median(runs), min_us=min(runs))
        places = model.folders(options.work, case)[1]
        expected = [it.torch.load(f"{places}/{output}.pt").to(it.device) for output in case.outputs()]
        line["difference"] = max(difference(a, b) for a, b in zip(results, expected, strict=True))
        if not line["difference"] <= TOLERANCE:
            line.update(us=None, error=f"wrong result: {line['difference']:.4f}")
    except Exception as error:  # noqa: BLE001: every error is reported in the line
        line["error"] = (str(error).splitlines() or [type(error).__name__])[0][:300]
        if type(error).__name__ == "NotAvailable":
            line["error"] = "not available: " + line["error"]
    return line


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("work")
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--simulate", action="store_true")
    options = parser.parse_intermixed_args()
    if options.simulate:
        it = Simulated(options)
    else:
        import torch._dynamo

        import timing

        torch._dynamo.config.recompile_limit = 64
        it = timing.Bench(options)
        it.case = {"workload": "inference", "slices": 1}
    functions = compiled(it.torch, options.simulate)
    for text in options.cases:
        case = case_of(text, options)
        weights, own = model.folders(options.work, case)
        inputs = {}
        for name, *_ in case.shapes(it.ranks):
            folder = weights if model.is_weight(case, name) else own
            inputs[name] = checks.load(it.torch, f"{folder}/{name}.{it.rank}.safetensors", it.device)
        if case.kind == "layers":
            functions.attention = faster_attention(it, case, inputs)
        for name, memory, reduce in reductions(it, options.simulate):
            line = measure(it, options, case, inputs, functions, name, memory, reduce)
            if it.rank == 0 and line:
                print(json.dumps(line), flush=True)
            if not options.simulate:
                it.torch.cuda.empty_cache()
    it.dist.barrier()
    it.dist.destroy_process_group()


if __name__ == "__main__":
    main()
