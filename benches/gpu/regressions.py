#!/usr/bin/env python3
"""Compares output files of compare.sh, and fails on a regression.

    regressions.py reduce FILE >benches/gpu/baseline.jsonl
        prints the medians over rounds, one JSON line per measurement, and the versions: a baseline
    regressions.py compare BASELINE NEW [-p PERCENT]
        compares the ratios of two files, either of which may be a baseline

The ratio of a shape is that of the fastest measurement of hir-run and the fastest alternative of the same file.
Without alternatives it is that of hir-run and its matrix products alone. Absolute times of different machines are
not compared.

Exit codes of compare:
  0   no ratio got worse by more than PERCENT (default: 5)
  1   one did, or hir-run failed on a shape that the baseline has
  2   wrong command line, or the files have no shape in common
"""
import argparse
import json
import sys

sys.dont_write_bytecode = True

import tables  # noqa: E402: after the line above

SHAPE = ("workload", "ranks", "m", "n", "k", "slices")
VERSIONS = ("record", "time", "GPUs", "driver", "CUDA", "NCCL", "PyTorch", "hir", "commit")


def reduce(options):
    lines, records = tables.read(options.file)
    for record in records:
        if record["record"] == "versions":
            print(json.dumps({name: record.get(name) for name in VERSIONS}))
    for shape, measurements in tables.by_shape(lines).items():
        for name, us in tables.medians(measurements).items():
            good = [it for it in measurements[name] if it["us"] is not None]
            rounds = sum(it.get("rounds", 1) for it in good)
            who, what, issue = name
            line = {"who": who, "name": what, "issue": issue, **dict(zip(SHAPE, shape)), "us": round(us, 3)}
            print(json.dumps({**line, "rounds": rounds}))


def ratios(path):
    """Returns for each shape and each reference the ratio of the fastest measurement of hir-run, and its name; or
    None instead of a shape on which hir-run has no time."""
    found = {}
    for shape, measurements in tables.by_shape(tables.read(path)[0]).items():
        medians = tables.medians(measurements)
        ours = tables.fastest(medians, "ours")
        references = {"best peer": tables.fastest(medians, "peer")}
        references["matmul only"] = tables.fastest(medians, "ours", only=True)
        found[shape] = ours and {
            what: (medians[ours] / medians[it], f"{ours[1]} ({ours[2]})") for what, it in references.items() if it
        }
    return found


def compare(options):
    old, new = ratios(options.baseline), ratios(options.new)
    rows, worse = [], 0
    for shape, before in old.items():
        after = new.get(shape, {})
        shared = [it for it in before or () if after is None or it in after]
        if not shared:
            continue
        what = shared[0]
        ratio, name = before[what]
        if after is None:
            verdict, told, now = "FAILED", "-", "-"
        else:
            change = 100 * (after[what][0] / ratio - 1)
            verdict = "WORSE" if change > options.percent else "better" if change < -options.percent else "equal"
            now, told, name = f"{after[what][0]:.3f}", f"{change:+.1f}%", after[what][1]
        worse += verdict in ("WORSE", "FAILED")
        rows.append((tables.title(shape), what, f"{ratio:.3f}", now, told, verdict, name))
    if not rows:
        print("regressions.py: the files have no shape in common that both sides have measured", file=sys.stderr)
        return 2
    columns = ("shape", "ours to", "baseline", "new", "change", "verdict", "fastest")
    widths = [max(len(row[at]) for row in [columns, *rows]) for at in range(len(columns))]
    for row in [columns, *rows]:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
    lost = len(old) - len(rows)
    print(f"{len(rows)} shapes compared, {worse} worse by more than {options.percent:g}% or failed, {lost} of the baseline not compared")
    return 1 if worse else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("reduce").add_argument("file")
    comparing = commands.add_parser("compare")
    comparing.add_argument("baseline")
    comparing.add_argument("new")
    comparing.add_argument("-p", dest="percent", type=float, default=5)
    options = parser.parse_args()
    sys.exit({"reduce": reduce, "compare": compare}[options.command](options))


if __name__ == "__main__":
    main()
