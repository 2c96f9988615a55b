#!/usr/bin/env python3
"""Writes the tables and charts of measurements.json, the one file of figures, into README.md, docs/*.md and docs/images/*.svg.

    measurements.py [--check]

A page has a table between the comments `<!-- measurements: TABLE [RUN...] -->` and `<!-- measurements: end -->`. With --check
nothing is written; files that differ are named, and the exit code is 1. NOTES.md describes measurements.json.
"""
import collections
import decimal
import json
import math
import pathlib
import re
import statistics
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "benches/gpu/measurements.json"
MARKED = re.compile(r"(<!-- measurements: (\S+)((?: \S+)*) -->\n)(?:.*?\n)??(<!-- measurements: end -->)", re.S)
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.t{font-weight:600}.e{text-anchor:end}.m{text-anchor:middle}"
    ".b{fill:#fff}.g{stroke:#8c959f;stroke-opacity:.35;fill:none}.a{stroke:#24292f;fill:none}"
    "@media(prefers-color-scheme:dark){text{fill:#d0d7de}.b{fill:#0d1117}.a{stroke:#d0d7de}}"
)
# The colours have enough contrast on white and on black.
COLOURS = {"hir": "#e0791b", "peer": "#3f8fd6", "nccl": "#2fa37b", "products": "#8a8a8a"}
NAMES = {"hir": "hir", "peer": "fastest alternative", "nccl": "NCCL", "products": "matrix products alone"}


def load(path=FILE):
    """Returns the file. Its numbers keep their digits."""
    return json.loads(pathlib.Path(path).read_text(), parse_float=decimal.Decimal)


def values(cell):
    """Returns the values of a cell that are compared with those of other cells."""
    cells = cell if isinstance(cell, list) else [cell["median"] if isinstance(cell, dict) else cell]
    return [it for it in cells if it is not None]


def best(*all_values):
    return min(it for it in all_values if it is not None)


def compute(expression, row):
    """Evaluates an expression of the columns, for each of several values; None without a value that it needs."""
    found = []
    for at in range(max(len(values(it)) for it in row.values())):
        names = {name: (values(it) or [None])[min(at, len(values(it)) - 1)] for name, it in row.items()}
        try:
            found.append(eval(expression, {"__builtins__": {}, "best": best}, names))
        except (TypeError, ValueError):
            return None
    return [round(it, 2 if it < 100 else None) for it in map(decimal.Decimal, found)]


def rows(data, name, runs=()):
    """Yields the rows of a table, of some runs or of all, as dictionaries with the fields of the run; without rows, the runs."""
    table = data["tables"][name]
    for run in runs or table.get("rows", data["runs"]):
        for cells in table["rows"][run] if "rows" in table else [[]]:
            row = {"run": run, **data["runs"][run], **dict(zip(table["columns"], cells, strict=True))}
            yield {**row, **{name: compute(it, row) for name, it in table.get("computed", {}).items()}}


def shown(cell):
    """Returns a cell as text: of two values both, of more the median, the least and the largest."""
    found = list(cell.values()) if isinstance(cell, dict) else values(cell)
    if not found:
        return "–"
    low, middle, high = (str(it) for it in (min(found), statistics.median(found), max(found)))
    return low if low == high else f"{low} to {high}" if len(found) == 2 else f"{middle} ({low} to {high})"


def size(count):
    return f"{count >> 20} MiB" if count >> 20 else f"{count >> 10} KiB"


def collectives(found):
    """Returns the heading and the cells of the table of collectives: a row for each size, a column for each kind and number of ranks."""
    by_kind = {}
    for row in found:
        by_kind.setdefault(f"{row['kind']}, {row['ranks']} GPUs", {})[row["bytes"]] = row
    body = []
    for count in sorted({it["bytes"] for it in found}):
        those = (it.get(count) for it in by_kind.values())
        body.append([size(count), *(f"{shown(it['hir'])} / {shown(it['peer'])}" if it else "–" for it in those)])
    ratios = ([it["ratio"][0] for it in those.values() if it["ratio"]] for those in by_kind.values())
    return ["bytes", *by_kind], [*body, ["geometric mean of the ratios", *(f"{statistics.geometric_mean(it):.2f}" for it in ratios)]]


def markdown(data, name, runs=()):
    """Returns a table, with its unit and its runs below."""
    if name not in data["tables"]:
        sys.exit(f"measurements.py: no table {name}, which a page asks for")
    table, found = data["tables"][name], list(rows(data, name, runs))
    heading, body = collectives(found) if name == "collectives" else (list(table["show"]), [])
    for row in found if not body else ():
        texts = collections.defaultdict(lambda: "–", {it: shown(cell) for it, cell in row.items()})
        body.append([re.sub("^–, .*|^–/–/–/–$|, –$", "", it.format_map(texts)) or "–" for it in table["show"].values()])
    filled = [at for at in range(len(heading)) if any(it[at] != "–" for it in body)]
    rule = "|".join("---:" if all(re.match(r"–|[\d.]", it[at]) for it in body) else "---" for at in filled)
    lines = [rule if line is None else "| ".join(line[at] for at in filled) for line in (heading, None, *body)]
    told = ", ".join(f"`{it}`" for it in runs or table.get("rows", ()))
    return "\n".join([f"|{line}|" for line in lines] + (["", f"{table['unit']}. [Runs](measurements.md#runs): {told}."] if told else []))


def document(title, width, height, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    back = f'<rect class="b" width="{width}" height="{height}" rx="6"/>'
    return "\n".join([head, f"<title>{escape(title)}</title><style>{STYLE}</style>", back, *parts, "</svg>\n"])


def legend(names, x, y):
    for name in names:
        yield f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{COLOURS[name]}"/><text x="{x + 15}" y="{y}">{NAMES[name]}</text>'
        x += 45 + 7 * len(NAMES[name])


def overview(data, bars):
    """Draws ratios to the fastest alternative on a logarithmic axis: geometric means as bars, the least and the largest as lines."""
    left, scale, top = 332, 136, 62
    bottom = top + 22 * len(bars)
    at = {it: left + scale * math.log2(it / 0.32) for it in (0.35, 0.5, 0.7, 1, 1.5, 2, 3, 4)}
    parts = ['<text class="t" x="14" y="22">Time of hir / time of the fastest alternative: below 1, hir is faster</text><text x="14" y="40">'
             "Bar: geometric mean of sizes and runs, blue where hir is faster. Line: from the least to the largest.</text>"]
    for ratio, x in at.items():
        parts.append(f'<path class="{"a" if ratio == 1 else "g"}" d="M{x:.1f} {top - 6}V{bottom}"/><text class="m" x="{x:.1f}" y="{bottom + 14}">{ratio:g}</text>')
    for number, (label, *picked) in enumerate(bars):
        found = [it for table, run, key in picked for it in rows(data, table, [run]) if re.search(key, f"{it.get('case', it.get('kind'))} {list(it.values())}")]
        ratios = [float(it) for row in found for it in values(row["ratio"])]
        low, middle, high = (left + scale * math.log2(it / 0.32) for it in (min(ratios), statistics.geometric_mean(ratios), max(ratios)))
        y, colour = top + 22 * number, COLOURS["peer" if middle < at[1] else "hir"]
        parts.append(f'<text class="e" x="{left - 8}" y="{y + 12}">{escape(label)}</text>')
        parts.append(f'<rect x="{min(middle, at[1]):.1f}" y="{y + 1}" width="{abs(middle - at[1]):.1f}" height="14" fill="{colour}"/>')
        parts.append(f'<path class="a" d="M{low:.1f} {y + 4}v8m0 -4H{high:.1f}m0 -4v8"/>' if low < high else "")
        parts.append(f'<text x="{max(high, at[1]) + 7:.1f}" y="{y + 12}">{statistics.geometric_mean(ratios):.2f}</text>')
    return document("Time of hir relative to the fastest alternative", 900, bottom + 26, filter(None, parts))


def layers(data, runs):
    """Draws the times of layers as bars."""
    parts, y = list(legend(COLOURS, 14, 22)), 32
    for row in rows(data, "layers", runs):
        times = {it: float(statistics.median(values(row[it]))) for it in COLOURS if row[it]}
        title = re.sub(r"^([^:]*):(\d+):(\d+):(\d+):1", r"\1, m=\2 n=\3 k=\4", row["case"]) + f", {row['gpus']}"
        parts.append(f'<text class="t" x="14" y="{y + 18}">{escape(title)} (µs)</text>')
        y += 22
        for name, time in times.items():
            length = 700 * time / max(times.values())
            parts.append(f'<rect x="14" y="{y + 2}" width="{length:.1f}" height="12" fill="{COLOURS[name]}"/><text x="{length + 20:.1f}" y="{y + 12}">{shown(row[name])}</text>')
            y += 15
    return document("Time of layers", 800, y + 14, parts)


def lines(data, runs):
    """Draws the time of collectives by size, on logarithmic axes."""
    parts, charts, width, height = list(legend(("hir", "peer", "nccl"), 14, 22)), {}, 330, 220
    for row in rows(data, "collectives", runs):
        charts.setdefault((row["kind"], row["ranks"]), []).append(row)
    for number, ((kind, ranks), found) in enumerate(charts.items()):
        x0, y0 = 60 + 410 * (number % 2), 66 + 285 * (number // 2)
        parts.append(f'<text class="t" x="{x0}" y="{y0 - 12}">{kind}, {ranks} GPUs</text>')
        for power in range(4):
            y = y0 + height * (1 - power / 3)
            parts.append(f'<path class="g" d="M{x0} {y:.1f}h{width}"/><text class="e" x="{x0 - 6}" y="{y + 4:.1f}">{10**power}</text>')
        for exponent in range(13, 29, 3):
            x, text = x0 + width * (exponent - 13) / 15, size(2**exponent)
            parts.append(f'<path class="g" d="M{x:.1f} {y0}v{height}"/><text class="m" x="{x:.1f}" y="{y0 + height + 16}">{text}</text>')
        parts.append(f'<text class="m" transform="translate({x0 - 42} {y0 + height / 2}) rotate(-90)">µs</text>')
        for name in ("nccl", "peer", "hir"):
            points = [(math.log2(it["bytes"]), math.log10(it[name])) for it in found if it[name]]
            points = [f"{x0 + width * (x - 13) / 15:.1f} {y0 + height * (1 - y / 3):.1f}" for x, y in points]
            parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
    return document("Time of collectives by size", 860, 66 + 285 * math.ceil(len(charts) / 2), parts)


def marked(data, text):
    """Returns a page with its tables."""
    return MARKED.sub(lambda it: f"{it[1]}\n{markdown(data, it[2], it[3].split())}\n\n{it[4]}", text)


def made(data):
    """Returns the texts of all files, as they are and as they have to be."""
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]:
        yield path, path.read_text(), marked(data, path.read_text())
    for name, spec in data["charts"].items():
        path, draw = ROOT / f"docs/images/{name}.svg", {"overview": overview, "layers": layers, "collectives": lines}[name]
        yield path, path.read_text() if path.exists() else "", draw(data, spec)


def main():
    is_check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not is_check:
        sys.exit(__doc__)
    differ = [(path, text) for path, before, text in made(load()) if text != before]
    for path, text in differ:
        print(f"{path.relative_to(ROOT)}: {'differs from benches/gpu/measurements.json' if is_check else 'written'}")
        if not is_check:
            path.write_text(text)
    sys.exit(is_check and bool(differ))


if __name__ == "__main__":
    main()
