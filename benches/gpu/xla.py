"""Times functions in JAX, which XLA compiles, and in hir-run, in turns, and compares their values.

    python3 xla.py BIN RANKS [CASE…] [-r ROUNDS] [-p PASSES#PASSES…]

BIN is the folder of hir-run and hir-opt. A case is mlp, mlp-grad, block or block-grad, of 8192 rows and h=8192. XLA has its own process in each
round. Before the rounds, each case runs with 2048 rows and h=1024 in both, from the same inputs, and with silu instead of relu, whose gradient
rounding decides. Each line is a JSON object with the medians of the rounds in microseconds; ratios are those to XLA with its default options
or with windowed einsums and the latency-hiding scheduler, whichever is faster. NVLink multicast is off.
"""

import argparse
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

FLAGS = {"default": "", "windowed": "--xla_gpu_threshold_for_windowed_einsum_mib=0 --xla_gpu_enable_latency_hiding_scheduler=true"}
CASES = ("mlp", "mlp-grad", "block", "block-grad")
TOLERANCE = ("--rtol", "0.05", "--atol", "0.1")


def in_xla(ranks, case, folder, mode, is_timed):
    """Writes the module of a case and its values, or prints the median time of a call. It runs in a process of its own."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rows, h, heads = int(os.environ.get("ROWS", "8192")), int(os.environ.get("H", "8192")), 128
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("x",))

    def sharding(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    constrain = jax.lax.with_sharding_constraint
    activation = jax.nn.silu if "ROWS" in os.environ else jax.nn.relu

    def mlp(x, up, down):
        y = activation(constrain(x, sharding(None, None)) @ up)
        return constrain(constrain(y, sharding(None, "x")) @ down, sharding("x", None))

    def block(x, q, k, v, out, up, down):
        whole = constrain(x, sharding(None, None))
        q, k, v = ((whole @ w).reshape(8, rows // 8, h // heads, heads) for w in (q, k, v))
        q, k, v = (constrain(it, sharding(None, None, "x", None)) for it in (q, k, v))
        attention = constrain(jax.nn.dot_product_attention(q, k, v).reshape(rows, h), sharding(None, "x"))
        x = x + constrain(attention @ out, sharding("x", None))
        return x + mlp(x, up, down)

    def gradient(function):
        return lambda cotangent, *args: jax.vjp(function, *args)[1](cotangent)

    def array(number, shape, axes):
        values = np.random.default_rng(number).standard_normal(shape, dtype=np.float32)
        return jax.device_put((values * (1 if axes[0] == "x" and number < 2 else shape[0] ** -0.5)).astype(jnp.bfloat16), sharding(*axes))

    by_rows, by_columns = ("x", None), (None, "x")
    ffn = [((h, 4 * h), by_columns), ((4 * h, h), by_rows)]
    weights = ffn if case.startswith("mlp") else [*[((h, h), by_columns)] * 3, ((h, h), by_rows), *ffn]
    function = mlp if case.startswith("mlp") else block
    results = sharding(*by_rows)
    ports = [((rows, h), by_rows), *weights]
    if case.endswith("-grad"):
        function = gradient(function)
        results = tuple(sharding(*axes) for _, axes in ports)
        ports = [((rows, h), by_rows), *ports]
    args = [array(number, *it) for number, it in enumerate(ports)]
    lowered = jax.jit(function, in_shardings=tuple(it.sharding for it in args), out_shardings=results).lower(*args)
    call = lowered.compile()
    if not is_timed:
        with open(f"{folder}/{case}.mlir", "w") as file:
            file.write(lowered.as_text())
        if os.environ.get("ROWS"):
            found = call(*args)
            write(f"{folder}/{case}.safetensors", [*args, *(found if isinstance(found, tuple) else (found,))])
        return
    for _ in range(5):
        found = call(*args)
    jax.block_until_ready(found)
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(5):
            found = call(*args)
        jax.block_until_ready(found)
        times.append((time.perf_counter() - begin) / 5 * 1e6)
    print(statistics.median(times))


def write(path, arrays):
    """Writes arrays of bf16, by number, as safetensors."""
    import numpy as np

    header, parts, at = {}, [], 0
    for number, it in enumerate(arrays):
        parts.append(np.asarray(it).view(np.uint16).tobytes())
        header[str(number)] = {"dtype": "BF16", "shape": list(it.shape), "data_offsets": [at, at + len(parts[-1])]}
        at += len(parts[-1])
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(b"".join([struct.pack("<Q", len(text)), text, *parts]))


def run_xla(ranks, case, folder, mode, is_timed, **variables):
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS[mode]}".strip()
    environment = {**os.environ, **variables, "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "NCCL_NVLS_ENABLE": "0"}
    words = [sys.executable, __file__, "--child", str(ranks), case, folder, mode, str(int(is_timed))]
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return None
    # Windowed einsums do not compile some gradients (JAX 0.11.2).
    return done.stdout.strip() if done.returncode == 0 else None


def run_hir(bin, ranks, file, words):
    words = [f"{bin}/hir-run", file, "--ranks", str(ranks), "--check=off", *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env={**os.environ, "NCCL_NVLS_ENABLE": "0"})
    return done.stdout + done.stderr


def compared(bin, ranks, case, passes, device):
    """Returns the verdict of hir-run on the values of XLA."""
    with tempfile.TemporaryDirectory() as folder:
        if run_xla(ranks, case, folder, "default", False, ROWS="2048", H="1024") is None:
            return "XLA does not run it"
        file = f"{folder}/{case}.mlir"
        text = subprocess.run([f"{bin}/hir-opt", file], capture_output=True, text=True).stdout
        words = ["--passes", passes, *device, *TOLERANCE]
        number = 0
        for option, ports in zip(("--input", "--expect"), text.split("\n", 1)[0].split(" -> ")):
            for name in re.findall(r"\b(T\d+)_", ports):
                words += [option, f"{name}=@{folder}/{case}.safetensors#{number}"]
                number += 1
        found = re.search(r"^\[[A-Z]+\].*", run_hir(bin, ranks, file, words), re.MULTILINE)
        return found[0] if found else "no verdict"


def hir_time(bin, ranks, file, passes, device):
    """Returns the median of 20 runs behind 5 others, in microseconds."""
    found = run_hir(bin, ranks, file, ["--passes", passes, *device, "--inputs", "random", "-n", "20", "-w", "5"])
    row = re.search(r"^# +size\(B\).*\n +\d+ +([\d.]+)", found, re.MULTILINE)
    return float(row[1]) if row else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", help="the folder of hir-run and hir-opt")
    parser.add_argument("ranks", type=int)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("-p", "--passes", default="@lower#@overlap#@auto")
    parser.add_argument("-d", "--device", default="cuda", help="sim compares values without GPUs")
    options = parser.parse_args()
    device = [f"--device={options.device}"]
    passes = options.passes.split("#")
    for case in options.cases or CASES:
        line = {"case": case, "ranks": options.ranks, "values": compared(options.bin, options.ranks, case, passes[-1], device)}
        if options.device == "cuda":
            line |= timed(options, case, passes, device)
        print(json.dumps(line), flush=True)


def timed(options, case, passes, device):
    with tempfile.TemporaryDirectory() as folder:
        run_xla(options.ranks, case, folder, "default", False)
        times = {}
        for _ in range(options.rounds):
            for mode in FLAGS:
                if times.get(mode) != [None]:
                    found = run_xla(options.ranks, case, folder, mode, True)
                    times.setdefault(mode, []).append(float(found) if found else None)
            for it in passes:
                times.setdefault(it, []).append(hir_time(options.bin, options.ranks, f"{folder}/{case}.mlir", it, device))
    medians = {name: round(statistics.median(it)) if None not in it else None for name, it in times.items()}
    xla = min(it for name, it in medians.items() if name in FLAGS and it)
    ratios = {name: round(it / xla, 3) for name, it in medians.items() if name in passes and it}
    return {"us": medians, "of_xla": ratios}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        ranks, case, folder, mode, is_timed = sys.argv[2:]
        in_xla(int(ranks), case, folder, mode, is_timed == "1")
    else:
        main()
