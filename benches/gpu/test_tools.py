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
import measurements  # noqa: E402
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

    def test_only_a_worse_ratio_fails(self):
        old = self.write("old", self.both(10, 10))
        for ours, peer, percent, code in ((20, 20, "5", 0), (10.4, 10, "5", 0), (10.6, 10, "5", 1), (10.6, 10, "10", 0), (5, 10, "5", 0)):
            new = self.write("new", self.both(ours, peer))
            done = self.run_tool("regressions.py", old, new, "-p", percent)
            self.assertEqual(done.returncode, code, done.stdout)

    def test_a_failure_is_a_regression(self):
        new = self.write("new", self.both(None, 10))
        self.assertEqual(self.run_tool("regressions.py", self.write("old", self.both(10, 10)), new).returncode, 1)

    def test_nothing_in_common(self):
        new = self.write("new", [line("ours", "x", 1, m=1)])
        self.assertEqual(self.run_tool("regressions.py", self.write("old", self.both(10, 10)), new).returncode, 2)

    def test_without_an_old_file_the_measurements_are_compared(self):
        new = self.write("new", self.both(3.1, 5.4))
        done = self.run_tool("regressions.py", new)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1 shapes compared", done.stdout)
        self.assertEqual(self.run_tool("regressions.py", self.write("new", self.both(4, 5.4))).returncode, 1)


class Measurements(Files):
    def data(self):
        runs = {"r": {"gpus": "two GPUs", "date": "2026-01-01", "source": "`x`"}}
        rows = [["a", 2, 4], ["b", [3, 5], [4, 4]], ["c", [1, 3, 2], 4], ["d", 3, None], ["e", {"median": 3, "least": 2, "largest": 9}, 4]]
        show = {"what": "{what}", "hir": "{hir}", "other": "{peer}, {gpus}", "ratio": "{ratio}"}
        table = {"unit": "µs", "columns": ["what", "hir", "peer"], "computed": {"ratio": "hir / peer"}, "show": show, "rows": {"r": rows}}
        return {"runs": runs, "tables": {"t": table}, "charts": {}}

    def test_pages_and_pictures_show_the_file(self):
        done = self.run_tool("measurements.py", "--check")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_table_is_on_a_page_and_every_run_in_a_table(self):
        data = measurements.load()
        pages = "".join(path.read_text() for path in (measurements.ROOT / "docs").glob("*.md"))
        shown = {it[2] for it in measurements.MARKED.finditer(pages)}
        self.assertEqual(shown, set(data["tables"]))
        self.assertEqual({run for table in data["tables"].values() for run in table.get("rows", ())}, set(data["runs"]))

    def test_the_readme_says_what_the_file_says(self):
        rates = [it for row in measurements.rows(measurements.load(), "tflops") if row["what"].startswith("hir") for it in row["rate"]]
        text = " ".join((measurements.ROOT / "README.md").read_text().split())
        self.assertIn(f"{min(rates)} to {max(rates)} [TFLOP/s a GPU]", text)

    def test_a_table(self):
        lines = measurements.markdown(self.data(), "t").splitlines()
        self.assertEqual(lines[1:7], [
            "|---|---:|---:|---:|",
            "|a| 2| 4, two GPUs| 0.50|",
            "|b| 3 to 5| 4, two GPUs| 0.75 to 1.25|",
            "|c| 2 (1 to 3)| 4, two GPUs| 0.50 (0.25 to 0.75)|",
            "|d| 3| –| –|",
            "|e| 3 (2 to 9)| 4, two GPUs| 0.75|",
        ])

    def test_a_page_that_differs(self):
        text = "a\n<!-- measurements: t r -->\nold\n<!-- measurements: end -->\nb"
        before, now = (measurements.marked(self.data(), it) for it in (text, text.replace("old\n", "")))
        self.assertEqual(before, now)
        self.assertIn("|a| 2|", now)
        self.assertEqual(measurements.marked(self.data(), now), now)

    def test_the_text_of_readme_has_the_numbers_of_the_file(self):
        data, text = measurements.load(), (measurements.ROOT / "README.md").read_text()
        hir = [it for it in measurements.rows(data, "tflops") if it["what"].startswith("hir")]
        rates = [round(value) for it in hir for value in measurements.values(it["rate"])]
        self.assertIn(f"at {min(rates)} to {max(rates)}\n[TFLOP/s a GPU]", text)
        compared = [it for name in ("llama", "attention") for it in measurements.rows(data, name)]
        slower = [value for it in compared for value in measurements.values(it["ratio"]) if value > 1]
        self.assertIn(f"slower ({min(slower):.1f} to {max(slower):.1f} times)", text)

    def test_pages_have_the_counts_of_the_file(self):
        counts = measurements.load()["counts"]["mutants of tests/suite/mutants.rs"]
        total = f"{sum(counts.values()):,}"
        readme, checker = (" ".join((measurements.ROOT / it).read_text().split()) for it in ("README.md", "docs/checker.md"))
        self.assertIn(f"of {total} programs with one changed statement", readme)
        self.assertIn(
            f"Of {total} mutants, the checker flags {counts['flagged']:,}, {counts['refused']:,} are refused, "
            f"{counts['equal']:,} give the same result, and {counts['other']:,} are other programs",
            checker,
        )

    def test_a_chart_has_bars_with_lines_from_least_to_largest(self):
        svg = measurements.overview(self.data(), [["a & b", ["t", "r", "'[ab]'"]], ["c", ["t", "r", "'a'"]]])
        parts = xml.dom.minidom.parseString(svg)
        texts = [it.firstChild.data for it in parts.getElementsByTagName("text")]
        self.assertLess({"a & b", "0.78", "c", "0.50"}, set(texts))
        self.assertEqual(sum("v8m0" in it.getAttribute("d") for it in parts.getElementsByTagName("path")), 1)


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
