#!/usr/bin/env python3
"""Prints records about the machine, as JSON lines for compare.sh's output file.

    machine.py identity                             prints a short text that is different for other GPUs or hosts
    machine.py versions --hir VERSION --commit NAME prints a record with all versions
    machine.py library TEXT                         prints a record with the text, such as the version of NCCL
    machine.py state NAME=VALUE...                  prints clocks, power and temperature of each GPU, with the
                                                    names and values; nothing without nvidia-smi
"""
import argparse
import datetime
import hashlib
import json
import os
import platform
import subprocess

STATE = {"clocks.sm": "sm_mhz", "clocks.mem": "memory_mhz", "power.draw": "watts", "temperature.gpu": "celsius"}


def query(fields):
    """Returns a list of values for each GPU, or nothing if there is no nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[it.strip() for it in row.split(",")] for row in done.stdout.splitlines() if row.strip()]


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def identity():
    names = sorted(row[0] for row in query(["uuid"])) or [platform.node()]
    return hashlib.sha256(" ".join(names).encode()).hexdigest()[:8]


def number(text):
    """Returns a number, or the text if it is none, such as [N/A]."""
    try:
        return float(text)
    except ValueError:
        return text


def versions(options):
    record = {"record": "versions", "time": now(), "machine": identity(), "hir": options.hir, "commit": options.commit}
    gpus = query(["name", "driver_version"])
    emulated = os.environ.get("HIR_EMULATED_GPUS")
    record["GPUs"] = f"{len(gpus)} {gpus[0][0]}" if gpus else f"{emulated} emulated" if emulated else None
    record["driver"] = gpus[0][1] if gpus else None
    try:
        import torch

        record.update(PyTorch=torch.__version__, CUDA=torch.version.cuda)
        if torch.cuda.is_available():
            record["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    except ImportError:
        record["PyTorch"] = None
    return {**record, "multicast": "off"}


def state(options):
    gpus = query(["index", *STATE])
    if not gpus:
        return None
    where = dict(it.split("=", 1) for it in options.about)
    rows = [dict(zip(["gpu", *STATE.values()], map(number, row))) for row in gpus]
    return {"record": "state", "time": now(), **where, "gpus": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("identity")
    all_versions = commands.add_parser("versions")
    all_versions.add_argument("--hir", default="")
    all_versions.add_argument("--commit", default="")
    commands.add_parser("library").add_argument("text")
    commands.add_parser("state").add_argument("about", nargs="*")
    options = parser.parse_args()
    if options.command == "identity":
        print(identity())
        return
    makers = {"versions": versions, "library": lambda it: {"record": "library", "text": it.text}, "state": state}
    record = makers[options.command](options)
    if record:
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
