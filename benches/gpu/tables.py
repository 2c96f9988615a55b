"""Reads the lines of compare.sh's output file, and prints them as a table with ratios."""
import json
import statistics

import cases


def read(path):
    """Returns the measurements and the other records of a file. Of repeated measurements the last one counts."""
    measured, records = {}, []
    with open(path) as file:
        for text in file:
            if not text.startswith("{"):
                continue
            try:
                line = json.loads(text)
            except ValueError:
                # The end of a file whose writer was stopped.
                continue
            if "record" in line:
                records.append(line)
            else:
                measured[(key(line), line["who"], line["name"], line["issue"], line.get("round"))] = line
    return list(measured.values()), records


def key(line):
    """Returns what identifies a shape."""
    return tuple(line.get(it, 1) for it in ("workload", "ranks", "m", "n", "k", "slices"))


def title(shape):
    """Returns a shape in words."""
    workload, ranks, m, n, k, slices = shape
    size = f"{m} elements" if workload in cases.COLLECTIVES else f"m={m} n={n} k={k}"
    return f"{workload}, {ranks} ranks, {size}" + (", L2-cold" if slices > 1 else "")


def by_shape(lines):
    """Returns for each shape the measurements by (who, name, issue)."""
    shapes = {}
    for line in lines:
        shapes.setdefault(key(line), {}).setdefault((line["who"], line["name"], line["issue"]), []).append(line)
    return shapes


def medians(measurements):
    """Returns the median over rounds of each measurement that succeeded."""
    found = {}
    for name, lines in measurements.items():
        good = [it["us"] for it in lines if it["us"] is not None]
        if good:
            found[name] = statistics.median(good)
    return found


def fastest(found, who, only=False):
    """Returns the fastest of one side, or None. A measurement of a part of the work has "only" in its name."""
    fits = [it for it in found if it[0] == who and ("only" in it[1]) == only]
    if only:
        fits = [it for it in fits if it[1] == cases.MATMUL_ONLY]
    return min(fits, key=found.get, default=None)


def heading(records):
    """Returns rows that say how the measurements were made."""
    rows = ["# NVLink multicast is off for all (NCCL_NVLS_ENABLE=0, TORCH_SYMM_MEM_DISABLE_MULTICAST=1)."]
    rows += [
        "# Each round is a new job of hir-run and a new job of PyTorch, on new random data. Odd rounds begin with hir-run,",
        "# even rounds with PyTorch. A time is the median over rounds.",
        f"# A run of a collective, of {' or of '.join(cases.SHORT_LAYERS)} is {cases.CALLS} calls, and its time is divided by {cases.CALLS}. The calls use",
        '# the same tensors (L2-warm), except where "L2-cold" is written: there they go over slices of larger tensors, and',
        "# the L2 cache is overwritten before each run.",
    ]
    told = []
    for record in records:
        if record["record"] == "versions":
            row = "# " + ", ".join(f"{name} {value}" for name, value in record.items() if value and name not in ("record", "time"))
        elif record["record"] == "library":
            row = f"# {record['text']}"
        else:
            continue
        if row not in told:
            told.append(row)
    machines = {it.get("machine") for it in records if it["record"] == "versions"}
    if len(machines) > 1:
        told.append(f"# The file has measurements of {len(machines)} machines, whose times are not comparable.")
    return rows + told


def table(measured_lines, records=()):
    """Returns rows of text: medians over rounds by shape; the ratio of hir-run to the fastest alternative that
    does the same work; and the ratio to the matrix products alone, on hir-run."""
    rows = heading(records)
    for shape, measurements in by_shape(measured_lines).items():
        rows.append(f"# {title(shape)}")
        rows.append(f"# {'':5} {'issue':6} {'what':46} {'rounds':>6} {'us':>11} {'least':>11} {'/peer':>7} {'/matmul':>7}")
        found = medians(measurements)
        machines = {it.get("machine") for lines in measurements.values() for it in lines if it["us"] is not None}
        if len(machines) > 1:
            rows.append(f"# WARNING: measured on {len(machines)} machines, so the ratios are of different machines")
        peer, matmul = fastest(found, "peer"), fastest(found, "ours", only=True)
        for name, measured in measurements.items():
            who, what, issue = name
            if name not in found:
                error = next((it["error"] for it in measured if it.get("error")), None)
                rows.append(f"  {who:5} {issue:6} {what:46} {'-':>6} {error}")
                continue
            good = [it for it in measured if it["us"] is not None]
            compared = [peer if who == "ours" and "only" not in what else None, matmul if name != matmul else None]
            ratios = " ".join(f"{found[name] / found[it]:7.3f}" if it else f"{'-':>7}" for it in compared)
            least = min(it.get("min_us", it["us"]) for it in good)
            rows.append(f"  {who:5} {issue:6} {what:46} {len(good):>6} {found[name]:11.2f} {least:11.2f} {ratios}")
        rows.append(best(found))
    return rows


def best(found):
    """Returns the row that compares the fastest of both sides."""
    def told(name):
        return f"{name[1]} ({name[2]}) {found[name]:.2f} us"

    ours, peer, matmul = fastest(found, "ours"), fastest(found, "peer"), fastest(found, "ours", only=True)
    if not ours or not (peer or matmul):
        return "# best: nothing to compare"
    row = f"# best: {told(ours)}"
    if peer:
        row += f"; {told(peer)}, ours/best peer {found[ours] / found[peer]:.3f}"
    if matmul:
        row += f"; {told(matmul)}, ours/matmul only {found[ours] / found[matmul]:.3f}"
    return row


def measured_keys(lines, records):
    """Returns a text for each measurement of hir-run and for each shape that PyTorch has measured, as compare.sh
    writes them, so that it can skip these."""
    for line in lines:
        if line["who"] == "ours":
            yield f"{cases.text(line)} {line['ranks']} {line['name']} ({line['issue']}) {line['round']}"
    for record in records:
        if record["record"] == "done":
            yield f"{cases.text(record)} {record['ranks']} peers {record['round']}"
