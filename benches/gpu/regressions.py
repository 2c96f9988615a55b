#!/usr/bin/env python3
"""Compares output files of compare.sh, and fails on a regression.

    regressions.py [OLD] NEW [-p PERCENT]

Without OLD, NEW is compared with the layers and collectives of measurements.json. The ratio of a shape is that of the fastest
measurement of hir-run and the fastest alternative of the same file, or its matrix products alone.

Exit codes:
  0   no ratio got worse by more than PERCENT (default: 5)
  1   one did, or hir-run failed on a shape that OLD has
  2   wrong command line, or the files have no shape in common
"""
import argparse
import math
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
        references = {"best peer": tables.fastest(medians, "peer"), "matmul only": tables.fastest(medians, "ours", only=True)}
        name = ours and f"{ours[1]} ({ours[2]})"
        found[shape] = ours and {what: (medians[ours] / medians[it], name) for what, it in references.items() if it}
    return found


def recorded(data):
    """Returns the ratios of the file of measurements. Of several runs of a shape the last one counts."""
    found = {}
    for row in (*measurements.rows(data, "layers"), *measurements.rows(data, "collectives")):
        case = row["case"].split(",")[0] if "case" in row else f"{row['kind']}:{row['bytes'] // 2}:1:1:1"
        shape = tables.key({**cases.parse(case), "ranks": row["ranks"]})
        ours, peer = (measurements.values(row[it]) for it in ("hir", "peer"))
        if ours and peer:
            found[shape] = {"best peer": (float(statistics.median(ours) / statistics.median(peer)), row.get("layer", "hir-run"))}
    return found


def compare(options):
    old, new, found = ratios(options.baseline), ratios(options.new), []
    for shape, before in old.items():
        after = new.get(shape, {})
        what = next((it for it in before or () if after is None or it in after), None)
        if what:
            ratio, name = before[what]
            now, name = after[what] if after else (math.inf, f"FAILED, {name}")
            change = 100 * (now / ratio - 1)
            found.append("WORSE" if change > options.percent else "better" if change < -options.percent else "equal")
            print(f"{found[-1]:6} {ratio:.3f} {now:.3f} {change:+6.1f}%  {tables.title(shape)}, to {what}: {name}")
    if not found:
        print("regressions.py: the files have no shape in common that both sides have measured", file=sys.stderr)
        return 2
    print(f"{len(found)} shapes compared, {found.count('WORSE')} worse by more than {options.percent:g}% or failed, {len(old) - len(found)} of OLD not compared")
    return int("WORSE" in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baseline", nargs="?", default=measurements.FILE)
    parser.add_argument("new")
    parser.add_argument("-p", dest="percent", type=float, default=5)
    sys.exit(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
