#!/usr/bin/env python3
"""Tries the rules of the checker (src/check/rules.rs) on two GPUs of this host.

  run.py [--out FOLDER] [--only REGEX] [--seconds N] [--done FILE] [--list]

  --out      folder of the results, rules.json and rules.log; default: $OUT, or .
  --only     only trials whose rule and name match
  --seconds  no trial starts later; default: 450
  --done     results of an earlier run: its trials with a verdict are not run again
  --record   writes results, files rules.json of which later ones prevail, to src/check/trials.txt, which docs/checker.md shows
  --list     prints the trials: rule, name, what the rule predicts

Each trial has new processes, a port, and a time limit at which its processes are killed. It has a control, the
same without the fault, which has to pass. It prints one line: rule, trial, verdict, whether the rule predicts it.
Verdicts: provoked; not provoked in N tries; held in N tries, for what a rule excludes; broken; no verdict, if a
process failed or a control did not pass. The exit code is 1 if a result differs from what its rule predicts, or a
trial has no verdict.
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import allocator  # noqa: F401
import captures  # noqa: F401
import harness
import hosts  # noqa: F401
import memory  # noqa: F401
import order  # noqa: F401
import streams  # noqa: F401


# Rules without a trial, and the reason.
DOCUMENTS = {
    "handle-order": "the keys of handles are nvFuser's, which the machine does not have",
    "waits-for-peers": "nvFuser's Wait; the semaphores and flags it consists of are tried",
    "unneeded": "it follows from the other rules",
}


def record(paths):
    """Writes the verdicts of all trials for the checker, `not run` for the others."""
    verdicts = {}
    for path in paths:
        with open(path) as file:
            found = json.load(file)
        verdicts |= {(it["rule"], it["trial"]): it["verdict"] for it in found["results"] if it["verdict"] != "no verdict"}
    rows = [(*key, verdicts.get(key, "not run")) for key in harness.TRIALS]
    rows += [(rule, "", f"documents only: {reason}") for rule, reason in DOCUMENTS.items()]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../src/check/trials.txt"), "w") as file:
        file.write("".join(f"{it}\n" for it in [f"# {found['machine']}", *("\t".join(row) for row in sorted(rows))]))


def main():
    if sys.argv[1:2] == ["--child"]:
        rule, name, rank, port, file = sys.argv[2:]
        harness.child(harness.TRIALS[rule, name], int(rank), int(port), file)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--done")
    parser.add_argument("--record", nargs="+")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for it in harness.TRIALS.values():
            predicts = {True: "provoked", False: "held", None: "a measurement"}[it.provokes]
            print(f"{it.rule:22} {it.name:52} {it.ranks} GPU{'s' if it.ranks > 1 else ' '}  {predicts:14} {it.predicts}")
        return 0
    if options.record:
        record(options.record)
        return 0
    done = []
    if options.done:
        with open(options.done) as file:
            done = [it for it in json.load(file)["results"] if it["verdict"] != "no verdict"]
    os.makedirs(options.out, exist_ok=True)
    results = harness.run(options.only, done, options.out, options.seconds)
    return 0 if results and all(it["agrees"] is not False and it["verdict"] != "no verdict" for it in results) else 1


if __name__ == "__main__":
    sys.exit(main())
