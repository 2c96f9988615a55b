"""`hir.jax`: with a lowering that was recorded, and with JAX where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hir

MODULE = Path(__file__).parents[2] / "tests/cases/stablehlo/tp-mlp.mlir"


class Recorded:
    """A lowering of JAX, as a file has it."""

    def lower(self, *_: object) -> Recorded:
        return self

    def as_text(self) -> str:
        return MODULE.read_text(encoding="utf-8")


def test_a_recorded_lowering(tmp_path: Path) -> None:
    saved = tmp_path / "module.mlir"
    program = hir.jax.capture(Recorded(), save=saved)
    assert program.ranks == 2
    assert [it.name for it in program.inputs] == ["T0", "T1", "T2"]
    x, a, b = (np.arange(4 * n, dtype=np.float32).reshape(n, 4) - n for n in (8, 4, 4))
    want = np.maximum(x @ a, 0) @ b
    for it in (program, program.run_passes("@overlap{}"), hir.read(saved)):
        results = it.simulate({"T0": x, "T1": a, "T2": b})
        np.testing.assert_allclose(next(iter(results.values())), want)


def test_an_operation_that_is_not_read() -> None:
    text = 'module {\n  func.func public @main() -> tensor<f32> {\n    %0 = stablehlo.rng_bit_generator : tensor<f32>\n    return %0 : tensor<f32>\n  }\n}\n'
    with pytest.raises(hir.HirError) as caught:
        hir.read(text)
    assert (caught.value.code, caught.value.line) == ("E0901", 3)


def test_what_is_not_from_jax() -> None:
    with pytest.raises(TypeError, match="jax.jit"):
        hir.jax.capture(lambda x: x)  # type: ignore[arg-type]


def test_complex_numbers_are_pairs() -> None:
    jax = pytest.importorskip("jax")
    z = np.array([3 + 4j, -1j], np.complex64)
    program = hir.jax.capture(jax.jit(lambda it: (abs(it), it * it)), z)
    size, square = program.simulate({"T0": z}).values()
    assert np.allclose(size, [5, 1]) and np.allclose(square.view(np.complex64)[:, 0], z * z)


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    program = hir.jax.capture(jax.jit(lambda x: jax.numpy.tanh(x).sum(0)), jax.ShapeDtypeStruct((2, 3), "float32"))
    x = np.ones((2, 3), np.float32)
    (result,) = program.simulate({"T0": x}).values()
    np.testing.assert_allclose(result, np.tanh(x).sum(0), rtol=1e-6)


SCATTER = Path(__file__).parents[2] / "docs/examples/jax/scatter.mlir"

#: A function on 2 x 2 devices, and changes of its text that XLA gets and hir does not, each with the operation that has to be named.
PLANTED = """
import jax, jax.numpy as jnp, numpy as np
import hir.jax._verify as v
from hir.jax._module import Module
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((2, 2), ("a", "b"))
chance = np.random.default_rng(0)
x, w, u = (jax.device_put(chance.standard_normal(s).astype("float32"), NamedSharding(mesh, P(*p)))
           for s, p in (((8, 4), ("a", None)), ((4, 4), (None, "b")), ((3,), ())))
f = jax.jit(lambda x, w, u: (jnp.tanh(x @ w).sum(0) * 2, jnp.maximum(w, 0)))
print(v.verify(f, x, w, u))
in_xla = v.in_xla
for seen, planted in (
    ("stablehlo.tanh", "stablehlo.sine"),
    ("applies stablehlo.add across", "applies stablehlo.maximum across"),
    ("dense<2.000000e+00>", "dense<3.0>"),
    ("stablehlo.maximum %arg1", "stablehlo.minimum %arg1"),
    ("contracting_dims = [1] x [0]", "contracting_dims = [1] x [1]"),
):
    v.in_xla = lambda module, inputs: in_xla(Module(module.text.replace(seen, planted)), inputs)
    result = v.verify(f, x, w, u)
    assert result.code == 3 and seen in result.difference.operation, (seen, str(result))
# XLA is wrong only where the function returns its own outputs.
part = lambda it: it.text.replace("stablehlo.tanh", "stablehlo.sine") if len(it.output_types()) == 2 else it.text
v.in_xla = lambda module, inputs: in_xla(Module(part(module)), inputs)
result = v.verify(f, x, w, u)
assert "stablehlo.tanh" in result.difference.operation and result.difference.through.startswith("%9 = "), str(result)
"""

#: A comparison of two sums of the same numbers, which rounding decides; and a fault in the operation behind it.
ROUNDED = """
import jax, jax.numpy as jnp, numpy as np
import hir.jax._verify as v
from hir.jax._module import Module

x = jnp.asarray(np.random.default_rng(0).standard_normal((1000, 64)), jnp.float32)
f = jax.jit(lambda x: jnp.tanh(jnp.where(x.sum(0) > x[::-1].sum(0), 1.0, -1.0)))
print(v.verify(f, x))
in_xla = v.in_xla
v.in_xla = lambda module, inputs: in_xla(Module(module.text.replace("stablehlo.tanh", "stablehlo.sine")), inputs)
result = v.verify(f, x)
named = Module(f.lower(x).as_text()).operations()[result.difference.number].text
assert result.code == 3 and named == result.difference.operation and "stablehlo.tanh" in named, str(result)
"""


def python(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, env=environment)


def test_verify_names_what_xla_does_wrong() -> None:
    pytest.importorskip("jax")
    done = python("-m", "hir", "jax", "verify", str(SCATTER))
    assert done.returncode == 3, done.stderr
    assert "output 0 differs: device 1, element [0, 8]" in done.stdout
    assert 'operation 5 differs, and what it reads does not: %3 = "stablehlo.scatter"' in done.stdout
    assert done.stdout.endswith("[FAILED] XLA on one device agrees with hir: XLA's partitioner is wrong\n")


def test_verify_finds_planted_faults() -> None:
    pytest.importorskip("jax")
    done = python("-c", PLANTED)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == "[SUCCESS] XLA and hir compute the same but for rounding: elements: 20, outputs: 2\n"


def test_verify_goes_on_behind_what_rounding_decides() -> None:
    pytest.importorskip("jax")
    done = python("-c", ROUNDED)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    decides, verdict = done.stdout.splitlines()
    assert decides.startswith("rounding of its operands decides, and from the same operands") and "stablehlo.compare" in decides
    assert verdict == "[SUCCESS] XLA and hir compute the same but for rounding: elements: 64, outputs: 1"


def test_verify_says_what_it_does_not_run(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    done = python("-m", "hir", "jax", "verify", str(tmp_path / "none.mlir"))
    assert done.returncode == 2 and "there is no file" in done.stderr
    (tmp_path / "text.mlir").write_text("module {\n", encoding="utf-8")
    done = python("-m", "hir", "jax", "verify", str(tmp_path / "text.mlir"))
    assert (done.returncode, done.stdout.split(":")[0]) == (1, "[FAILED] not run"), done.stderr


def test_an_infinity_equals_only_itself() -> None:
    pytest.importorskip("ml_dtypes")
    from hir.jax._run import first_difference

    whole = np.array([np.inf, 1], np.float32)
    for found in ([5, 1], [-np.inf, 1], [np.nan, 1]):
        element = first_difference([(2, (slice(0, 2),), np.array(found, np.float32))], whole, None)
        assert element is not None and (element.device, element.index, element.ulp) == (2, (0,), None)
    assert first_difference([(2, (slice(0, 2),), whole)], whole, None) is None
