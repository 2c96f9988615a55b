"""Trials of calls that block the host until the peer calls, or until work of the GPU has ended."""

import ctypes

from gpu import Comm
from harness import trial


@trial("host-creation", "NCCL", 2, "the host waits until the other rank creates the communicator, unless it does not block", limit=25)
def creation(r):
    assert r.gpu
    kept = []
    Comm(r, "warm")
    waits = r.late("blocking=1", lambda: kept.append(Comm(r, "blocking")))
    r.control(not r.late("blocking=0", lambda: kept.append(Comm(r, "not blocking", 0))), "a communicator that does not block")
    r.control(kept[-1].ready())
    r.fault(waits)


@trial("host-creation", "PyTorch, first communication", 2, "the host waits in the first communication of a group, and not in the second", arms={"cold": {"eager": False}, "eager": {"eager": True}})
def torch_creation(r, eager):
    import torch

    dist, device = r.torch_group(eager)
    x = torch.ones(1 << 20, device=device)
    torch.cuda.synchronize()
    calls = {"all-reduce": lambda: dist.all_reduce(x, async_op=True), "send": lambda: dist.isend(x, 1) if r.rank == 0 else dist.irecv(x, 0)}
    found = {f"{which} {name}": r.late(f"{which} {name}", call) for name, call in calls.items() for which in ("first", "second")}
    r.late("new_group", lambda: dist.new_group([0, 1]))
    torch.cuda.synchronize()
    r.control(not found["second all-reduce"] and not found["second send"], "the second ones")
    r.fault(found["first all-reduce"] and found["first send"])


CONNECT = {
    "at first use": {"NCCL_RUNTIME_CONNECT": 1},
    "connected": {"NCCL_RUNTIME_CONNECT": 0, "collectives": False},
    "at first use, not blocking": {"NCCL_RUNTIME_CONNECT": 1, "blocking": 0, "collectives": False, "sends": False, "provokes": False},
}


@trial("host-connection", "first calls,", 2, "the host waits for the other rank in the first call of a kind; connected, in that of sends only", arms=CONNECT, limit=45)
def connection(r, blocking=None, collectives=True, sends=True):
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
    shared, found = Comm(r, "shared", blocking), {}
    assert shared.ready()
    for name, call in calls.items():
        # The first call of a new communicator, a second one, and one behind other kinds.
        comm = Comm(r, name, blocking)
        assert comm.ready()
        for which, used in (("first", comm), ("second", comm), ("behind others", shared)):
            found[name, which] = r.late(f"{name}, {which}", lambda: call(used))
            assert used.ready()
            g.sync(s)
    r.control(not any(found[name, "second"] for name in calls), "the second ones")
    r.control(all(found[name, "first"] == (sends if "send" in name else collectives) for name in calls), "the kinds that wait")
    r.fault(any(found[name, "first"] for name in calls))


ENDS = {
    "destroy": {"call": "ncclCommDestroy"},
    "finalize": {"call": "ncclCommFinalize", "provokes": False},
    "abort": {"call": "ncclCommAbort"},
    "abort while a kernel waits": {"call": "ncclCommAbort", "kernel": True},
    "destroy while a kernel waits": {"call": "ncclCommDestroy", "kernel": True},
}


@trial("host-destroy", "ncclComm", 2, "the host waits until the other rank calls it, except in finalize", arms=ENDS)
def endings(r, call, kernel=False):
    g, comm = r.gpu, Comm(r, "all")
    s, x = g.stream(), g.alloc(1 << 20)

    def post():
        comm.all_reduce(x, x, 1 << 20, s)

    def end():
        # Destruction waits for the kernel, which needs its peer.
        if kernel and r.rank == 1 and call == "ncclCommDestroy":
            post()
        comm.call(call, comm.handle)

    post()
    g.sync(s)
    if kernel and r.rank == 0:
        post()
    with r.watch(8, f"{call} does not return"):
        waits = r.late(call, end)
    r.value("its kernel ends", g.ends(s, 2) is not None)
    r.fault(waits)


@trial("host-windows", "ncclCommWindowRegister", 2, "the host waits until the other rank registers its window, and not for kernels that spin", limit=25)
def windows(r):
    g, comm = r.gpu, Comm(r, "all")
    x, size, made = ctypes.c_void_p(), 1 << 24, []
    comm.call("ncclMemAlloc", ctypes.byref(x), size)

    def register():
        made.append(ctypes.c_void_p())
        comm.call("ncclCommWindowRegister", comm.handle, x, size, ctypes.byref(made[-1]), ctypes.c_int(1))

    def deregister():
        comm.call("ncclCommWindowDeregister", comm.handle, made.pop())

    register()
    deregister()
    waits = r.late("register", register)
    r.late("deregister", deregister)
    r.barrier("spin")
    r.control(not r.blocks("register while a kernel spins", register, 1.5), "a kernel that spins")
    r.barrier("spun")
    r.fault(waits)


@trial("host-graphs", "cuGraphLaunch with NCCL", 2, "no launch waits; the capture does at the first use", arms={"connected before": {"warm": True, "provokes": False}, "first use in the graph": {"warm": False}}, limit=25)
def graph_launch(r, warm):
    g, comm = r.gpu, Comm(r, "all")
    s, x, graphs = g.stream(), g.alloc(1 << 20), []
    g.fill(x, 5, 1 << 20, s)
    if warm:
        comm.all_reduce(x, x, 1 << 20, s)
    g.sync(s)
    waits = r.late("capture", lambda: graphs.append(g.capture(s, lambda: comm.all_reduce(x, x, 1 << 20, s))))

    def launch():
        g.call("cuGraphLaunch", graphs[0], s)

    # Also a launch behind one that waits for the peer.
    launches = [r.late("first launch", launch), r.late("two launches", lambda: (launch(), launch()))]
    r.control(not any(launches), "launches")
    r.control(g.wrong(x, 5 * 2 ** (3 + warm), 1 << 20, s) == 0, "the sums are right")
    r.fault(waits)


@trial("host-handles", "cuIpcOpenMemHandle", 2, "closing a handle waits for kernels that spin, opening does not")
def handles(r):
    g, mapped = r.gpu, []
    x = g.alloc(1 << 20)
    r.peer("warm", g.alloc(1 << 20))
    r.control(not r.blocks("open", lambda: mapped.append(r.peer("x", x))), "opening")
    waits = r.blocks("close", lambda: g.call("cuIpcCloseMemHandle", mapped[0]))
    r.barrier("closed")
    r.fault(waits)
