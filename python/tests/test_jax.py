"""`hir.jax`: with a lowering that was recorded, and with JAX where it is installed."""

from __future__ import annotations

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
    for it in (program, program.run_passes("@overlap"), hir.read(saved)):
        results = it.simulate({"T0": x, "T1": a, "T2": b})
        np.testing.assert_allclose(next(iter(results.values())), want)


def test_an_operation_that_is_not_read() -> None:
    text = 'module {\n  func.func public @main() -> tensor<f32> {\n    %0 = stablehlo.triangular_solve : tensor<f32>\n    return %0 : tensor<f32>\n  }\n}\n'
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
