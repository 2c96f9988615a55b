"""Trials of calls that block the host until the peer calls, or until work of the GPU has ended."""

import ctypes
import time

from harness import trial

LATE = 0.8
BLOCKS = 0.6 * LATE


def told(seconds):
    return "waits" if seconds > BLOCKS else round(seconds, 4)


@trial("host-creation", "NCCL", 2, "the host waits until the other rank creates the communicator", "the call returns at once", limit=25)
def creation(r):
    from gpu import Comm

    assert r.gpu
    kept = []
    at_once = r.late("warm", lambda: kept.append(Comm(r, "warm")), 0.0)
    spent = r.late("blocking", lambda: kept.append(Comm(r, "blocking")), LATE)
    not_blocking = r.late("not blocking", lambda: kept.append(Comm(r, "not blocking", 0)), LATE)
    r.value("ready", kept[-1].ready())
    r.barrier("ready")
    if r.rank == 0:
        r.value("both at once, seconds", at_once)
        r.value("blocking=1", told(kept[1].seconds))
        r.value("blocking=0", told(kept[2].seconds))
        r.control(kept[2].seconds < BLOCKS, "a communicator that does not block")
        r.fault(spent > BLOCKS)


@trial("host-creation", "PyTorch, first communication", 2, "without eager initialization the host waits in the first communication of a group, and not in the second", "it returns at once", arms={"cold": {"eager": False}, "eager": {"eager": True, "provokes": None}})
def torch_creation(r, eager):
    import torch

    dist, device = r.torch_group(eager)
    x = torch.ones(1 << 20, device=device)
    torch.cuda.synchronize()
    first = r.late("first all-reduce", lambda: dist.all_reduce(x, async_op=True), LATE)
    second = r.late("second all-reduce", lambda: dist.all_reduce(x, async_op=True), LATE)
    pair = r.late("first send", lambda: dist.isend(x, 1) if r.rank == 0 else dist.irecv(x, 0), LATE)
    again = r.late("second send", lambda: dist.isend(x, 1) if r.rank == 0 else dist.irecv(x, 0), LATE)
    group = r.late("new_group", lambda: dist.new_group([0, 1]), LATE)
    torch.cuda.synchronize()
    if r.rank == 0:
        for name, it in {"first all-reduce": first, "second all-reduce": second, "first send": pair, "second send": again, "new_group": group}.items():
            r.value(name, told(it))
        r.control(second < BLOCKS and again < BLOCKS, "the second ones")
        r.fault(first > BLOCKS)


CONNECT = {
    "at first use": {"NCCL_RUNTIME_CONNECT": 1},
    "connected": {"NCCL_RUNTIME_CONNECT": 0, "provokes": None},
    "at first use, not blocking": {"NCCL_RUNTIME_CONNECT": 1, "blocking": 0, "provokes": None},
}


@trial("host-connection", "first calls,", 2, "the host waits for the other rank in the first call of a kind", "it returns at once", arms=CONNECT, limit=45)
def connection(r, blocking=None):
    from gpu import Comm

    g = r.gpu
    s, x, y = g.stream(), g.alloc(1 << 23), g.alloc(1 << 24)
    Comm(r, "warm")
    calls = {
        "all-reduce 1 KiB": lambda c: c.all_reduce(x, x, 256, s),
        "all-reduce 32 MiB": lambda c: c.all_reduce(x, x, 1 << 23, s),
        "all-gather 1 MiB": lambda c: c.all_gather(x, y, 1 << 18, s),
        "broadcast 1 MiB": lambda c: c.broadcast(x, x, 1 << 18, 0, s),
        "send 1 KiB": lambda c: c.send(x, 256, s) if r.rank == 0 else c.receive(x, 256, s),
        "send and receive 1 KiB": lambda c: c.group(lambda: c.send(x, 256, s), lambda: c.receive(y, 256, s)),
    }
    found = {}
    shared = Comm(r, "shared", blocking)
    assert shared.ready()
    for name, call in calls.items():
        # The first call of a new communicator, a second one, and one behind other kinds.
        comm = Comm(r, name, blocking)
        assert comm.ready()
        r.stage(name)
        times = []
        for which, used in (("first", comm), ("second", comm), ("behind others", shared)):
            times.append(r.late(f"{name} {which}", lambda: call(used), LATE))
            assert used.ready()
            g.sync(s)
            if which == "second" and r.rank == 0:
                r.control(times[1] < BLOCKS, f"the second {name}")
        found[name] = times
        if r.rank == 0:
            r.value(name, [told(it) for it in times])
    if r.rank == 0:
        r.fault(any(it[0] > BLOCKS for it in found.values()), ", ".join(name for name, it in found.items() if it[0] > BLOCKS) + " wait")


ENDS = {name: {"how": name} for name in ("destroy", "finalize", "abort", "abort while a kernel waits", "destroy while a kernel waits")}


@trial("host-destroy", "ncclComm", 2, "the host waits for the other rank", "it returns at once", provokes=None, arms=ENDS)
def endings(r, how):
    from gpu import Comm

    g, comm = r.gpu, Comm(r, "all")
    s, x = g.stream(), g.alloc(1 << 20)
    comm.all_reduce(x, x, 1 << 20, s)
    g.sync(s)
    call = {"d": "ncclCommDestroy", "f": "ncclCommFinalize", "a": "ncclCommAbort"}[how[0]]
    r.barrier("end")
    if "kernel" in how and r.rank == 0:
        comm.all_reduce(x, x, 1 << 20, s)
    with r.watch(6, f"{call} does not return"):
        if "kernel" in how and how[0] == "d" and r.rank == 1:
            time.sleep(LATE)
            comm.all_reduce(x, x, 1 << 20, s)
        spent = r.late(how, lambda: comm.call(call, comm.handle), LATE) if "kernel" not in how else None
        if spent is None:
            start = time.monotonic()
            if r.rank == 1 and how[0] == "a":
                time.sleep(LATE)
            comm.call(call, comm.handle)
            spent = time.monotonic() - start
    if r.rank == 0:
        r.value(call, told(spent))
        r.fault(spent > BLOCKS)
        ended = g.ends(s, 2)
        r.value("its kernel ends", ended is not None)
        if ended is None:
            r.leave()


@trial("host-windows", "ncclCommWindowRegister", 2, "the host waits until the other rank registers its window, and for kernels that spin", "it returns at once", limit=25)
def windows(r):
    from gpu import Comm

    g, comm = r.gpu, Comm(r, "all")
    x, size = ctypes.c_void_p(), 1 << 24
    comm.call("ncclMemAlloc", ctypes.byref(x), size)
    s, y = g.stream(), g.alloc(1 << 20)
    comm.all_reduce(y, y, 1 << 20, s)
    g.sync(s)
    made = []

    def register():
        made.append(ctypes.c_void_p())
        comm.call("ncclCommWindowRegister", comm.handle, x, size, ctypes.byref(made[-1]), ctypes.c_int(1))

    def deregister():
        comm.call("ncclCommWindowDeregister", comm.handle, made.pop())

    at_once = r.late("first", register, 0.0)
    r.late("first end", deregister, 0.0)
    spent = r.late("register", register, LATE)
    end = r.late("deregister", deregister, LATE)
    held = g.hold(s, 1.5)
    r.barrier("spin")
    start = time.monotonic()
    register()
    spins = time.monotonic() - start
    r.barrier("spun")
    g.release(held)
    g.sync(s)
    if r.rank == 0:
        r.control(at_once < BLOCKS, "both at once")
        r.value("register", told(spent))
        r.value("deregister", told(end))
        r.value("register while a kernel spins", "waits" if spins > 1.2 else round(spins, 3))
        r.fault(spent > BLOCKS)


@trial("host-graphs", "cuGraphLaunch with NCCL", 2, "the host waits for the other rank in the first launch (connection)", "it returns at once", provokes=None, limit=25, arms={"connected before": {"warm": True}, "first use in the graph": {"warm": False}})
def graph_launch(r, warm):
    from gpu import Comm

    g, comm = r.gpu, Comm(r, "all")
    s, x = g.stream(), g.alloc(1 << 20)
    g.fill(x, 5, 1 << 20, s)
    g.sync(s)
    if warm:
        comm.all_reduce(x, x, 1 << 20, s)
        g.sync(s)
    graphs = []
    times = {"capture": r.late("capture", lambda: graphs.append(g.capture(s, lambda: comm.all_reduce(x, x, 1 << 20, s))), LATE)}
    for it in ("first launch", "second launch", "third launch"):
        times[it] = r.late(it, lambda: g.call("cuGraphLaunch", graphs[0], s), LATE)
        g.sync(s)

    # A launch behind one that waits for the peer.
    def both():
        g.call("cuGraphLaunch", graphs[0], s)
        g.call("cuGraphLaunch", graphs[0], s)

    times["two launches"] = r.late("two launches", both, LATE)
    g.sync(s)
    wrong = g.differ(x, 5 * 2 ** (5 + warm), 1 << 20, s)
    g.sync(s)
    r.control(g.count(wrong) == 0, "the sums are right")
    if r.rank == 0:
        for name, it in times.items():
            r.value(name, told(it))
        r.fault(any(it > BLOCKS for it in times.values()))


@trial("host-handles", "cuIpcOpenMemHandle", 2, "opening and closing a handle waits for kernels that spin", "it returns at once", provokes=None)
def handles(r):
    g = r.gpu
    x, mapped = g.alloc(1 << 20), []
    first = r.peer("warm", g.alloc(1 << 20))
    found = {}
    found["open"] = g.blocked_by_kernel(lambda: mapped.append(r.peer("x", x)))[0]
    found["close"] = g.blocked_by_kernel(lambda: g.call("cuIpcCloseMemHandle", mapped[0]))[0]
    r.barrier("closed")
    g.call("cuIpcCloseMemHandle", first)
    if r.rank == 0:
        for name, it in found.items():
            r.value(name, "blocks" if it > 0.3 else round(it, 3))
        r.fault(any(it > 0.3 for it in found.values()))
