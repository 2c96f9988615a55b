"""The module as its users meet it. Expected values come from numpy."""

import json
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import hir

MESH = "(DeviceMesh{0 1})"


def column_parallel(dtype: str) -> str:
    """A linear layer whose weight is sharded by rows, not lowered."""
    x = f"T0_g_{dtype}[iS0{{4}}, iS1{{3}}] {MESH}"
    w = f"T1_g_{dtype}[ideviceIdx.x2{{2}}, iS3{{5}}, iS4{{3}}] {MESH}"
    y = f"T2_g_{dtype}[ideviceIdx.x5{{2}}, iS6{{4}}, iS7{{5}}, rS8{{3}}] {MESH}"
    z = f"T3_g_{dtype}[iS9{{4}}, iS10{{10}}] {MESH}"
    return f"""%HostIrContainer {{ ({x}, {w}) -> ({z}) :
  {y}
     = linear({x},
              {w})
  {z}
     = Set( {y}, cache_op=Streaming )
}} // %HostIrContainer

Domains:
  T1: logical(iS11{{10}}, iS4{{3}}), outer_split(iS11{{10}}, 2) -> (ideviceIdx.x2{{2}}, iS3{{5}})
  T2: logical(iS6{{4}}, iS12{{10}}, rS8{{3}}), outer_split(iS12{{10}}, 2) -> (ideviceIdx.x5{{2}}, iS7{{5}})
"""


RACE = f"""%HostIrContainer {{ (T0_g_float[iS0{{4}}] {MESH}) -> (T1_g_float[iS1{{4}}] {MESH}) :
  T1_g_float[iS1{{4}}] {MESH} = ALLOCATE(mem_type=global, zero_init=false)
  Communication 0 (type=Allreduce, team=(0 1), red_op=SUM, input=T0_g_float[iS0{{4}}] {MESH}, output=T1_g_float[iS1{{4}}] {MESH}, backend=NCCL)
}} // %HostIrContainer
"""


def operands(dtype):
    rng = np.random.default_rng(1)
    return (rng.integers(-3, 4, shape).astype(dtype) for shape in ((4, 3), (10, 3)))


@pytest.mark.parametrize(("name", "dtype"), [("float", np.float32), ("double", np.float64), ("__half", np.float16)])
def test_simulate_equals_numpy(name, dtype):
    x, w = operands(dtype)
    program = hir.read(column_parallel(name)).run_passes("@lower")
    out = program.simulate({"T0": x, "T1": w})
    assert list(out) == ["T3"]
    assert out["T3"].dtype == dtype
    np.testing.assert_array_equal(out["T3"], x @ w.T)


def test_bfloat16_is_that_of_ml_dtypes_or_its_bits():
    from ml_dtypes import bfloat16

    x, w = operands(bfloat16)
    program = hir.read(column_parallel("__bfloat"))
    expected = x.astype(np.float32) @ w.astype(np.float32).T
    out = program.simulate({"T0": x, "T1": w})["T3"]
    assert out.dtype == bfloat16
    np.testing.assert_array_equal(out.astype(np.float32), expected)
    bits = program.simulate({"T0": x.view(np.uint16), "T1": w})["T3"]
    np.testing.assert_array_equal(bits, out)


def test_inputs_of_other_layouts():
    x, w = operands(np.float32)
    program = hir.read(column_parallel("float"))
    expected = x @ w.T
    for it in (np.asfortranarray(x), x.astype(">f4"), np.repeat(x, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(program.simulate({"T0": it, "T1": w})["T3"], expected)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"T0": np.zeros((4, 3), np.float64)}, "element type f32, not f64"),
        ({"T0": np.zeros((3, 4), np.float32)}, "transposed"),
        ({"T9": np.zeros(1, np.float32)}, "`T9` is no input of the program; it has T0 and T1"),
    ],
)
def test_wrong_inputs_are_refused(inputs, message):
    with pytest.raises(hir.HirError, match=message):
        hir.read(column_parallel("float")).simulate(inputs)


@pytest.mark.parametrize("name, dtype", [("__e4m3", "float8_e4m3fn"), ("__e5m2", "float8_e5m2")])
def test_inputs_of_8_bit_floats(name, dtype):
    dtypes = pytest.importorskip("ml_dtypes")
    text = f"%tensor T0_g_{name}[iS0{{2}}]\n%tensor T1_g_float[iS1{{2}}]\n%HostIrContainer {{ (T0) -> (T1) :\n  T1 = cast(T0);\n}} // %HostIrContainer\n"
    [result] = hir.read(text).simulate({"T0": np.array([0.5, -3], getattr(dtypes, dtype))}).values()
    np.testing.assert_array_equal(result, [0.5, -3])


def test_types_without_tensors_are_refused():
    with pytest.raises(TypeError, match="datetime64"):
        hir.read(column_parallel("float")).simulate({"T0": np.zeros((4, 3), "datetime64[s]")})


def test_generated_inputs_depend_on_the_seed_alone():
    program = hir.read(column_parallel("float"))
    one, same, other = (program.simulate(seed=it)["T3"] for it in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_read_needs_a_text_or_a_file(tmp_path):
    file = tmp_path / "program.hir"
    file.write_text(hir.EXAMPLE)
    program = hir.read(file)
    assert program.text == hir.read(str(file)).text == hir.read(hir.EXAMPLE).text == hir.read(program.text).text
    assert hir.read(program.short).text == program.text
    assert [it.name for it in program.inputs] == ["T0"]
    assert program.outputs[0].text == f"T1_g_float[iS2{{8}}] {MESH}"
    with pytest.raises(FileNotFoundError):
        hir.read("no-such-file.hir")
    with pytest.raises(hir.HirError, match="HostIrContainer"):
        hir.read("")


def test_containers_and_bindings():
    two = hir.EXAMPLE + "\n" + RACE
    with pytest.raises(hir.HirError, match="2 containers"):
        hir.read(two)
    assert hir.read(two, container=1).text == hir.read(RACE).text
    with pytest.raises(IndexError):
        hir.read(two, container=2)
    text = hir.EXAMPLE.replace("{4}", "{( ceilDiv(i0, 2) )}").replace("{8}", "{i0}")
    assert hir.read(text, bindings={"i0": 6}).simulate()["T1"].shape == (6,)
    with pytest.raises(hir.HirError, match="no scalar `i7`"):
        hir.read(text).bind(i7=1)


def test_errors_have_a_place_a_code_and_a_way_out():
    with pytest.raises(hir.HirError) as caught:
        hir.read(hir.EXAMPLE.replace("T0_g_float[", "T0_g_flaot[", 1))
    error = caught.value
    assert (error.code, error.line, error.help) == ("E0104", 1, "did you mean `float`?")
    assert "flaot" in str(error)
    assert error.diagnostics[0].labels[0].line == 1


def test_a_race_is_found_and_its_edit_removes_it():
    report = hir.read(RACE).check()
    [fault] = report.faults
    assert fault.code == "E0702"
    assert fault.line == 3
    assert "E0702" in str(report)
    assert report._repr_html_().startswith("<pre>")
    with pytest.raises(hir.FindingsError) as caught:
        report.raise_if_found()
    assert caught.value.code == "E0702"
    text = RACE.encode()
    for fix in sorted(fault.fixes, key=lambda it: -it.start):
        text = text[: fix.start] + fix.text.encode() + text[fix.end :]
    assert not hir.read(text.decode()).check().faults


def test_passes_return_a_new_program():
    program = hir.read(hir.EXAMPLE)
    lowered = program.run_passes("lower-to-communication")
    assert "Communication" in program.run_passes("@auto").text
    assert "type=Allgather" in lowered.text
    assert "type=Allgather" not in program.text
    with pytest.raises(hir.HirError, match="no-such-pass") as caught:
        program.run_passes("no-such-pass")
    assert "passes:1:1" in str(caught.value)


def test_plans_timelines_and_overlap(tmp_path):
    program = hir.read(hir.EXAMPLE).run_passes("@lower")
    assert "allgather" in program.plan(1)
    with pytest.raises(IndexError):
        program.plan(2)
    program.timeline(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    with pytest.raises(ValueError, match="must end with"):
        program.timeline(tmp_path / "t.txt")
    overlap = program.overlap()
    assert overlap["total"] > 0
    assert [it["rank"] for it in overlap["ranks"]] == [0, 1]


def test_threads_run_at_the_same_time_and_others_go_on():
    program = hir.read(column_parallel("float"))
    results = []
    threads = [threading.Thread(target=lambda: results.append(program.simulate()["T3"])) for _ in range(4)]
    for it in threads:
        it.start()
    for it in threads:
        it.join()
    assert len(results) == 4
    for it in results:
        np.testing.assert_array_equal(it, results[0])


def test_an_interrupt_ends_the_wait():
    m = " ".join(map(str, range(8)))
    t0, t1 = (f"T{i}_g_float[iS{i}{{64}}] (DeviceMesh{{{m}}})" for i in (0, 1))
    text = f"""%HostIrContainer {{ ({t0}) -> ({t1}) :
  {t1} = ALLOCATE(mem_type=global, zero_init=false)
  FOR i6 from 0 to 200000:
    Communication 3 (type=Allreduce, team=({m}), red_op=SUM, input={t0}, output={t1}, backend=NCCL)
    Wait(Communication 3)
}} // %HostIrContainer
"""
    program = hir.read(text)
    import _thread

    # A shell starts background jobs with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, _thread.interrupt_main).start()
    begin = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            program.simulate()
            time.sleep(5)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin < 4


def test_the_fixture_fails_a_racy_program(pytester):
    pytester.makepyfile(f"def test_it(assert_race_free):\n    assert_race_free({RACE!r})\n")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*E0702*"])
    pytester.makepyfile(f"def test_it(assert_race_free):\n    assert_race_free({hir.EXAMPLE!r})\n")
    pytester.runpytest().assert_outcomes(passed=1)


def test_fusions_of_another_file():
    log = Path(__file__).parents[2] / "tests/cases/log/reduction-operator.hir"
    text = log.read_text()
    container = text[text.index("%HostIrContainer") :]
    program = hir.read(container, fusions=[log])
    assert "red_op=MAX" in program.text
    assert program.warnings == ()
    assert [it.code for it in hir.read(container).warnings] == ["lossy-red-op"]


def test_the_version_and_a_page_of_a_notebook():
    assert re.fullmatch(r"\d+\.\d+\.\d+", hir.__version__)
    page = hir.read(hir.EXAMPLE)._repr_html_()
    assert page.startswith("<pre>") and "HostIrContainer" in page and "-&gt;" in page


def test_gains_of_communications():
    path = Path(__file__).parents[2] / "tests/cases/overlap/edits.hir"
    (gain,) = hir.read(path).gains(machine="nominal")
    assert (gain["line"], gain["communication"], gain["exposed"]) == (16, "Allreduce", 10.0)
    assert (gain["if_free"], gain["if_hidden"], gain["edit"]["time"]) == (15.0, 15.0, 15.0)
    assert "nominal GPU" in hir.read(path).overlap(machine="nominal")["source"]
    with pytest.raises(ValueError, match="nowhere"):
        hir.read(path).overlap(machine="nowhere")


def test_a_race_is_fixed():
    program, edits = hir.read(RACE).fix()
    assert len(edits) >= 1
    program.check().raise_if_found()
