"""Runs trials: each one in new processes with a time limit, of which nothing remains for the next one."""

import contextlib
import ctypes
import dataclasses
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

TRIALS = {}
# No process uses NVLink multicast.
ALWAYS = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1", "NCCL_DEBUG": "WARN"}


@dataclasses.dataclass
class Arm:
    """One way to run a trial. Capital parameters are variables of the environment."""

    rule: str
    name: str
    work: object
    ranks: int
    predicts: str
    opposite: str
    # Whether the rule predicts that the fault shows: yes, no (it holds then), or neither (a measurement).
    provokes: object
    limit: float
    # Whether a kernel may access memory that is not mapped.
    faults: bool
    parameters: dict


def trial(rule, name, ranks, predicts, opposite, provokes=True, limit=20.0, faults=False, arms=None):
    """Declares a trial of a rule: what the rule predicts, and how the opposite would look."""

    def declare(work):
        for label, given in (arms or {"": {}}).items():
            whole, given = f"{name} {label}".strip(), dict(given)
            expected, most = given.pop("provokes", provokes), given.pop("limit", limit)
            assert (rule, whole) not in TRIALS, f"two trials {whole}"
            TRIALS[rule, whole] = Arm(rule, whole, work, ranks, predicts, opposite, expected, most, faults, given)
        return work

    return declare


class Rank:
    """What a process of a trial knows and reports. Each report is in a file at once, so a process may be killed."""

    def __init__(self, rank, ranks, port, file):
        self.rank, self.ranks, self.port, self.file = rank, ranks, port, file
        self.report = {"controls": [], "faults": [], "notes": [], "values": {}, "tries": 1, "stage": "start", "ended": False}
        self._store, self._gpu = None, None
        self.save()

    def save(self):
        with open(self.file + ".new", "w") as file:
            json.dump(self.report, file)
        os.replace(self.file + ".new", self.file)

    def stage(self, text):
        self.report["stage"] = text
        self.save()

    def note(self, text):
        self.report["notes"].append(text)
        self.save()

    def control(self, passes, text=""):
        """Reports whether the same without the fault passes."""
        self.report["controls"].append(bool(passes))
        if text or not passes:
            self.report["notes"].append(f"control {'passes' if passes else 'FAILS'} {text}".strip())
        self.save()

    def fault(self, seen, text="", tries=1):
        """Reports whether the fault showed."""
        self.report["faults"].append(bool(seen))
        self.report["tries"] = max(tries, self.report["tries"])
        if text:
            self.report["notes"].append(text)
        self.save()

    def value(self, name, value):
        self.report["values"][name] = round(value, 3) if isinstance(value, float) else value
        self.save()

    def leave(self):
        """Ends the process without any clean-up, which might wait for kernels."""
        self.report["ended"] = True
        self.save()
        os._exit(0)

    @contextlib.contextmanager
    def watch(self, seconds, text, is_control=False):
        """Reports a fault and ends the process if the body blocks the host for longer."""

        def expire():
            if is_control:
                self.control(False, text)
            else:
                self.fault(True, text)
            self.leave()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @property
    def store(self):
        if self._store is None:
            from datetime import timedelta

            from torch.distributed import TCPStore

            self._store = TCPStore("127.0.0.1", self.port, self.ranks, self.rank == 0, timedelta(seconds=30), wait_for_workers=False)
        return self._store

    @property
    def gpu(self):
        if self._gpu is None:
            from gpu import Gpu

            self._gpu = Gpu(self.rank if self.ranks > 1 else 0)
        return self._gpu

    def barrier(self, name):
        """Waits for the hosts of all ranks."""
        self.store.set(f"barrier {name} {self.rank}", "x")
        self.store.wait([f"barrier {name} {it}" for it in range(self.ranks)])

    def late(self, name, work, seconds=0.8):
        """Calls `work` on all ranks, on rank 1 later. Returns for how long the host was in it."""
        self.stage(name)
        self.barrier(f"late {name}")
        if self.rank == 1:
            time.sleep(seconds)
        start = time.monotonic()
        work()
        spent = time.monotonic() - start
        self.barrier(f"after {name}")
        return spent

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

    def torch_group(self, eager):
        """Initializes PyTorch's process group of NCCL."""
        import torch
        import torch.distributed as dist

        device = torch.device("cuda", self.rank)
        torch.cuda.set_device(device)
        store = dist.PrefixStore("group", self.store)
        dist.init_process_group("nccl", store=store, rank=self.rank, world_size=self.ranks, device_id=device if eager else None)
        return dist, device


def child(arm, rank, port, file, gpus):
    """Runs a rank of a trial in this process, and ends the process."""
    report = None
    try:
        # PR_SET_PDEATHSIG: nothing outlives the process that runs the trials.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        os.environ.update(ALWAYS)
        os.environ.update({name: str(it) for name, it in arm.parameters.items() if name.isupper()})
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        report = Rank(rank, arm.ranks, port, file)
        arm.work(report, **{name: it for name, it in arm.parameters.items() if not name.isupper()})
        if arm.ranks > 1:
            report.stage("end")
            report.barrier("the end of the trial")
            # The store is in the process of rank 0.
            if rank == 0:
                time.sleep(0.2)
        report.leave()
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        if report:
            report.note(f"{type(error).__name__}: {error}"[:300])
    os._exit(1)


class Job:
    """A trial that runs."""

    def __init__(self, arm, gpus, folder, forks):
        self.arm, self.gpus, self.start = arm, gpus, time.monotonic()
        self.files = [os.path.join(folder, f"{abs(hash((arm.rule, arm.name)))}.{it}") for it in range(arm.ranks)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.pids = {}
        for rank, file in enumerate(self.files):
            if forks:
                pid = os.fork()
                if pid == 0:
                    os.setpgid(0, 0)
                    log = os.open(file + ".log", os.O_WRONLY | os.O_CREAT)
                    os.dup2(log, 1)
                    os.dup2(log, 2)
                    child(arm, rank, port, file, gpus)
            else:
                words = [sys.executable, sys.argv[0], "--child", arm.rule, arm.name, str(rank), str(port), file, ",".join(map(str, gpus))]
                with open(file + ".log", "w") as log:
                    pid = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0).pid
            self.pids[pid] = rank

    def ended(self):
        """Returns whether all processes have ended. Kills them at the time limit, or soon after one has failed."""
        for pid in list(self.pids):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self.pids[pid]
                # The other ranks may report for a while.
                if status:
                    self.start = min(self.start, time.monotonic() - self.arm.limit + 5)
        if time.monotonic() - self.start > self.arm.limit:
            self.kill()
        return not self.pids

    def kill(self):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        # One that the driver holds back is left behind.
        end = time.monotonic() + 10
        while self.pids and time.monotonic() < end:
            self.pids = {pid: rank for pid, rank in self.pids.items() if not os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.01)
        self.pids = {}

    def result(self, started):
        """Returns the verdict of a trial from what its ranks have reported."""
        reports = []
        for file in self.files:
            try:
                with open(file) as it:
                    reports.append(json.load(it))
            except (OSError, ValueError):
                reports.append({"controls": [], "faults": [], "notes": ["no report"], "values": {}, "tries": 1, "stage": "start", "ended": False})
        arm = self.arm
        controls = [it for report in reports for it in report["controls"]]
        faults = [it for report in reports for it in report["faults"]]
        tries = max(report["tries"] for report in reports)
        notes = [f"[{rank}] {it}" if arm.ranks > 1 else it for rank, report in enumerate(reports) for it in report["notes"]]
        notes += [f"[{rank}] ended in: {report['stage']}" for rank, report in enumerate(reports) if not report["ended"]]
        seen, count = any(faults), "1 try" if tries == 1 else f"{tries} tries"
        if not faults or not all(controls) or (not seen and not all(report["ended"] for report in reports)):
            verdict = "no verdict"
        elif arm.provokes is False:
            verdict = "broken" if seen else f"held in {count}"
        else:
            verdict = "provoked" if seen else f"not provoked in {count}"
        values = {f"[{rank}] {name}" if arm.ranks > 1 else name: it for rank, report in enumerate(reports) for name, it in report["values"].items()}
        agrees = None if verdict == "no verdict" or arm.provokes is None else seen == arm.provokes
        return {
            "rule": arm.rule, "trial": arm.name, "verdict": verdict, "agrees": agrees, "predicts": arm.predicts, "notes": notes,
            "values": values, "seconds": round(time.monotonic() - started, 1),
        }  # fmt: skip

    def logs(self):
        texts = []
        for file in self.files:
            with contextlib.suppress(OSError), open(file + ".log", errors="replace") as it:
                texts.append(it.read()[-4000:])
        return "\n".join(texts)


def machine():
    """Returns the machine and the software, as results name them."""
    import torch

    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        gpus = subprocess.run(words, capture_output=True, text=True, timeout=30).stdout.split("\n")
        gpus = [it for it in gpus if it.strip()]
        version = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else "none"
        return f"{len(gpus)} {gpus[0] if gpus else 'no GPU'}, CUDA {torch.version.cuda}, PyTorch {torch.__version__}, NCCL {version}"
    return "no GPU"


def run(only, done, folder, seconds):
    """Runs the trials that match and are not done. Returns all results."""
    import torch  # noqa: F401  Each process forks from this one, which has PyTorch loaded and no context.
    from gpu import cubin

    start, running, free, forks = time.monotonic(), [], {0, 1}, True
    path, log = os.path.join(folder, "rules.json"), os.path.join(folder, "rules.log")
    results = list(done)
    known = {(it["rule"], it["trial"]) for it in done}
    todo = [it for it in TRIALS.values() if (it.rule == "harness" or re.search(only, f"{it.rule} {it.name}")) and (it.rule, it.name) not in known]
    # Those of one GPU run two at a time. Last comes what may end with a fault of the GPU.
    todo.sort(key=lambda it: (it.rule != "harness", it.faults, it.ranks))
    on = machine()
    print(f"# {on}", flush=True)
    cubin()
    with tempfile.TemporaryDirectory() as work, open(log, "a") as logs:
        while todo or running:
            for job in [it for it in running if it.ended()]:
                running.remove(job)
                free |= set(job.gpus)
                result = job.result(job.began)
                if result["rule"] == "harness" and result["verdict"] == "no verdict" and forks:
                    print("# processes that fork do not work here: each one starts anew", flush=True)
                    forks = False
                    todo.insert(0, job.arm)
                    continue
                results.append(result)
                word = {True: "as predicted", False: "NOT AS PREDICTED", None: "-"}[result["agrees"]]
                told = "; ".join(result["notes"] + [f"{name}={it}" for name, it in result["values"].items()])
                print(f"rules {result['rule']:22} {result['trial']:34} {result['verdict']:26} {word:17} {result['seconds']:5} s  {told[:1500]}", flush=True)
                logs.write(f"=== {result['rule']} {result['trial']}: {result['verdict']}\n{job.logs()}\n")
                with open(path + ".new", "w") as file:
                    json.dump({"machine": on, "results": results}, file, indent=1)
                os.replace(path + ".new", path)
            if todo and time.monotonic() - start > seconds:
                print(f"# not run, since the time of {seconds} s is over: {', '.join(f'{it.rule} {it.name}' for it in todo)}", flush=True)
                todo = []
            # A trial of the harness is alone.
            if todo and todo[0].ranks <= len(free) and not (running and running[0].arm.rule == "harness"):
                arm = todo.pop(0)
                gpus = sorted(free)[: arm.ranks]
                free -= set(gpus)
                job = Job(arm, gpus, work, forks)
                job.began = job.start
                running.append(job)
            time.sleep(0.01)
    count = {word: sum(it["agrees"] is value for it in results) for word, value in [("as predicted", True), ("not as predicted", False), ("without a verdict or measured", None)]}
    print(f"# {', '.join(f'{it} {word}' for word, it in count.items())}, {time.monotonic() - start:.0f} s")
    return results
