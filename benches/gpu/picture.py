#!/usr/bin/env python3
"""Draws output files of compare.sh as SVG, in colours for light and dark backgrounds.

    picture.py collectives FILE... [-c] >docs/images/collectives.svg
        time by size of each collective and number of ranks, logarithmic: hir-run with the algorithm that the pass
        select-algorithms chooses, and each alternative; with -c, with a cold L2 cache
    picture.py layers FILE... >docs/images/layers.svg
        time of each layer as bars: the fastest of hir-run's pipelines, its matrix products alone, and each
        alternative

Of measurements step by step and as a graph the faster one is drawn.
"""
import argparse
import math
import sys
from xml.sax.saxutils import escape

sys.dont_write_bytecode = True

import cases  # noqa: E402: after the line above
import tables  # noqa: E402

OURS = "hir-run"
SELECTED = "hir-run, select-algorithms"
# The colours have enough contrast on white and on black.
COLOURS = {OURS: "#e0791b", cases.MATMUL_ONLY: "#8a8a8a"}
OTHERS = ("#3f8fd6", "#2fa37b", "#a472d8", "#d95877", "#a08a2c", "#3aa6b0", "#7d7bd9", "#b5705a", "#6f9e3a")
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#808080}.t{font-weight:600;font-size:12px}.e{text-anchor:end}"
    ".m{text-anchor:middle}.g{stroke:#808080;stroke-opacity:.3;fill:none}.a{stroke:#808080;fill:none}"
)
WIDTH, HEIGHT = 300, 220  # of the area of one chart
LEFT, TOP, GAP = 60, 40, 70


def series(measurements):
    """Returns the time of hir-run, of its products alone, and of each alternative, by name. Of several ways of
    hir-run this is the one that the pass selects, or the fastest if that was not measured."""
    found, medians = {}, tables.medians(measurements)
    is_selected = any(name == SELECTED for _, name, _ in medians)
    for (who, name, _), us in medians.items():
        if who == "ours" and is_selected and name != SELECTED:
            continue
        if who == "ours":
            name = name if name == cases.MATMUL_ONLY else OURS
        elif "only" in name:
            continue
        found[name] = min(us, found.get(name, us))
    return found


def colours(names):
    """Returns a colour for each name, which does not depend on the order of the lines."""
    others = sorted(set(names) - set(COLOURS))
    return {**COLOURS, **{name: OTHERS[at % len(OTHERS)] for at, name in enumerate(others)}}


def size(count):
    """Returns a number of bytes as text."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024 or unit == "MiB":
            return f"{count:g} {unit}"
        count /= 1024


def legend(names, colour, y, width):
    parts, x = [], LEFT
    for name in names:
        if x + 20 + 6.5 * len(name) > width:
            x, y = LEFT, y + 16
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour[name]}"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{escape(name)}</text>')
        x += 30 + round(6.5 * len(name))
    return parts, y


def document(title, width, height, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title><style>{STYLE}</style>", *parts, "</svg>"])


def chart(title, points, colour, x0, y0):
    """Draws time by bytes. `points` has a list of (bytes, time) for each name."""
    every = [it for line in points.values() for it in line]
    sizes = sorted({bytes for bytes, _ in every})
    low, high = math.log2(sizes[0]), max(math.log2(sizes[-1]), math.log2(sizes[0]) + 1)
    first = math.floor(math.log10(min(us for _, us in every)))
    last = max(math.ceil(math.log10(max(us for _, us in every))), first + 1)

    def at(bytes, us):
        across = (math.log2(bytes) - low) / (high - low)
        up = (math.log10(us) - first) / (last - first)
        return f"{x0 + WIDTH * across:.1f} {y0 + HEIGHT * (1 - up):.1f}"

    parts = [f'<text class="t" x="{x0}" y="{y0 - 10}">{escape(title)}</text>']
    for power in range(first, last + 1):
        for digit in (1, 2, 5):
            us = digit * 10.0**power
            if us > 10.0**last:
                continue
            x, y = at(sizes[0], us).split()
            parts.append(f'<path class="g" d="M{x} {y}h{WIDTH}"/>')
            parts.append(f'<text class="e" x="{x0 - 5}" y="{float(y) + 4:.1f}">{us:g}</text>')
    step = max(1, math.ceil((high - low) / 6))
    for exponent in range(math.ceil(low), math.floor(high) + 1, step):
        x = x0 + WIDTH * (exponent - low) / (high - low)
        parts.append(f'<path class="g" d="M{x:.1f} {y0}v{HEIGHT}"/>')
        parts.append(f'<text class="m" x="{x:.1f}" y="{y0 + HEIGHT + 15}">{size(2**exponent)}</text>')
    parts.append(f'<path class="a" d="M{x0} {y0}v{HEIGHT}h{WIDTH}"/>')
    parts.append(f'<text class="m" x="{x0 + WIDTH / 2}" y="{y0 + HEIGHT + 30}">bytes</text>')
    parts.append(f'<text class="m" transform="translate({x0 - 42} {y0 + HEIGHT / 2}) rotate(-90)">µs</text>')
    # hir-run last, on top.
    for name in sorted(points, key=lambda it: it == OURS):
        line = sorted(points[name])
        marks = " ".join(at(*it) for it in line)
        thick = 2.5 if name == OURS else 1.5
        parts.append(f'<polyline points="{marks}" fill="none" stroke="{colour[name]}" stroke-width="{thick}"/>')
        for x, y in (at(*it).split() for it in line):
            parts.append(f'<circle cx="{x}" cy="{y}" r="{thick}" fill="{colour[name]}"/>')
    return parts


def collectives(shapes, cold):
    """Returns charts: a row for each collective, a column for each number of ranks."""
    charts = {}
    for shape, measurements in shapes.items():
        workload, ranks, count, _, _, slices = shape
        if workload in cases.COLLECTIVES and (slices > 1) == cold:
            for name, us in series(measurements).items():
                charts.setdefault((workload, ranks), {}).setdefault(name, []).append((2 * count, us))
    if not charts:
        return None
    kinds = [it for it in cases.COLLECTIVES if any(it == workload for workload, _ in charts)]
    ranks = sorted({it for _, it in charts})
    names = sorted({name for points in charts.values() for name in points}, key=lambda it: (it != OURS, it))
    colour = colours(names)
    width = max(LEFT + len(ranks) * (WIDTH + GAP), 600)
    parts, y = legend(names, colour, 16, width)
    top = y + TOP
    for (workload, count), points in charts.items():
        x = LEFT + ranks.index(count) * (WIDTH + GAP)
        row = top + kinds.index(workload) * (HEIGHT + GAP)
        parts += chart(f"{workload}, {count} GPUs", points, colour, x, row)
    cache = "L2-cold" if cold else "L2-warm"
    return document(f"Time of collectives by size, {cache}", width, top + len(kinds) * (HEIGHT + GAP), parts)


def layers(shapes, _):
    """Returns bars for each layer."""
    parts, y = [], 8
    found = {shape: series(it) for shape, it in shapes.items() if shape[0] in cases.LAYERS}
    found = {shape: times for shape, times in found.items() if times}
    if not found:
        return None
    colour = colours(name for times in found.values() for name in times)
    for shape, times in found.items():
        y += 24
        parts.append(f'<text class="t" x="8" y="{y}">{escape(tables.title(shape))} (µs)</text>')
        longest = max(times.values())
        for name in sorted(times, key=lambda it: (it not in COLOURS, times[it])):
            y += 18
            length = 500 * times[name] / longest
            parts.append(f'<text class="e" x="310" y="{y}">{escape(name)}</text>')
            parts.append(f'<rect x="318" y="{y - 11}" width="{length:.1f}" height="13" fill="{colour[name]}"/>')
            time = f"{times[name]:.4g}" if times[name] < 1000 else f"{times[name]:.0f}"
            parts.append(f'<text x="{322 + length:.1f}" y="{y}">{time}</text>')
    return document("Time of layers", 900, y + 16, parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("collectives", "layers"))
    parser.add_argument("files", nargs="+")
    parser.add_argument("-c", dest="cold", action="store_true")
    options = parser.parse_args()
    lines = [line for path in options.files for line in tables.read(path)[0]]
    svg = {"collectives": collectives, "layers": layers}[options.what](tables.by_shape(lines), options.cold)
    if svg is None:
        sys.exit(f"picture.py: no measurements of {options.what}")
    print(svg)


if __name__ == "__main__":
    main()
