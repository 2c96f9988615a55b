"""Runs trials: each one in new processes with a time limit, of which nothing remains for the next one."""

import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

TRIALS = {}
# No process uses NVLink multicast.
ALWAYS = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1", "NCCL_DEBUG": "WARN"}
# By how many seconds rank 1 is late, and how much longer rank 0 is in a call that waits for it.
LATE, WAITS = 0.5, 0.3


@dataclasses.dataclass
class Arm:
    """One way to run a trial. Capital parameters are variables of the environment."""

    rule: str
    name: str
    work: object
    ranks: int
    predicts: str
    # Whether the rule predicts that the fault shows: yes, no (it holds then), or neither (a measurement).
    provokes: object
    limit: float
    # Whether a kernel may access memory that is not mapped.
    faults: bool
    parameters: dict


def trial(rule, name, ranks, predicts, provokes=True, limit=20.0, faults=False, arms=None):
    """Declares a trial of a rule, and what the rule predicts."""

    def declare(work):
        for label, given in (arms or {"": {}}).items():
            whole, given = f"{name} {label}".strip(), dict(given)
            expected, most = given.pop("provokes", provokes), given.pop("limit", limit)
            assert (rule, whole) not in TRIALS, f"two trials {whole}"
            TRIALS[rule, whole] = Arm(rule, whole, work, ranks, predicts, expected, most, faults, given)
        return work

    return declare


class Rank:
    """A process of a trial. It reports to a file, a line at a time, so it may be killed."""

    def __init__(self, rank, ranks, port, file):
        self.rank, self.ranks, self.port, self.file = rank, ranks, port, open(file, "a", buffering=1)

    def say(self, kind, value, text=""):
        self.file.write(json.dumps([kind, value, text]) + "\n")

    def stage(self, text):
        self.say("stage", text)

    def value(self, name, value):
        self.say("value", round(value, 4) if isinstance(value, float) else value, name)

    def control(self, passes, text=""):
        """Reports whether the same without the fault passes."""
        self.say("control", bool(passes), f"control {'passes' if passes else 'FAILS'} {text}".strip() if text or not passes else "")

    def fault(self, seen, text="", tries=1):
        """Reports whether the fault showed."""
        self.say("tries", tries)
        self.say("fault", bool(seen), text)

    def compare(self, work, without, words, unit="old words"):
        """Counts wrong words without the fault, and with it."""
        self.control(work(False) == 0, without)
        found = work(True)
        self.fault(found == words, f"{found} {unit}")

    def leave(self):
        """Ends the process without any clean-up, which might wait for kernels."""
        self.say("ended", True)
        os._exit(0)

    @contextlib.contextmanager
    def watch(self, seconds, text):
        """Reports a fault and ends the process if the body blocks the host for longer."""
        timer = threading.Timer(seconds, lambda: (self.fault(True, text), self.leave()))
        timer.daemon = True
        timer.start()
        yield
        timer.cancel()

    @functools.cached_property
    def store(self):
        from datetime import timedelta

        from torch.distributed import TCPStore

        return TCPStore("127.0.0.1", self.port, self.ranks, self.rank == 0, timedelta(seconds=30), wait_for_workers=False)

    @functools.cached_property
    def gpu(self):
        from gpu import Gpu

        return Gpu(self.rank if self.ranks > 1 else 0)

    def barrier(self, name):
        """Waits for the hosts of all ranks."""
        self.store.set(f"barrier {name} {self.rank}", "x")
        self.store.wait([f"barrier {name} {it}" for it in range(self.ranks)])

    def late(self, name, work):
        """Calls `work` on both ranks, on rank 1 later. Returns whether rank 0 waits in it until rank 1 calls."""
        self.stage(name)
        self.barrier(f"late {name}")
        time.sleep(LATE * self.rank)
        start = time.monotonic()
        work()
        self.store.set(f"time of {name} {self.rank}", str(time.monotonic() - start))
        early, late = [float(self.store.get(f"time of {name} {it}")) for it in (0, 1)]
        waits = early > late + WAITS
        if self.rank == 0:
            self.value(name, "waits" if waits else early)
        return waits

    def blocks(self, name, call, seconds=0.4):
        """Returns whether a call blocks the host while a kernel of another stream spins."""
        stream = self.gpu.stream()
        self.stage(name)
        self.gpu.hold(stream, seconds)
        start = time.monotonic()
        call()
        spent = time.monotonic() - start
        self.gpu.sync(stream)
        self.value(name, "blocks" if spent > 0.7 * seconds else spent)
        return spent > 0.7 * seconds

    def peer(self, name, at):
        """Exchanges the handles of memory. Returns the memory of the peer, mapped."""

        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_char * 64)]

        handle, mapped = Handle(), ctypes.c_uint64()
        self.gpu.call("cuIpcGetMemHandle", ctypes.byref(handle), at)
        self.store.set(f"handle {name} {self.rank}", bytes(handle).hex())
        theirs = Handle.from_buffer_copy(bytes.fromhex(self.store.get(f"handle {name} {1 - self.rank}").decode()))
        self.gpu.call("cuIpcOpenMemHandle_v2", ctypes.byref(mapped), theirs, 1)
        return mapped.value

    def torch_group(self, eager=True):
        """Initializes PyTorch's process group of NCCL."""
        import torch
        import torch.distributed as dist

        device = torch.device("cuda", self.rank)
        torch.cuda.set_device(device)
        store = dist.PrefixStore("group", self.store)
        dist.init_process_group("nccl", store=store, rank=self.rank, world_size=self.ranks, device_id=device if eager else None)
        return dist, device


def child(arm, rank, port, file):
    """Runs a rank of a trial in this process, and ends the process."""
    # PR_SET_PDEATHSIG: nothing outlives the process that runs the trials.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    print(f"=== {arm.rule} {arm.name}, rank {rank}", flush=True)
    os.environ.update(ALWAYS)
    os.environ.update({name: str(it) for name, it in arm.parameters.items() if name.isupper()})
    report = Rank(rank, arm.ranks, port, file)
    try:
        arm.work(report, **{name: it for name, it in arm.parameters.items() if not name.isupper()})
        if arm.ranks > 1:
            report.stage("end")
            report.barrier("the end of the trial")
            # The store is in the process of rank 0.
            time.sleep(0.2 * (rank == 0))
        report.leave()
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        report.say("note", None, f"{type(error).__name__}: {error}"[:300])
    os._exit(1)


def run_trial(arm, gpus, folder, log):
    """Runs a trial until its processes end, or the time limit. Returns its result."""
    start, processes = time.monotonic(), []
    files = [os.path.join(folder, f"{list(TRIALS).index((arm.rule, arm.name))}.{it}") for it in range(arm.ranks)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for rank, file in enumerate(files):
        words = [sys.executable, sys.argv[0], "--child", arm.rule, arm.name, str(rank), str(port), file]
        on = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus}
        processes.append(subprocess.Popen(words, env=on, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0))
    end = start + arm.limit
    while None in (codes := [it.poll() for it in processes]) and time.monotonic() < end:
        if any(codes):
            # Behind a failure, the other rank may report for a while.
            end = min(end, time.monotonic() + 5)
        time.sleep(0.01)
    for it in processes:
        it.kill()
    for it in processes:
        # One that the driver holds back is left behind.
        with contextlib.suppress(subprocess.TimeoutExpired):
            it.wait(10)
    lines = []
    for rank, file in enumerate(files):
        with contextlib.suppress(OSError), open(file) as it:
            lines += [(rank, *json.loads(line)) for line in it]
    return {**result(arm, lines), "seconds": round(time.monotonic() - start, 1)}


def result(arm, lines):
    """Returns the verdict of a trial from what its ranks have reported."""

    def said(kind):
        return [value for _, it, value, _ in lines if it == kind]

    def label(rank, text):
        return f"[{rank}] {text}" if arm.ranks > 1 else text

    all_ended, seen = len(said("ended")) == arm.ranks, any(said("fault"))
    notes = [label(rank, text) for rank, kind, _, text in lines if kind != "value" and text]
    notes += [f"last stages: {said('stage')[-2:]}"] * (not all_ended)
    tries = max(said("tries"), default=1)
    count = "1 try" if tries == 1 else f"{tries} tries"
    if not said("fault") or not all(said("control")) or not (seen or all_ended):
        verdict = "no verdict"
    elif arm.provokes is False:
        verdict = "broken" if seen else f"held in {count}"
    else:
        verdict = "provoked" if seen else f"not provoked in {count}"
    agrees = None if verdict == "no verdict" or arm.provokes is None else seen == arm.provokes
    values = {label(rank, name): value for rank, kind, value, name in lines if kind == "value"}
    found = {"rule": arm.rule, "trial": arm.name, "verdict": verdict, "agrees": agrees, "predicts": arm.predicts}
    return {**found, "notes": notes, "values": values}


def machine():
    """Returns the machine and the software, as results name them."""
    import torch

    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpus = subprocess.run(words, capture_output=True, text=True, timeout=30).stdout.strip().split("\n")
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return f"{len(gpus)} {gpus[0]}, CUDA {torch.version.cuda}, PyTorch {torch.__version__}, NCCL {version}"


def run(only, done, folder, seconds):
    """Runs the trials that match and are not done. Returns all results."""
    start, results, on, lock = time.monotonic(), list(done), machine(), threading.Lock()
    known = {(it["rule"], it["trial"]) for it in done}
    todo = [it for key, it in TRIALS.items() if re.search(only, " ".join(key)) and key not in known]
    print(f"# {on}", flush=True)
    with tempfile.TemporaryDirectory() as work, open(os.path.join(folder, "rules.log"), "a") as log:

        def finish(arm, gpus):
            if time.monotonic() - start > seconds:
                print(f"# not run, since the time of {seconds} s is over: {arm.rule} {arm.name}", flush=True)
                return
            it = run_trial(arm, gpus, work, log)
            word = {True: "as predicted", False: "NOT AS PREDICTED", None: "-"}[it["agrees"]]
            told = "; ".join(it["notes"] + [f"{name}={value}" for name, value in it["values"].items()])
            with lock, open(os.path.join(folder, "rules.json"), "w") as file:
                results.append(it)
                print(f"rules {it['rule']:22} {it['trial']:34} {it['verdict']:26} {word:17} {it['seconds']:5} s  {told[:1500]}", flush=True)
                json.dump({"machine": on, "results": results}, file, indent=1)

        # Each GPU runs half of the trials of one GPU. Last comes what may end with a fault of the GPU.
        single = [it for it in todo if it.ranks == 1 and not it.faults]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda gpu: [finish(it, str(gpu)) for it in single[gpu::2]], (0, 1)))
        for it in sorted([it for it in todo if it not in single], key=lambda it: it.faults):
            finish(it, "0,1")
    print(f"# {time.monotonic() - start:.0f} s")
    return results
