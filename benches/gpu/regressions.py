#!/usr/bin/env python3
"""Compares output files of compare.sh, and fails on a regression.

    regressions.py [OLD] NEW [-p PERCENT]

OLD is an output file, or the layers and collectives of measurements.json. The ratio of a shape is that of the fastest measurement of
hir-run and the fastest alternative of the same file. Without alternatives it is that of hir-run and its matrix products alone.
Absolute times of different machines are not compared.

Exit codes:
  0   no ratio got worse by more than PERCENT (default: 5)
  1   one did, or hir-run failed on a shape that OLD has
  2   wrong command line, or the files have no shape in common
"""
import argparse
import statistics
import sys

sys.dont_write_bytecode = True

import cases  # noqa: E402: after the line above
import measurements  # noqa: E402
import tables  # noqa: E402


def ratios(path):
    """Returns for each shape and each reference the ratio of the fastest measurement of hir-run, and its name; or
    None instead of a shape on which hir-run has no time."""
    if path == measurements.FILE:
        return recorded(measurements.load())
    found = {}
    for shape, lines in tables.by_shape(tables.read(path)[0]).items():
        medians = tables.medians(lines)
        ours = tables.fastest(medians, "ours")
        references = {"best peer": tables.fastest(medians, "peer")}
        references["matmul only"] = tables.fastest(medians, "ours", only=True)
        found[shape] = ours and {
            what: (medians[ours] / medians[it], f"{ours[1]} ({ours[2]})") for what, it in references.items() if it
        }
    return found


def recorded(data):
    """Returns the ratios of the file of measurements. Of several runs of a shape the last one counts."""
    found = {}
    for row in (*measurements.rows(data, "layers"), *measurements.rows(data, "collectives")):
        shape = {**cases.parse(row["case"].split(",")[0]), "ranks": row["ranks"]}
        ours, peer = (measurements.values(row[it]) for it in ("hir", "peer"))
        if ours and peer:
            ratio = float(statistics.median(ours) / statistics.median(peer))
            found[tables.key(shape)] = {"best peer": (ratio, row.get("layer", "hir-run"))}
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
    parser.add_argument("baseline", nargs="?", default=measurements.FILE)
    parser.add_argument("new")
    parser.add_argument("-p", dest="percent", type=float, default=5)
    sys.exit(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
