"""Trials of the order of communications: NCCL's C interface, and PyTorch's process groups."""

import time

from gpu import Comm
from harness import trial

LARGE = 1 << 26


@trial("posts", "without a Wait", 2, "the current stream does not wait for a communication, and what it does overwrites the operands")
def without_wait(r):
    import torch

    dist, device = r.torch_group()
    g, words = r.gpu, 1 << 22
    out = torch.empty(2 * words, dtype=torch.int32, device=device)
    x = torch.empty(words, dtype=torch.int32, device=device)

    def gather(name, waits):
        """The communication follows what its stream does before the post. Rank 1 is late."""
        g.fill(x.data_ptr(), 7 + r.rank, words, 0)
        g.fill(out.data_ptr(), 3, 2 * words, 0)
        g.sync(0)
        r.barrier(name)
        held = g.hold(0, 3) if waits or r.rank == 1 else 0
        g.fill(x.data_ptr(), 17 + r.rank, words, 0)
        work = dist.all_gather_into_tensor(out, x, async_op=True)
        if waits:
            work.wait()
        wrong = [g.differ(out.data_ptr() + 4 * words * it, 17 + it, words, 0) for it in (0, 1)]
        g.release(held, 0.3)
        torch.cuda.synchronize()
        return [g.count(it) for it in wrong]

    gather("warm", True)
    r.control(gather("waits", True) == [0, 0], "Wait; the communication follows its stream up to the post")
    found = gather("late", False)
    if r.rank == 0:
        r.fault(found[1] == words, f"{found[1]} old words of the output")


P2P = {
    "eager": {"eager": True},
    "pair": {"eager": False, "provokes": False},
    "cold": {"eager": False, "cold": True},
    "cold, one order": {"eager": False, "cold": True, "crossed": False, "provokes": False},
}


@trial("communicators", "receive and all-reduce crossed,", 2, "on one communicator they deadlock; the communicator of a pair is another one; cold, the hosts deadlock", arms=P2P)
def crossed_kinds(r, eager, cold=False, crossed=True):
    import torch

    dist, device = r.torch_group(eager)
    x, y = torch.ones(1 << 20, device=device), torch.full((1 << 20,), 2.0, device=device)
    if not cold:
        for sender in (0, 1):
            dist.all_reduce(y, async_op=True).wait()
            (dist.isend(x, 1 - sender) if r.rank == sender else dist.irecv(x, sender)).wait()
            torch.cuda.synchronize()
        r.control(True, "one order")
    r.barrier("cross")
    # Rank 0 receives, so its kernel waits.
    calls = [lambda: dist.isend(x, 0) if r.rank else dist.irecv(x, 1), lambda: dist.all_reduce(y, async_op=True)]
    with r.watch(5, "the hosts wait for each other"):
        works = [it() for it in (reversed(calls) if crossed and r.rank else calls)]
    end = time.monotonic() + 3
    while not all(it.is_completed() for it in works) and time.monotonic() < end:
        time.sleep(0.01)
    ended = [it.is_completed() for it in works]
    r.fault(not all(ended), f"ended: {ended}")


SIZES = {
    "64 MiB": {"words": 1 << 24, "provokes": None},
    "1 GiB": {"words": 1 << 28},
    "1 KiB, not connected": {"words": 256, "connected": False},
}


@trial("communicators", "sends before receives,", 2, "two sends, each before its receive, deadlock if they are not connected, or larger than the buffers of NCCL", arms=SIZES)
def sends_first(r, words, connected=True):
    g, comm = r.gpu, Comm(r, "pair")
    s, x, y = g.stream(), g.alloc(words), g.alloc(words)
    g.fill(x, 5 + r.rank, words, s)
    g.sync(s)
    if connected:
        comm.group(lambda: comm.send(x, words, s), lambda: comm.receive(y, words, s))
        r.control(g.ends(s, 3) is not None and g.wrong(y, 6 - r.rank, words, s) == 0, "a group")
    with r.watch(4, "the hosts wait"):
        comm.send(x, words, s)
        comm.receive(y, words, s)
    ended = g.ends(s, 3)
    r.fault(ended is None, "hangs" if ended is None else "ends")


@trial("collective-data", "root of a broadcast", 2, "the root ends before the other rank begins (while buffers suffice); a member of an all-reduce does not")
def broadcast_root(r):
    g, comm = r.gpu, Comm(r, "all")
    s, x = g.stream(), g.alloc(1 << 24)
    kinds = {"broadcast": lambda n: comm.broadcast(x, x, n, 0, s), "all-reduce": lambda n: comm.all_reduce(x, x, n, s)}
    for name, call in kinds.items():
        for words in (256, 1 << 24):
            call(words)
            g.sync(s)
            r.barrier(f"{name} {words}")
            time.sleep(0.4 * r.rank)
            call(words)
            ended = g.ends(s, 0.3) is not None
            g.sync(s)
            if r.rank == 0:
                r.value(f"{name} {4 * words} bytes, ends before its peer begins", ended)
                if name == "all-reduce":
                    r.control(not ended)
                elif words == 256:
                    r.fault(ended, "1 KiB")


@trial("groups", "a receive over what is sent", 2, "the receive overwrites what a send of its group still reads")
def group_overlap(r):
    g, comm = r.gpu, Comm(r, "all")
    s, x, apart = g.stream(), g.alloc(2 * LARGE), g.alloc(LARGE)

    def exchange(target):
        g.fill(x, 5 + r.rank, 2 * LARGE, s)
        comm.group(lambda: comm.send(x, LARGE, s), lambda: comm.receive(target, LARGE, s))
        return g.wrong(target, 6 - r.rank, LARGE, s)

    exchange(apart)
    r.control(exchange(apart) == 0, "separate memory")
    found = {it: exchange(x + 4 * it) for it in (LARGE // 64, LARGE // 8, LARGE // 2)}
    r.value("wrong words by distance", found)
    r.fault(any(found.values()), tries=len(found))


@trial("groups", "messages of a pair", 2, "they arrive in the order of the posts", provokes=False)
def message_order(r, tries=100):
    g, comm = r.gpu, Comm(r, "all")
    s, words = g.stream(), 1 << 18
    mine, theirs, wrong = [g.alloc(words) for _ in range(4)], [g.alloc(words) for _ in range(4)], []
    for it in range(tries):
        for i in range(4):
            g.fill(mine[i], 1000 * it + 10 * i + r.rank, words, s)
        sends = [lambda i=i: comm.send(mine[i], words, s) for i in range(4)]
        receives = [lambda i=i: comm.receive(theirs[i], words, s) for i in range(4)]
        # Sends and receives alternate on rank 0 only.
        comm.group(*(sends + receives if r.rank else [it for pair in zip(receives, sends) for it in pair]))
        wrong += [g.differ(theirs[i], 1000 * it + 10 * i + 1 - r.rank, words, s) for i in range(4)]
        if it % 50 == 49:
            g.sync(s)
    r.fault(sum(map(g.count, wrong)) > 0, tries=tries)


@trial("in-place", "shifted output", 2, "an output that overlaps the input elsewhere is wrong")
def shifted_output(r):
    g, comm = r.gpu, Comm(r, "all")
    s, x, apart = g.stream(), g.alloc(3 * LARGE), g.alloc(2 * LARGE)

    def reduces(target):
        g.fill(x, 5 + r.rank, LARGE, s)
        comm.all_reduce(x, target, LARGE, s)
        return g.wrong(target, 11, LARGE, s)

    def gathers(target):
        # The input is the second part: of rank 1 it is in place if the target is x.
        source = target + 4 * LARGE * r.rank if target == x else x + 4 * LARGE
        g.fill(source, 5 + r.rank, LARGE, s)
        comm.all_gather(source, target, LARGE, s)
        return sum(g.wrong(target + 4 * LARGE * it, 5 + it, LARGE, s) for it in (0, 1))

    reduces(apart)
    r.control(reduces(apart) == reduces(x) == gathers(apart) == gathers(x) == 0, "separate memory, and in place")
    found = {f"{call.__name__} {it}": call(x + 4 * it) for call in (reduces, gathers) for it in (LARGE // 128, LARGE // 2)}
    r.value("wrong words by distance", found)
    r.fault(any(found.values()), tries=len(found))


@trial("runs", "graphs without a barrier", 2, "the next run overwrites what the peer still reads")
def replays(r, runs=20):
    g, comm = r.gpu, Comm(r, "all")
    s, x, small, bad = g.stream(), g.alloc(1 << 20), g.alloc(64), g.alloc(1)
    theirs, count = r.peer("x", x), 1 << 10

    def run(barrier):
        g.launch("add", s, x, 1, count, block=256)
        comm.all_reduce(small, small, 64, s)
        if r.rank == 1:
            g.launch("hold", s, g.flags_at + 4 * 1000, int(5e6))
        g.launch("unlike", s, x, theirs, count, bad, block=256)
        if barrier:
            comm.all_reduce(small, small, 64, s)

    def replay(overlaps):
        g.fill(x, 0, count, s)
        g.sync(s)
        r.barrier(f"{overlaps} begin")
        run(True)
        graph = g.capture(s, lambda: run(not overlaps))
        g.fill(bad, 0, 1, s)
        g.sync(s)
        r.barrier(f"{overlaps} captured")
        for _ in range(runs):
            g.call("cuGraphLaunch", graph, s)
        g.sync(s)
        r.barrier(f"{overlaps} end")
        return g.read(bad)

    r.control(replay(False) == 0, "a collective at the end")
    found = replay(True)
    if r.rank == 1:
        r.fault(found > 0, f"{found} words of another run", runs)


FULL = {"NCCL_MAX_CTAS": 1, "NCCL_MIN_CTAS": 1, "NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"}
KERNELS = {
    "one stream, crossed": {"streams": 1, "crossed": True},
    "full GPU, one start order": {**FULL, "delayed": (0, 0), "provokes": False},
    "full GPU, two start orders": {**FULL, "delayed": (0, 1)},
    "full GPU, two start orders, implicit": {**FULL, "delayed": (0, 1), "provokes": False, "NCCL_LAUNCH_ORDER_IMPLICIT": 1},
}


@trial("kernel-order", "two communicators,", 2, "kernels that start in different orders wait for each other; NCCL_LAUNCH_ORDER_IMPLICIT keeps the issue order", arms=KERNELS)
def kernel_order(r, streams=2, crossed=False, delayed=None):
    g, words = r.gpu, 1 << 22
    comms = [Comm(r, "A"), Comm(r, "B")]
    data, on = [g.alloc(words), g.alloc(words)], [g.stream() for _ in range(streams)] * (3 - streams)

    def post(which):
        comms[which].all_reduce(data[which], data[which], words, on[which])

    for it in (0, 1):
        g.fill(data[it], 5 + r.rank, words, on[it])
        post(it)
    r.control(all(g.wrong(data[it], 11, words, on[it]) == 0 for it in (0, 1)), "the same order, a free GPU")
    r.barrier("begin")
    room = held = 0
    if delayed:
        # One multiprocessor is left, on which one of both kernels fits.
        room = g.hold(g.stream(), 12, grid=g.attribute(16) - 1, shared=200 << 10)
        time.sleep(0.2)
    with r.watch(8, "the host blocks"):
        for which in (1, 0) if crossed and r.rank else (0, 1):
            if delayed and which == delayed[r.rank]:
                held = g.wait(on[which])
            post(which)
    g.release(held, 0.5)
    ended = [g.ends(stream, 3) is not None for stream in on]
    r.fault(not all(ended), f"ended: {ended}")
    r.barrier("ended")
    g.release(room)
    if delayed:
        r.value("both end once the GPU is free", all(g.ends(stream, 3) is not None for stream in on))
