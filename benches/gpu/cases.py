"""The workloads: their names and shapes, and what one rank computes."""
import argparse

COLLECTIVES = ("allgather", "allreduce", "reduce-scatter", "all-to-all")
# Layers that take tens of microseconds. Their calls are repeated, like those of collectives.
SHORT_LAYERS = ("column-parallel", "row-parallel")
LAYERS = ("allgather-linear", "linear-allreduce", "matmul-reduce-scatter", *SHORT_LAYERS, "mlp", "block")
# The products of a rank of a layer, without communication. Their lines have the name of the layer.
LOCAL = "local-"
MATMUL_ONLY = "matmul only"
# Calls of a collective or of a short layer in one run; workloads.sh has the same number.
CALLS = 20
# Heads and sequences of the attention of a block; the defaults of programs.sh.
HEADS, SEQUENCES = 64, 8


def parse(text):
    """Parses WORKLOAD:M:N:K[:SLICES]."""
    workload, *shape = text.split(":")
    if workload not in COLLECTIVES and workload.removeprefix(LOCAL) not in LAYERS:
        raise argparse.ArgumentTypeError(f"{workload} is not one of {', '.join(COLLECTIVES + LAYERS)}")
    m, n, k, *slices = map(int, shape)
    return {"workload": workload, "m": m, "n": n, "k": k, "slices": slices[0] if slices else 1}


def text(case):
    """Returns the text that `parse` parses."""
    return ":".join(str(case.get(it, 1)) for it in ("workload", "m", "n", "k", "slices"))


def scale(n):
    """Returns the factor of the scores in a block of width n, as programs.sh prints it. The scores of inputs between -1
    and 1 then have deviation 1."""
    return float(f"{9 / (n * (n / HEADS) ** 0.5):.6g}")


def calls(workload):
    """Returns the number of calls in a run."""
    return CALLS if workload.removeprefix(LOCAL) in COLLECTIVES + SHORT_LAYERS else 1


def products(workload, d, m, n, k):
    """Returns the linear layers that a rank of a layer computes: rows, columns and summed extent of each."""
    workload = workload.removeprefix(LOCAL)
    mlp = [(m, k // d, n), (m, n, k // d)]
    if workload == "mlp":
        return mlp
    if workload == "block":
        return [(m, 3 * n // d, n), (m, n, n // d), *mlp]
    if workload == "allgather-linear":
        return [(m, n, k)]
    if workload == "column-parallel":
        return [(m, n // d, k)]
    return [(m, n, k // d)]
