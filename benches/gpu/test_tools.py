#!/usr/bin/env python3
"""Tests of what needs neither GPUs nor PyTorch: python3 -m unittest discover benches/gpu -p 'test_*.py'"""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
import xml.dom.minidom

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import cases  # noqa: E402: after the line above
import tables  # noqa: E402


def line(who, name, us, workload="allreduce", m=4096, **more):
    shape = {"workload": workload, "ranks": 4, "m": m, "n": 1, "k": 1, "slices": 1}
    times = {"us": us, "min_us": us, "max_us": us, "error": None if us else "reason", "issue": "graph", "round": 1}
    return {"who": who, "name": name, **shape, **times, **more}


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, lines):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.writelines(json.dumps(it) + "\n" for it in lines)
        return path

    def run_tool(self, tool, *arguments):
        command = [sys.executable, os.path.join(HERE, tool), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)


class Cases(unittest.TestCase):
    def test_text_is_parsed(self):
        for text in ("allreduce:4096:1:1:20", "mlp:64:32:128:1", "local-row-parallel:64:32:128:1"):
            self.assertEqual(cases.text(cases.parse(text)), text)

    def test_slices_are_optional(self):
        self.assertEqual(cases.parse("mlp:1:2:3")["slices"], 1)

    def test_products_of_a_rank(self):
        self.assertEqual(cases.products("local-mlp", 4, 64, 32, 128), [(64, 32, 32), (64, 32, 32)])
        self.assertEqual(cases.products("block", 4, 64, 32, 128)[:2], [(64, 24, 32), (64, 32, 8)])
        self.assertEqual(cases.products("column-parallel", 4, 64, 128, 32), [(64, 32, 32)])
        self.assertEqual(cases.products("row-parallel", 4, 64, 32, 128), [(64, 32, 32)])


class Programs(unittest.TestCase):
    """What the shell scripts and the Python scripts have to agree on."""

    def printed(self, *arguments):
        command = ["bash", os.path.join(HERE, "programs.sh"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    def test_output_tensors(self):
        import checks

        for kind in (*cases.LAYERS, "local-mlp", "local-block"):
            text = self.printed(kind, "2", "64", "64", "64")
            self.assertIn(f") -> ({checks.output(kind)}", text, kind)
            shell = f"work=$(mktemp -d); . {HERE}/measure.sh; output {kind}"
            told = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=True)
            self.assertEqual(told.stdout.strip(), checks.output(kind))

    def test_heads_sequences_and_scale_of_a_block(self):
        text = self.printed("block", "2", "64", "128", "64")
        self.assertIn(f"double({cases.scale(128):.6g})", text)
        self.assertIn(f"[iS34{{{cases.SEQUENCES}}}, iS35{{8}}, iS36{{{cases.HEADS}}}", text)


class Tables(Files):
    def test_last_of_repeated_measurements_counts(self):
        path = self.write("a", [line("ours", "x", 5), line("ours", "x", 7), line("ours", "x", 9, round=2)])
        (measurements,) = tables.by_shape(tables.read(path)[0]).values()
        self.assertEqual(tables.medians(measurements), {("ours", "x", "graph"): 8})

    def test_a_line_that_was_cut_off_is_ignored(self):
        path = self.write("a", [line("ours", "x", 5)])
        with open(path, "a") as file:
            file.write('{"who": "ou')
        self.assertEqual(len(tables.read(path)[0]), 1)

    def test_ratios_to_the_best_peer_and_to_the_products(self):
        lines = [line("ours", "@lower", 12, "mlp"), line("ours", cases.MATMUL_ONLY, 8, "mlp"), line("peer", "NCCL", 10, "mlp")]
        # A part of the work is no peer.
        lines += [line("peer", "matmul only", 1, "mlp"), line("peer", "gone", None, "mlp")]
        rows = tables.table(lines)
        self.assertIn("ours/best peer 1.200", rows[-1])
        self.assertIn("ours/matmul only 1.500", rows[-1])
        self.assertTrue(any("gone" in row and "reason" in row for row in rows))

    def test_heading_warns_of_several_machines(self):
        records = [{"record": "versions", "machine": it} for it in "ab"]
        self.assertTrue(any("2 machines" in row for row in tables.heading(records)))
        self.assertTrue(any("multicast is off" in row for row in tables.heading([])))

    def test_keys_are_those_of_measure_sh(self):
        done = {"record": "done", **cases.parse("allreduce:4096:1:1"), "ranks": 4, "round": 2}
        self.assertEqual(
            list(tables.measured_keys([line("ours", "x", 5)], [done])),
            ["allreduce:4096:1:1:1 4 x (graph) 1", "allreduce:4096:1:1:1 4 peers 2"],
        )


class Regressions(Files):
    def both(self, ours, peer):
        return [line("ours", "x", ours), line("peer", "NCCL", peer)]

    def test_reduced_file_has_the_same_ratios(self):
        path = self.write("a", self.both(10, 10) + [line("ours", "x", 30, round=2)])
        reduced = self.run_tool("regressions.py", "reduce", path)
        self.assertEqual(reduced.returncode, 0)
        lines = [json.loads(it) for it in reduced.stdout.splitlines()]
        self.assertEqual([(it["us"], it["rounds"]) for it in lines], [(20, 2), (10, 1)])
        again = self.write("b", lines)
        self.assertEqual(self.run_tool("regressions.py", "reduce", again).stdout, reduced.stdout)
        self.assertEqual(self.run_tool("regressions.py", "compare", again, path).returncode, 0)

    def test_only_a_worse_ratio_fails(self):
        old = self.write("old", self.both(10, 10))
        for ours, peer, percent, code in ((20, 20, "5", 0), (10.4, 10, "5", 0), (10.6, 10, "5", 1), (10.6, 10, "10", 0), (5, 10, "5", 0)):
            new = self.write("new", self.both(ours, peer))
            done = self.run_tool("regressions.py", "compare", old, new, "-p", percent)
            self.assertEqual(done.returncode, code, done.stdout)

    def test_a_failure_is_a_regression(self):
        new = self.write("new", self.both(None, 10))
        self.assertEqual(self.run_tool("regressions.py", "compare", self.write("old", self.both(10, 10)), new).returncode, 1)

    def test_nothing_in_common(self):
        new = self.write("new", [line("ours", "x", 1, m=1)])
        self.assertEqual(self.run_tool("regressions.py", "compare", self.write("old", self.both(10, 10)), new).returncode, 2)


class Picture(Files):
    def test_collectives(self):
        lines = [line("ours", f"hir-run, {way}", us * m, m=m) for m in (4096, 32768) for way, us in (("a", 1e-3), ("b", 2e-3))]
        lines += [line("peer", "A & B", m / 500, m=m) for m in (4096, 32768)]
        done = self.run_tool("picture.py", "collectives", self.write("a", lines))
        self.assertEqual(done.returncode, 0, done.stderr)
        svg = xml.dom.minidom.parseString(done.stdout)
        # The fastest way of hir-run, and one alternative.
        self.assertEqual(len(svg.getElementsByTagName("polyline")), 2)
        texts = [it.firstChild.data for it in svg.getElementsByTagName("text")]
        for text in ("hir-run", "A & B", "8 KiB", "µs", "bytes", "allreduce, 4 GPUs"):
            self.assertIn(text, texts)

    def test_the_selected_algorithm_is_drawn(self):
        import picture

        lines = [line("ours", "hir-run, a", 1), line("ours", picture.SELECTED, 2), line("peer", "matmul only", 1)]
        (measurements,) = tables.by_shape(lines).values()
        self.assertEqual(picture.series(measurements), {picture.OURS: 2})

    def test_layers(self):
        lines = [line("ours", "@lower", 12, "mlp"), line("ours", cases.MATMUL_ONLY, 8, "mlp"), line("peer", "NCCL", 10, "mlp")]
        done = self.run_tool("picture.py", "layers", self.write("a", lines))
        self.assertEqual(len(xml.dom.minidom.parseString(done.stdout).getElementsByTagName("rect")), 3)

    def test_nothing_to_draw(self):
        self.assertEqual(self.run_tool("picture.py", "collectives", self.write("a", [])).returncode, 1)


class Inference(Files):
    def printed(self, *arguments):
        done = self.run_tool("inference_programs.py", *map(str, arguments))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_calls_follow_each_other(self):
        text = self.printed("epilogue", 2, 4, 256, 3)
        sources = [it.split("input=")[1].split(",")[0] for it in text.splitlines() if "Communication " in it and "input=" in it]
        self.assertEqual(len(set(sources)), 3)
        self.assertEqual(self.printed("allreduce", 2, 4, 256, 3).count("input=T0,"), 3)

    def test_inputs_are_those_of_the_program(self):
        import inference
        import inference_model as model
        import inference_programs as programs

        for text in inference.CASES:
            case = model.Case(text)
            inputs = programs.program(*case.arguments(2)).split("%HostIrContainer { (")[1].split(")")[0].split(", ")
            self.assertEqual(inputs, [f"T{at}" for at in range(len(case.shapes(2)))], text)

    def test_table_has_the_fastest_alternative_and_failures(self):
        common = {"case": "epilogue:1:4096:20", "ranks": 2}
        lines = [{"who": "ours", "name": name, "us": us, "error": None, **common}
                 for name, us in (("all-reduce alone", 2), ("select-algorithms", 6), ("fuse-collective-epilogue", 4))]
        lines += [{"who": "peer", "name": name, "us": us, "error": None, **common} for name, us in (("a", 9), ("b", 8))]
        done = self.run_tool("inference.py", "table", self.write("a", lines))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split()[-7:], "epilogue:1:4096:20 2.0 6.0 4.0 8.0 0.50 b".split())
        lines.append({"who": "ours", "name": "x", "us": None, "error": "wrong result: 0.5", **common})
        done = self.run_tool("inference.py", "table", self.write("b", lines))
        self.assertEqual(done.returncode, 1)
        self.assertIn("x: wrong result", done.stdout)


class Timing(unittest.TestCase):
    def test_an_alternative_that_is_not_available_has_a_line(self):
        import timing

        cuda = types.SimpleNamespace(empty_cache=lambda: None)
        bench = timing.Bench.__new__(timing.Bench)
        bench.torch, bench.rank, bench.ranks = types.SimpleNamespace(cuda=cuda), 0, 4
        bench.case, bench.options = cases.parse("allreduce:4096:1:1"), types.SimpleNamespace(round=1)

        def make():
            raise timing.NotAvailable("no library")

        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            bench.measure("x", make)
        self.assertEqual(json.loads(told.getvalue())["error"], "not available: no library")


if __name__ == "__main__":
    unittest.main()
