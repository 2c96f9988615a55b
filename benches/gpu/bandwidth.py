#!/usr/bin/env python3
"""Times operators that move data beside a copy of the same bytes on the same GPU.

  benches/gpu/bandwidth.py [--hir-run target/release/hir-run] [--no-peers] [--output FILE.json] [NAME...]

Each operator has a program on 64 x 128 elements, whose results hir-run compares with the simulator, and one on 8192 x 4096 elements, which
runs as a CUDA graph. The bytes are those of its operands and results, each once; the copy is PyTorch's `copy_`. An element that is read alone
from a place of its own moves a sector of 32 bytes: where that is most of the time, "sectors" is the ratio to a copy of as many bytes. The
peer is PyTorch's operator. All times are medians of 15. The exit code is 1 if a comparison fails.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

BF16, F32, I64, E4M3, E2M1, BOOL = "__bfloat", "float", "int64_t", "__e4m3", "__e2m1", "bool"
SIZES = {BF16: 2, F32: 4, I64: 8, E4M3: 1, E2M1: 1, BOOL: 1}


class Program:
    """The inputs and statements of a program."""

    def __init__(self):
        self.tensors, self.axes, self.inputs, self.lines = 0, 0, [], []

    def axis(self, kind, extent):
        self.axes += 1
        return f"{kind}S{self.axes}{{{extent}}}"

    def tensor(self, dtype, axes):
        self.tensors += 1
        return f"T{self.tensors}_g_{dtype}[{', '.join(axes)}]"

    def new(self, dtype, shape, kinds=None):
        return self.tensor(dtype, [self.axis(kind, extent) for kind, extent in zip(kinds or "i" * len(shape), shape)])

    def input(self, dtype, shape):
        self.inputs.append(self.new(dtype, shape))
        return self.inputs[-1]

    def permuted(self, dtype, shape, order):
        """A result of Set.Permute: axes are numbered in the order of the operand."""
        axes = [self.axis("i", extent) for extent in shape]
        return self.allocated(self.tensor(dtype, [axes[at] for at in order]))

    def allocated(self, tensor):
        self.add(f"{tensor} = ALLOCATE(mem_type=global, zero_init=false)")
        return tensor

    def add(self, text):
        self.lines.extend(text.split("\n"))

    def define(self, out, value):
        self.add(f"{out}\n   = {value}")
        return out

    def text(self, outputs):
        body = "".join(f"  {line}\n" for line in self.lines)
        header = f"({', '.join(self.inputs)}) -> ({', '.join(outputs)})"
        return f"%HostIrContainer {{ {header} :\n{body}}} // %HostIrContainer\n"


def reduction(p, x, out, op="add", initial="float(0)"):
    return p.define(out, f"reduction( {x}, op = {op}, initial value = {initial}, allreduce = false )")


def cases(rows, columns):
    """Returns the program and the bytes of each operator."""
    whole, n, made = [rows, columns], rows * columns, {}

    def case(name, build):
        p = Program()
        outputs, size = build(p)
        made[name] = p.text(outputs), size

    def unary(function, dtype, out):
        def build(p):
            return [p.define(p.new(out, whole), f"{function}({p.input(dtype, whole)});")], n * (SIZES[dtype] + SIZES[out])

        case(f"{function} {dtype}", build)

    for function, dtype, out in [
        ("exp", BF16, BF16), ("erf", F32, F32), ("__bfloat2float", BF16, F32), ("__float2bfloat", F32, BF16), ("__to_e4m3", BF16, E4M3)
    ]:
        unary(function, dtype, out)
    case("Set", lambda p: ([p.define(p.allocated(p.new(BF16, whole)), f"Set( {p.input(BF16, whole)} )")], 4 * n))
    case("+", lambda p: ([p.define(p.new(BF16, whole), f"{p.input(BF16, whole)}\n   + {p.input(BF16, whole)};")], 6 * n))

    def add_row(p):
        x, row = p.input(BF16, whole), p.input(BF16, [columns])
        wide = p.define(p.new(BF16, [1, columns], "bi"), f"broadcast( {row}, flags = {{true, false}} )")
        return [p.define(p.new(BF16, whole), f"{x}\n   + {wide};")], 4 * n

    def where(p):
        a, b = p.input(BF16, whole), p.input(BF16, whole)
        less = p.define(p.new(BOOL, whole), f"{a}\n   < {b};")
        return [p.define(p.new(BF16, whole), f"where({less}\n  , {a}\n  , {b});"), less], 7 * n

    def permute(p):
        return [p.define(p.permuted(BF16, whole, [1, 0]), f"Set.Permute( {p.input(BF16, whole)} )")], 4 * n

    def permute_heads(p):
        shape = [4, rows // 4, columns // 64, 64]
        x = p.input(BF16, shape)
        return [p.define(p.permuted(BF16, shape, [0, 2, 1, 3]), f"Set.Permute( {x} )")], 4 * n

    case("+ of a row", add_row)
    case("where", where)
    case("Set.Permute", permute)
    case("Set.Permute of heads", permute_heads)
    for kinds, what, kept in [("ir", "rows", rows), ("ri", "columns", columns), ("rr", "all", 1)]:
        case(
            f"reduction of {what}",
            lambda p, kinds=kinds, kept=kept: ([reduction(p, p.input(F32, whole), p.new(F32, whole, kinds))], 4 * (n + kept)),
        )

    def per_row(p, reduced):
        return p.define(p.new(F32, [rows, 1], "ib"), f"broadcast( {reduced}, flags = {{false, true}} )")

    def softmax(p):
        x = p.define(p.new(F32, whole), f"__bfloat2float({p.input(BF16, whole)});")
        most = per_row(p, reduction(p, x, p.new(F32, whole, "ir"), "max", "double(-1000)"))
        e = p.define(p.new(F32, whole), f"exp({p.define(p.new(F32, whole), f'{x}{chr(10)}   - {most};')});")
        total = per_row(p, reduction(p, e, p.new(F32, whole, "ir")))
        return [p.define(p.new(BF16, whole), f"__float2bfloat({p.define(p.new(F32, whole), f'{e}{chr(10)}   / {total};')});")], 4 * n

    def layer_norm(p):
        x = p.define(p.new(F32, whole), f"__bfloat2float({p.input(BF16, whole)});")

        def row(value):
            return p.define(p.new(F32, [rows, 1], "ib"), value)

        mean = row(f"{per_row(p, reduction(p, x, p.new(F32, whole, 'ir')))}\n   / double({columns});")
        d = p.define(p.new(F32, whole), f"{x}\n   - {mean};")
        squares = p.define(p.new(F32, whole), f"{d}\n   * {d};")
        variance = row(f"{per_row(p, reduction(p, squares, p.new(F32, whole, 'ir')))}\n   / double({columns});")
        root = row("rsqrtf(" + row(f"{variance}\n   + double(1e-5);") + ");")
        y = p.define(p.new(F32, whole), f"{d}\n   * {root};")
        return [p.define(p.new(BF16, whole), f"__float2bfloat({y});")], 4 * n

    def welford(p):
        avg, var, count = p.new(F32, whole, "ir"), p.new(F32, whole, "ir"), p.new(I64, whole, "ir")
        p.add(f"{avg}(Avg),\n{var}(Var),\n{count}(Count)\n   = Welford ( {p.input(F32, whole)}(Avg),\n    allreduce = false )")
        return [avg, var], 4 * n + 16 * rows

    case("softmax", softmax)
    case("layer norm", layer_norm)
    case("Welford", welford)
    wider = [rows, columns + 8]
    case("pad", lambda p: ([p.define(p.new(BF16, wider), f"pad( {p.input(BF16, whole)}, {{0, 0, 3, 5}} )")], 2 * n + 2 * rows * wider[1]))
    for dim, shape in enumerate([[2 * rows, columns], [rows, 2 * columns]]):
        case(
            f"cat {dim}",
            lambda p, dim=dim, shape=shape: (
                [p.define(p.new(BF16, shape), f"cat( {p.input(BF16, whole)}, {p.input(BF16, whole)}, {dim} )")], 8 * n
            ),
        )
    half = [rows, columns // 2]
    case("repeat", lambda p: ([p.define(p.new(BF16, whole), f"repeat( {p.input(BF16, half)} )")], 3 * n))
    first = columns // 4
    part = f"{{ {{0, {rows}, 1}} {{{first}, {first + half[1]}, 1}} }}"
    case("slice", lambda p: ([p.define(p.allocated(p.new(BF16, half)), f"slice( {p.input(BF16, whole)}, {part} )")], 2 * n))
    case("full", lambda p: ([p.define(p.new(BF16, whole), f"full({{{rows}, {columns}}}, __bfloat(1));")], 2 * n))
    for op in ["rng_uniform", "rng_normal_standard"]:
        case(op, lambda p, op=op: ([p.define(p.new(F32, whole), f"{op}({{{rows}, {columns}}}, float);")], 4 * n))
    # hir-run gives inputs that are indices valid values.
    for dim in range(2):
        case(
            f"indexSelect {dim}",
            lambda p, dim=dim: (
                [p.define(p.new(BF16, whole), f"indexSelect( {p.input(BF16, whole)}, {p.input(I64, [whole[dim]])}, dim = {dim} )")], 4 * n
            ),
        )
    for op, dim in [("takeAlongAxis", 1), ("torchGather", 0)]:
        case(
            op,
            lambda p, op=op, dim=dim: (
                [p.define(p.new(BF16, whole), f"{op}( {p.input(BF16, whole)}, {p.input(I64, whole)}, dim = {dim} )")], 12 * n
            ),
        )

    def embedding(p):
        out, index, table = p.new(BF16, whole), p.input(I64, [rows]), p.input(BF16, whole)
        p.add(f"{out} = embedding({index}, {table}, scale_grad_by_freq=false, sparse=false)")
        return [out], 4 * n

    def index_put(p):
        base, index, value = p.input(F32, whole), p.input(I64, [rows]), p.input(F32, whole)
        return [p.define(p.new(F32, whole), f"indexPutAccumulate( {base}, {index}, {value} )")], 12 * n

    case("embedding", embedding)
    case("indexPutAccumulate", index_put)
    for what, option in [("", ""), (" add", ", accumulate = add")]:

        def scatter(p, option=option):
            base, value, index = p.input(BF16, whole), p.input(BF16, whole), p.input(I64, whole)
            return [p.define(p.new(BF16, whole), f"scatter(in = {base}, dim = 1, src = {value}, idx = {index}{option} )")], 14 * n

        case("scatter" + what, scatter)
    for dim in range(2):

        def scan(p, dim=dim):
            out = p.new(F32, whole)
            p.add(f"{out} = scan( {p.input(F32, whole)}, dim = {dim}, op = add )")
            return [out], 8 * n

        case(f"scan {dim}", scan)

    def topk(p):
        lines, experts = n // 512, 128
        values, indices = p.new(F32, [lines, 8]), p.new(I64, [lines, 8])
        x = p.input(F32, [lines, experts])
        p.add(f"( {values}, {indices} ) = topk( {x}, 8, dim = 1, largest = True, sorted = True )")
        return [values, indices], lines * (4 * experts + 96)

    def argsort(p):
        shape = [n // 1024, 1024]
        out = p.new(I64, shape)
        p.add(f"{out} = argsort( {p.input(F32, shape)}, dim = 1, descending = True, stable = True )")
        return [out], 12 * n

    def quantize(p):
        values, scales = p.new(E2M1, whole), p.new(E4M3, [rows, columns // 16])
        p.add(f"{values}, {scales} = block_quantize({p.input(BF16, whole)})")
        return [scales], 3 * n + n // 16

    case("topk 8 of 128", topk)
    case("argsort of 1024", argsort)
    case("block_quantize", quantize)
    return made


def median_microseconds(run):
    """Returns the median time of a function that issues work to the GPU."""
    import torch

    times = []
    for _ in range(18):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The work is issued while the GPU is busy, so that its time is not that of the host.
        torch.cuda._sleep(200_000)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * start.elapsed_time(end))
    return sorted(times[3:])[7]


def copy_microseconds(size):
    """Returns the median time of a copy that reads and writes `size` bytes in all."""
    import torch

    source = torch.empty(size // 2, dtype=torch.uint8, device="cuda").random_(0, 255)
    target = torch.empty_like(source)
    return median_microseconds(lambda: target.copy_(source))


def sectors(rows, columns):
    """Returns the bytes of the operators that read single elements from sectors of their own."""
    return {"torchGather": rows * columns * (2 + 8 + 32)}


def peers(rows, columns):
    """Returns PyTorch's operator by name of an operator; each function returns what is timed."""
    import torch
    from torch.nn import functional as F

    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device="cuda", dtype=dtype)

    def index(limit, *shape):
        return torch.randint(limit, shape, device="cuda")

    f32 = torch.float32

    def with_x(function, dtype=torch.bfloat16, shape=(rows, columns)):
        def make():
            x = random(*shape, dtype=dtype)
            return lambda: function(x)

        return make

    def with_index(function, limit, *shape, dtype=torch.bfloat16):
        def make():
            x, it = random(rows, columns, dtype=dtype), index(limit, *shape)
            return lambda: function(x, it)

        return make

    def with_values(function, dtype, limit, *shape):
        def make():
            x, it, value = random(rows, columns, dtype=dtype), index(limit, *shape), random(rows, columns, dtype=dtype)
            return lambda: function(x, it, value)

        return make

    lines = rows * columns
    return {
        "Set": with_x(torch.clone),
        "Set.Permute": with_x(lambda x: x.t().contiguous()),
        "Set.Permute of heads": with_x(lambda x: x.transpose(1, 2).contiguous(), shape=(4, rows // 4, columns // 64, 64)),
        "reduction of rows": with_x(lambda x: x.sum(1), f32),
        "reduction of columns": with_x(lambda x: x.sum(0), f32),
        "softmax": with_x(lambda x: torch.softmax(x, 1)),
        "layer norm": with_x(lambda x: F.layer_norm(x, (columns,))),
        "pad": with_x(lambda x: F.pad(x, (3, 5))),
        "cat 1": with_x(lambda x: torch.cat([x, x], 1)),
        f"__to_e4m3 {BF16}": with_x(lambda x: x.to(torch.float8_e4m3fn)),
        "indexSelect 0": with_index(lambda x, it: torch.index_select(x, 0, it), rows, rows),
        "indexSelect 1": with_index(lambda x, it: torch.index_select(x, 1, it), columns, columns),
        "takeAlongAxis": with_index(lambda x, it: torch.gather(x, 1, it), columns, rows, columns),
        "torchGather": with_index(lambda x, it: torch.gather(x, 0, it), rows, rows, columns),
        "embedding": with_index(lambda x, it: F.embedding(it, x), rows, rows),
        "indexPutAccumulate": with_values(lambda x, it, value: x.index_add(0, it, value), f32, rows, rows),
        "scatter": with_values(lambda x, it, value: x.scatter(1, it, value), torch.bfloat16, columns, rows, columns),
        "scatter add": with_values(lambda x, it, value: x.scatter_add(1, it, value), torch.bfloat16, columns, rows, columns),
        "scan 0": with_x(lambda x: torch.cumsum(x, 0), f32),
        "scan 1": with_x(lambda x: torch.cumsum(x, 1), f32),
        "topk 8 of 128": with_x(lambda x: torch.topk(x, 8), f32, (lines // 512, 128)),
        "argsort of 1024": with_x(lambda x: torch.argsort(x, descending=True, stable=True), f32, (lines // 1024, 1024)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hir-run", default="target/release/hir-run")
    parser.add_argument("--no-peers", action="store_true", help="leaves PyTorch's operators out")
    parser.add_argument("--output", help="writes the results as JSON")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    shape = 8192, 4096
    small, large, of_torch, of_sectors = cases(64, 128), cases(*shape), peers(*shape), sectors(*shape)
    unknown = [name for name in options.names if name not in large]
    if unknown:
        parser.error(f"no operator {unknown[0]!r}; there are {', '.join(large)}")
    results = []
    for name in options.names or large:
        took, verdict = measure(options.hir_run, small[name][0], large[name][0])
        size, peer = large[name][1], None if options.no_peers else of_torch.get(name)
        it = {"name": name, "bytes": size, "us": took, "copy_us": copy_microseconds(size), "verdict": verdict}
        it["peer_us"] = peer and median_microseconds(peer())
        it["sectors_us"] = copy_microseconds(of_sectors[name]) if name in of_sectors else None
        results.append(it)
        print(row(it), flush=True)
    if options.output:
        with open(options.output, "w") as file:
            json.dump(results, file, indent=1)
    return any(not it["verdict"].startswith("[SUCCESS]") or not it["us"] for it in results)


def measure(hir_run, small, large):
    """Returns the median time of the large program, None if it has none, and the verdict on the small one."""
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for kind, text, flags in [("small", small, "--expect=sim"), ("large", large, f"-w 3 -n 15 -G -J {folder}/times.json")]:
            with open(f"{folder}/{kind}.hir", "w") as file:
                file.write(text)
            lines.append(f"{folder}/{kind}.hir --inputs random {flags}\n")
        with open(f"{folder}/batch", "w") as file:
            file.writelines(lines)
        command = [hir_run, "--ranks", "1", "--device=cuda", "--batch", f"{folder}/batch"]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
        verdicts = [line for line in output.split("\n") if line.startswith(("[SUCCESS]", "[FAILED]"))]
        took = None
        if os.path.exists(f"{folder}/times.json"):
            with open(f"{folder}/times.json") as file:
                took = json.load(file).get("median_us")
        return took, (verdicts or ["no verdict"])[0]


def row(it):
    """Returns the line of a table for a result."""

    def ratio(key):
        return f"{it[key] / it['us']:5.2f}" if it["us"] and it[key] else "    -"

    peer = f"{it['peer_us']:8.1f} us" if it["peer_us"] else "          -"
    sectors = f", sectors {ratio('sectors_us')}" if it["sectors_us"] else ""
    return (
        f"{it['name']:24} {it['bytes'] / 2**20:6.0f} MiB {it['us'] or 0:8.1f} us, copy {it['copy_us']:7.1f} us {ratio('copy_us')}, "
        f"PyTorch {peer} {ratio('peer_us')}{sectors}  {it['verdict'][:40]}"
    )


if __name__ == "__main__":
    sys.exit(main())
