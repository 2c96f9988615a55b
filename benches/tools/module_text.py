#!/usr/bin/env python3
"""Times hir beside jaxlib on the text of StableHLO modules: both read a module and print it.

  PYTHON-WITH-JAX benches/tools/module_text.py [--hir target/release/hir] [--runs 5] [--layers 200] [operations|constant]

`operations` is the gradient of a transformer whose layers are unrolled, `constant` has one constant of 30 MB, `dense<"0x…">`. A run of
hir is the process `hir opt MODULE -o /dev/null`, with its start; one of jaxlib parses and prints in this process, without its start. Runs
alternate. Printed are the medians and their ratio. The exit code is 1 if a run of hir fails.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir

WIDTH, HEADS, LENGTH = 64, 4, 32
SHAPES = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH), (WIDTH,)]


def layer(x, weights):
    qkv, out, up, down, scale = weights
    normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale
    q, k, v = jnp.split((normed @ qkv).reshape(2, LENGTH, 3 * HEADS, WIDTH // HEADS), 3, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(WIDTH // HEADS)
    scores = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9))
    x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(2, LENGTH, WIDTH) @ out
    return x + jax.nn.gelu(x @ up) @ down


def operations(layers):
    def loss(weights, x):
        for own in weights:
            x = layer(x, own)
        return jnp.mean(x * x)

    weights = [[jax.ShapeDtypeStruct(it, jnp.float32) for it in SHAPES] for _ in range(layers)]
    return jax.jit(jax.grad(loss)).lower(weights, jax.ShapeDtypeStruct((2, LENGTH, WIDTH), jnp.float32)).as_text()


def constant(_):
    values = np.random.default_rng(0).standard_normal(30 << 18, dtype=np.float32)
    ty = f"tensor<{values.size}xf32>"
    body = f'%0 = stablehlo.constant dense<"0x{values.tobytes().hex().upper()}"> : {ty}\n'
    body += f"%1 = stablehlo.add %arg0, %0 : {ty}\nreturn %1 : {ty}"
    return f"module @constant {{\nfunc.func public @main(%arg0: {ty}) -> {ty} {{\n{body}\n}}\n}}\n"


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("modules", nargs="*", metavar="MODULE")
parser.add_argument("--hir", default="target/release/hir")
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("--layers", type=int, default=200)
options = parser.parse_args()
for make in [it for it in (operations, constant) if it.__name__ in options.modules or not options.modules]:
    text, own, peer = make(options.layers), [], []
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(text)
        file.flush()
        command = [options.hir, "opt", file.name, "-o", os.devnull]
        for _ in range(options.runs):
            context = make_ir_context()
            own.append(seconds(lambda: subprocess.run(command).returncode and sys.exit("module_text.py: hir failed")))
            peer.append(seconds(lambda: str(ir.Module.parse(text, context))))
    own, peer = statistics.median(own), statistics.median(peer)
    print(f"{make.__name__}: {len(text) / 1e6:.1f} MB, hir {own:.3f} s, jaxlib {peer:.3f} s, ratio {own / peer:.2f}", flush=True)
