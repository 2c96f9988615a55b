#!/usr/bin/env python3
"""Compares hir-run and PyTorch where inference lives: all-reduces of few rows with a residual and a norm behind them, and
layers of a transformer with tensor parallelism, which decode or prefill.

    inference.py [-b FOLDER_OF_BINARIES] [-r RANKS] [-n ROUNDS] [-i ITERATIONS] [-f FILTER] [-o FILE] [-t SECONDS]
                 [-j CASES_OF_A_JOB] [--simulate] [CASE...]
    inference.py table FILE

A case is epilogue:ROWS:H:CALLS or layers:ROWS:H:CACHE:LAYERS (inference_programs.py has what they compute;
CACHE = 0 is a prefill). Rounds have the order ours, theirs, theirs, ours. Everything is a CUDA graph of all calls or
layers, and times are those of one call or layer, on the slowest rank, in microseconds: the median of the runs. Both sides read
the same random inputs from files. After the last run, the results of both are compared with float32; those of hir-run have to
have the same bits on all ranks. A result is wrong if the norm of its difference exceeds 2% of that of the float32 result.
-f is a regular expression: only measurements of hir-run whose `CASE NAME` matches. --simulate runs hir-run on the simulator, and
PyTorch without GPUs and not timed, to try this script with small cases (`layers:3:256:5:2`: widths of 256 have 4 heads).

Without multicast, with NCCL_NVLS_ENABLE=0. The exit code is 1 if something failed or was wrong.
"""
import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import checks  # noqa: E402: after the line above
import inference_model as model  # noqa: E402
import inference_programs as programs  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = (
    *(f"epilogue:{rows}:{h}:20" for h, all_rows in ((4096, (1, 8, 32, 64, 128)), (8192, (1, 8, 64))) for rows in all_rows),
    *(f"layers:{rows}:4096:{0 if rows == 512 else 1024}:4" for rows in (1, 8, 64, 512)),
    *(f"layers:{rows}:8192:{0 if rows == 512 else 1024}:4" for rows in (1, 8, 64, 512)),
)
ALONE, TWO, FUSED = "all-reduce alone", "select-algorithms", "fuse-collective-epilogue"
TOLERANCE = 0.02


def ways(case):
    """Returns the measurements of hir-run of a case: name, whether it is the all-reduce alone, passes."""
    lower = "" if case.kind == "epilogue" else "@lower,"
    alone = [(ALONE, True, "select-algorithms")] if case.kind == "epilogue" else []
    return [
        *alone,
        (TWO, False, f"{lower}select-algorithms"),
        (FUSED, False, f"{lower}fuse-collective-epilogue,select-algorithms"),
    ]


def case_of(text, options):
    return model.Case(text, {256: (4, 2, 256)} if options.simulate else None)


def ours(options, work, texts, number):
    """Runs the cases of a job in hir-run, and returns their lines."""
    lines, folders = [], []
    for text in texts:
        case = case_of(text, options)
        inputs = []
        for at, (name, *_) in enumerate(case.shapes(options.ranks)):
            path = os.path.join(model.folders(work, case)[not model.is_weight(case, name)], f"{name}.%r.safetensors")
            inputs += ["--input", f"T{at}@local=@{path}#{name}"]
        for name, alone, passes in ways(case):
            if not re.search(options.filter, f"{text} {name}"):
                continue
            folder = os.path.join(work, f"{number}-{len(folders)}")
            os.makedirs(folder)
            program = os.path.join(folder, "program.hir")
            source = programs.program(*case.arguments(options.ranks, alone))
            with open(program, "w") as file:
                file.write(source)
            outputs = re.search(r"-> \(([^)]*)\)", source)[1].split(", ")
            words = [program, "--passes", passes, "-J", f"{folder}/times.json", *(inputs[:2] if alone else inputs)]
            for to, it in zip(case.outputs(alone), outputs):
                words += ["--output", f"{it}@local=@{folder}/{to}.%r.safetensors#{to}"]
            lines.append(" ".join(shlex.quote(it) for it in words + ([] if options.simulate else ["-G"])) + "\n")
            folders.append((case, name, alone, folder))
    words = ["--device=sim"] if options.simulate else ["--device=cuda", "-w", "5", "-n", str(options.iters)]
    command = [f"{options.binaries}/hir-run", "--ranks", str(options.ranks), *words, "-T", "60", "--batch"]
    batch, log = os.path.join(work, f"batch-{number}.txt"), os.path.join(work, "log")
    at = 0
    # A job that is lost ends with its current program; those after it run in another one.
    while at < len(lines):
        with open(batch, "w") as file:
            file.writelines(lines[at:])
        with open(log, "w") as file:
            run(command + [batch], file, 300)
        while at < len(lines) and os.path.exists(os.path.join(folders[at][3], "times.json")):
            at += 1
        at += 1
    return [measured(options, log, *it) for it in folders]


def run(command, log, seconds, stdout=None):
    """Runs a command, and returns its exit code and what it printed."""
    try:
        done = subprocess.run(
            command, stdout=stdout or log, stderr=log, stdin=subprocess.DEVNULL, timeout=seconds, text=True, check=False
        )
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        told = late.stdout or b""
        return -1, told if isinstance(told, str) else told.decode()


def measured(options, log, case, name, alone, folder):
    line = {"who": "ours", "name": name, "case": case.text, "us": None, "error": None, "difference": None}
    try:
        with open(os.path.join(folder, "times.json")) as file:
            told = json.load(file)
    except OSError:
        with open(log) as file:
            told = {"verdict": "the job ended before it: " + " ".join(file.read().split("\n")[-4:])}
    if told.get("exit_code") != 0 or ("median_us" not in told and not options.simulate):
        return {**line, "error": str(told.get("verdict"))[:300]}
    import torch

    try:
        line["difference"] = 0.0
        for output in case.outputs(alone):
            found = [checks.load(torch, f"{folder}/{output}.{rank}.safetensors", "cpu") for rank in range(options.ranks)]
            if any(not torch.equal(found[0].view(torch.int16), it.view(torch.int16)) for it in found[1:]):
                raise ValueError(f"{output} has other bits on another rank")
            expected = torch.load(os.path.join(model.folders(options.work, case)[1], f"{output}.pt"))
            line["difference"] = max(line["difference"], difference(found[0], expected))
        if not line["difference"] <= TOLERANCE:
            raise ValueError(f"wrong result: {line['difference']:.4f}")
        if "median_us" in told:
            line.update(us=told["median_us"] / case.calls, min_us=told["min_us"] / case.calls, nodes=told["graph_nodes"])
            # Step by step: which lines of the program have kernels of their own, and their times.
            line["lines"] = [[it["line"], it["what"], it["us"]] for it in told["lines"] if it["us"]]
    except (OSError, ValueError, RuntimeError) as error:
        line["error"] = str(error)[:300]
    return line


def difference(found, expected):
    """Returns the relative norm of the difference."""
    found = found.float().reshape(expected.shape)
    return ((found - expected).norm() / expected.norm()).item()


def theirs(options, work, texts):
    """Runs the cases of a job in PyTorch, and returns their lines."""
    words = [os.path.join(HERE, "inference_peers.py"), work, *texts, "--iters", str(options.iters)]
    words += ["--simulate"] if options.simulate else []
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks), *words]
    with open(os.path.join(work, "peers"), "w") as log:
        code, printed = run(command, log, 300, subprocess.PIPE)
    lines = [json.loads(it) for it in printed.splitlines() if it.startswith("{")]
    if code != 0:
        with open(os.path.join(work, "peers")) as log:
            text = log.readlines()
        print("".join(text[-60:]), file=sys.stderr)
        told = [it for it in text if re.search("Error|error:", it) and "ChildFailed" not in it][:1] or ["no message"]
        lines.append({"who": "peer", "name": "PyTorch", "case": texts[-1], "us": None, "error": told[0].strip()[:300]})
    return lines


def run_inputs(options):
    """Writes inputs and expected results, in a process of its own, so that its memory is free afterwards."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for text in options.cases:
        case = case_of(text, options)
        weights, own = model.folders(options.work, case)
        model.make_inputs(torch, (weights, own), case, options.ranks, device)
        inputs = {}
        for name, _, dim, _ in case.shapes(options.ranks):
            folder = weights if model.is_weight(case, name) else own
            parts = [checks.load(torch, f"{folder}/{name}.{rank}.safetensors", device) for rank in range(options.ranks)]
            inputs[name] = parts[0] if dim is None else torch.cat(parts, dim)
        results = dict(zip(case.outputs(), model.reference(torch, case, inputs, options.ranks)))
        if case.kind == "epilogue":
            results["sum"] = inputs["parts"].float().sum(0)
        for name, it in results.items():
            torch.save(it.cpu(), f"{own}/{name}.pt")


def table(path):
    """Prints a table, and returns whether something failed."""
    with open(path) as file:
        lines = [json.loads(it) for it in file if it.startswith("{")]
    failed = False
    print(f"{'case':26} {'alone':>8} {'two':>8} {'fused':>8} {'theirs':>8} {'ours/theirs':>11}  fastest alternative")
    for case in dict.fromkeys(it["case"] for it in lines if "case" in it):
        mine, others = {}, {}
        for it in lines:
            if it.get("case") != case:
                continue
            if it.get("error"):
                failed = failed or not it["error"].startswith("not available")
                print(f"# {case}, {it['name']}: {it['error']}")
            elif it["us"] is not None:
                (mine if it["who"] == "ours" else others).setdefault(it["name"], []).append(it["us"])
        mine, others = ({name: statistics.median(it) for name, it in some.items()} for some in (mine, others))
        columns = [f"{mine[it]:8.1f}" if it in mine else f"{'-':>8}" for it in (ALONE, TWO, FUSED)]
        best = min(others, key=others.get, default=None)
        least = min((mine[it] for it in (TWO, FUSED) if it in mine), default=None)
        ratio = f"{least / others[best]:11.2f}" if best and least else f"{'-':>11}"
        print(f"{case:26} {' '.join(columns)} {others.get(best, 0):8.1f} {ratio}  {best or '-'}")
    return failed


def use_libraries():
    """Lets hir-run use the libraries of PyTorch."""
    os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
    found = subprocess.run([sys.executable, f"{HERE}/peers.py", "libraries"], stdout=subprocess.PIPE, text=True, check=False)
    for variable, path in (it.split("=", 1) for it in found.stdout.splitlines()):
        os.environ.setdefault(variable, path)


def run_all(options):
    begin = time.monotonic()
    # Weights, caches and results: up to 3 GB.
    fits = os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 8 << 30
    memory = "/dev/shm" if fits else None
    use_libraries()
    with open(options.output, "a") as to, tempfile.TemporaryDirectory(dir=memory) as work:
        options.work = work
        size = options.job or len(options.cases)
        for first in range(0, len(options.cases), size):
            texts = options.cases[first : first + size]
            flags = ["--simulate"] if options.simulate else []
            words = [sys.executable, __file__, "inputs", "-r", str(options.ranks), "--work", work, *flags, *texts]
            subprocess.run(words, check=True, timeout=900)
            for turn in range(2 * options.rounds):
                if time.monotonic() - begin > options.seconds:
                    print(f"# the time is over before {texts[0]}, turn {turn}")
                    break
                at = time.monotonic()
                mine = turn % 4 in (0, 3)
                lines = ours(options, work, texts, f"{first}-{turn}") if mine else theirs(options, work, texts)
                for it in lines:
                    to.write(json.dumps({**it, "ranks": options.ranks, "round": turn // 2 + 1}) + "\n")
                to.flush()
                print(f"# {'ours' if mine else 'theirs'}, {texts[0]} and {len(texts) - 1} more: {time.monotonic() - at:.0f} s", flush=True)
    return table(options.output)


def main():
    os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", PYTHONDONTWRITEBYTECODE="1")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-b", "--binaries", default="target/release")
    parser.add_argument("-r", "--ranks", type=int, default=2)
    parser.add_argument("-n", "--rounds", type=int, default=2)
    parser.add_argument("-i", "--iters", type=int, default=20)
    parser.add_argument("-f", "--filter", default=".")
    parser.add_argument("-o", "--output", default="inference.jsonl")
    parser.add_argument("-t", "--seconds", type=float, default=1e9)
    parser.add_argument("-j", "--job", type=int, default=0, help="number of cases that share the turns; all by default")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_intermixed_args()
    if options.cases[:1] == ["table"]:
        sys.exit(table(options.cases[1]))
    if options.cases[:1] == ["inputs"]:
        del options.cases[0]
        return run_inputs(options)
    sys.exit(run_all(options))


if __name__ == "__main__":
    main()
