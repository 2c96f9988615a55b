"""Checks the outputs of hir-run against float32 sums of the inputs that it has written."""
import glob
import json
import os
import sys

import cases

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

    if kind in cases.COLLECTIVES:
        # Slices are the first axis.
        inputs = [tensor("T0", rank).reshape(case["slices"], -1) for rank in range(d)]
        if kind == "allgather":
            whole = torch.cat(inputs, dim=1).float()
            return whole, torch.zeros_like(whole), slice(None)
        if kind == "all-to-all":
            # Part r of every rank goes to rank r.
            whole = torch.stack([it.reshape(len(it), d, -1) for it in inputs], dim=2).flatten(1).float()
            return whole, torch.zeros_like(whole), slice(None)
        # Each of the d - 1 additions rounds a partial sum to bf16, which is at most the sum of magnitudes.
        return sum(it.float() for it in inputs), (d - 1) * 2.0**-8 * sum(it.float().abs() for it in inputs), slice(None)
    # Random rows, and those at the edges of shards.
    edges = [row for rank in range(d) for row in (rank * m // d, (rank + 1) * m // d - 1)]
    rows = torch.cat([torch.tensor(edges), torch.randint(0, m, (ROWS,))]).to(device)
    if kind.startswith(cases.LOCAL) or kind in ("allgather-linear", "column-parallel"):
        return *gathered(torch, case, tensor, rows), rows
    if kind == "mlp":
        return *mlp(torch, case, tensor, rows), rows
    if kind == "block":
        return *block(torch, case, tensor, rows), rows
    partial = []
    for rank in range(d):
        a, b = tensor("T0", rank).reshape(m, k // d), tensor("T1", rank).reshape(n, k // d)
        partial.append(a[rows].float() @ b.float().t())
    return sum(partial), rounding(partial, k), rows


def rounding(partial, k):
    """Returns the bound on the error of a sum of parts, each of which is a sum of products."""
    # Each part and each intermediate sum is rounded to bf16 once. Products are summed in float32.
    return (2 * len(partial) - 1) * 2.0**-8 * sum(it.abs() for it in partial) + k**1.5 * 2.0**-24


def gathered(torch, case, tensor, rows):
    """Returns rows of the product of all rows of A, and its bound. A layer without communication has the same
    inputs on all ranks."""
    d, m, n, k, kind = (case[it] for it in ("ranks", "m", "n", "k", "workload"))
    if kind == cases.LOCAL + "mlp":
        return mlp(torch, {**case, "ranks": 1, "k": k // d}, tensor, rows)
    if kind == cases.LOCAL + "block":
        return block(torch, case, tensor, rows)
    if kind.startswith(cases.LOCAL):
        ((_, n, k),) = cases.products(kind, d, m, n, k)
        a, b = tensor("T0", 0).reshape(m, k), [tensor("T1", 0).reshape(n, k)]
    else:
        a = torch.cat([tensor("T0", rank).reshape(-1, k) for rank in range(d)])
        parts = range(d) if kind == "column-parallel" else [0]
        b = [tensor("T1", rank).reshape(-1, k) for rank in parts]
    whole = torch.cat([a[rows].float() @ it.float().t() for it in b], dim=1)
    return whole, rounding([whole], k)


def mlp(torch, case, tensor, rows):
    """Returns rows of relu(x · w1ᵀ) · w2ᵀ, and its bound."""
    d, m, n, k = (case[it] for it in ("ranks", "m", "n", "k"))
    x = torch.cat([tensor("T0", rank).reshape(-1, n) for rank in range(d)])[rows].float()
    partial, spread = [], 0
    for rank in range(d):
        w1, w2 = tensor("T1", rank).reshape(k // d, n).float(), tensor("T2", rank).reshape(n, k // d).float()
        hidden = (x @ w1.t()).bfloat16().relu().float()
        partial.append(hidden @ w2.t())
        spread = spread + hidden.square() @ w2.square().t()
    # Rounding a hidden element changes its product by at most 2**-8 of it, in either direction. The bound on the
    # sum of these changes is 16 times its standard deviation.
    return sum(partial), rounding(partial, k) + 16 * 2.0**-8 * spread.sqrt()


def block(torch, case, tensor, rows):
    """Returns rows of a transformer block, and their bound. A local block has the part of one rank, and no sums."""
    d, n, k = (case[it] for it in ("ranks", "n", "k"))
    parts = 1 if case["workload"].startswith(cases.LOCAL) else d
    x = torch.cat([tensor("T0", rank).reshape(-1, n) for rank in range(parts)]).float()
    shapes = [("T1", (3 * n // d, n)), ("T2", (n, n // d)), ("T3", (k // d, n)), ("T4", (n, k // d))]

    def weights(rank):
        return [tensor(name, rank).reshape(shape).float() for name, shape in shapes]

    def result(stored):
        """`stored` rounds what the program stores."""

        def summed(partial, x):
            total = sum(stored(it) for it in partial)
            return stored(total) if parts == 1 else stored(x + stored(total))

        heads = [attention(x, weights(rank)[0], n // cases.HEADS, stored)[rows] for rank in range(parts)]
        y = summed([it @ weights(rank)[1].t() for rank, it in enumerate(heads)], x[rows])
        hidden = [stored(stored(y @ weights(rank)[2].t()).relu()) for rank in range(parts)]
        return summed([it @ weights(rank)[3].t() for rank, it in enumerate(hidden)], y)

    exact, rounded = result(lambda it: it), result(lambda it: it.bfloat16().float())
    # Both sides round the same results, which may differ a little before. The bound is 16 times the standard deviation
    # of what rounding changes, and one rounding.
    return exact, 16 * (exact - rounded).std() + 2.0**-8 * exact.abs()


def attention(x, weight, extent, stored):
    """Returns softmax(q · kᵀ · scale) · v of the heads of one rank, as `programs.sh block` computes it."""
    heads = len(weight) // 3 // extent
    q, k, v = stored(x @ weight.t()).reshape(cases.SEQUENCES, -1, heads, 3, extent).permute(3, 0, 2, 1, 4)
    scores = stored(q @ k.transpose(-1, -2))
    shifted = stored(scores - scores.amax(-1, keepdim=True))
    weighted = stored((stored(shifted * cases.scale(x.shape[1]))).exp())
    found = stored(stored(weighted @ v) / stored(weighted.sum(-1, keepdim=True)))
    return found.transpose(1, 2).reshape(len(x), -1)


def check(torch, device, case, reference, folder):
    """Compares the outputs in a folder with the reference. Returns the largest fraction of the bound that was
    used, or raises `Wrong`."""
    whole, bound, rows = reference
    d, m, n, kind = (case[it] for it in ("ranks", "m", "n", "workload"))
    out, worst = output(kind), 0.0
    by_rows = kind in ("matmul-reduce-scatter", "mlp", "block")
    parts = kind in ("reduce-scatter", "all-to-all", "column-parallel")
    for rank in range(d if by_rows or parts else 1):
        found = load(torch, os.path.join(folder, f"{out}.{rank}.safetensors"), device)
        if not torch.isfinite(found).all():
            raise Wrong(f"rank {rank}: {out} has elements that are not finite, so they were not written")
        expected, limit = whole, bound
        if kind in cases.COLLECTIVES:
            found = found.reshape(case["slices"], -1)
        elif by_rows:
            first = rank * m // d
            mine = (rows >= first) & (rows < first + m // d)
            found, expected, limit = found.reshape(-1, n)[rows[mine] - first], whole[mine], bound[mine]
        else:
            found = found.reshape(m, -1)[rows]
        if parts:
            expected, limit = expected.chunk(d, dim=1)[rank], limit.chunk(d, dim=1)[rank]
        worst = max(worst, differs(torch, found, expected, limit, f"rank {rank}"))
    return worst


def output(kind):
    """Returns the name of the output tensor; measure.sh has the same names."""
    if kind in cases.COLLECTIVES:
        return "T1"
    return {"linear-allreduce": "T3", "mlp": "T5", "local-mlp": "T4", "block": "T30", "local-block": "T28"}.get(kind, "T2")


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


def run(options):
    """Prints a line for each measurement of hir-run after checking it. A failure is reported, and its line
    has no time."""
    torch = device = None
    if not options.simulated:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    status = 0
    for folder in options.folders:
        shape = {**cases.parse(os.path.basename(os.path.normpath(folder))), "ranks": options.ranks}
        reference, lack = None, None
        try:
            reference = None if options.simulated else wanted(torch, device, shape, folder)
        except Exception as error:  # noqa: BLE001: a failure of one case must not stop the others
            lack = f"no reference to check with: {error}"
        for name in sorted(glob.glob(os.path.join(folder, "*", "name"))):
            line = measured(torch, device, shape, reference, lack, os.path.dirname(name))
            if line["error"]:
                status = 1
                what = f"{line['workload']}, {options.ranks} ranks, {line['name']} ({line['issue']})"
                print(f"# FAILED: {what}: {line['error']}", file=sys.stderr)
            line.update(round=options.round, machine=os.environ.get("HIR_BENCH_MACHINE"))
            print(json.dumps(line), flush=True)
    sys.exit(status)


def measured(torch, device, shape, reference, lack, folder):
    """Returns the line of a measurement of hir-run. Without a reference it is not checked here."""
    told = {}
    for name in ("name", "issue", "failure"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path) as file:
                told[name] = file.read().strip()
    # What a rank computes without communication belongs to the layer.
    layer = {**shape, "workload": shape["workload"].removeprefix(cases.LOCAL)}
    line = {"who": "ours", "name": told["name"], **layer, "issue": told["issue"]}
    line.update(us=None, error=told.get("failure", lack), bound_used=None)
    if line["error"]:
        return line
    try:
        with open(os.path.join(folder, "times.json")) as file:
            data = json.load(file)
        if reference:
            line["bound_used"] = check(torch, device, shape, reference, folder)
        calls = cases.calls(shape["workload"])
        line.update(us=data["median_us"] / calls, min_us=data["min_us"] / calls, max_us=data["max_us"] / calls)
    except Exception as error:  # noqa: BLE001: as above
        line["error"] = f"wrong: {error}"[:300]
    return line
