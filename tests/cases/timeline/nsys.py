"""Writes exports of Nsight Systems with what the traces of torch.profiler beside this file have: the same job in both formats.

`python3 nsys.py` writes `h200-rank0.sqlite.gz` and `h200-rank1.sqlite.gz`, and `h200.sqlite.gz`, in which one process has both devices. Pages
are small, so that tables have inner pages and long names continue on others; some are free. The tables are those of `nsys export --type sqlite`, with the columns
that are read, and comments as it writes them.
"""

import gzip
import json
import pathlib
import sqlite3

SCHEMA = """
CREATE TABLE StringIds (
  -- Consolidation of repetitive string values.
  id INTEGER NOT NULL PRIMARY KEY, -- ID reference value, (a number).
  value TEXT -- String value.
);
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
  start INTEGER NOT NULL, -- Event start timestamp (ns).
  end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
  correlationId INTEGER, -- REFERENCES CUPTI_ACTIVITY_KIND_RUNTIME(correlationId)
  globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER
);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
  start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
  returnValue INTEGER NOT NULL, callchainId INTEGER
);
CREATE TABLE NVTX_EVENTS (
  start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
  endGlobalTid INTEGER, textId INTEGER, domainId INTEGER
);
CREATE INDEX by_start ON CUPTI_ACTIVITY_KIND_KERNEL (start);
-- Pages that are free.
CREATE TABLE gone (text TEXT);
INSERT INTO gone VALUES (hex(zeroblob(4000)));
DROP TABLE gone;
"""
PUSHED = 59
folder = pathlib.Path(__file__).parent


def convert(name: str, traces: list[tuple[dict, int]]) -> None:
    """Writes an export of traces, each with the number of its process."""
    path = folder / f"{name}.sqlite"
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.execute("PRAGMA page_size = 512")
    database.executescript(SCHEMA)
    ids: dict[str, int] = {}
    for device, (trace, process) in enumerate(traces):
        events = trace["traceEvents"]
        # The numbers of launches are unique in a process.
        base = device * 1_000_000
        number = lambda text: ids.setdefault(text, len(ids) + 1)
        nanoseconds = lambda it: (round(it["ts"] * 1000), round((it["ts"] + it["dur"]) * 1000))
        of_process = process << 24
        threads: dict[str, int] = {}
        thread = lambda it: of_process + threads.setdefault(str(it["tid"]), len(threads) + 1)
        for it in events:
            arguments = it.get("args", {})
            if it.get("cat") == "kernel":
                row = (*nanoseconds(it), device, 1, arguments["stream"] + 4 * device, arguments["correlation"] + base, of_process)
                database.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, NULL, ?, ?, ?, ?, ?, NULL)",
                    (*row, number(it["name"]), number(it["name"].split("(")[0])),
                )
            elif it.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in arguments:
                row = (*nanoseconds(it), 0, thread(it), arguments["correlation"] + base, number(it["name"]))
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, 0, NULL)", row)
            elif it.get("cat") == "python_function" and it["name"].startswith("trace.py") or it["name"].startswith("autograd::"):
                # What torch.cuda.nvtx.range writes, with the text in the row or in the table of texts, and a range of a library within it.
                text = "backward" if it["name"].startswith("autograd::") else it["name"].split("): ")[-1]
                in_row = (text, None) if device == 0 else (None, number(text))
                for text, text_id in (in_row, ("c10d::allreduce_", None)):
                    row = (*nanoseconds(it), PUSHED, text, thread(it), text_id)
                    database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL, NULL, NULL, ?, ?, NULL, ?, 0)", row)
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(id, text) for text, id in ids.items()])
    database.commit()
    database.close()
    with open(path.with_name(path.name + ".gz"), "wb") as out, gzip.GzipFile(fileobj=out, mode="wb", filename="", mtime=0) as packed:
        packed.write(path.read_bytes())
    path.unlink()


kineto = [json.loads(gzip.open(folder / f"h200-rank{rank}.json.gz").read()) for rank in (0, 1)]
convert("h200-rank0", [(kineto[0], 4711)])
convert("h200-rank1", [(kineto[1], 4712)])
convert("h200", [(it, 4711) for it in kineto])
