"""Trials of the order of communications: NCCL's C interface, and PyTorch's process groups."""

import time

from harness import trial

LARGE = 1 << 26


@trial("posts", "without a Wait", 2, "the current stream does not wait for a communication, and what it does overwrites the operands", "the values of a Wait")
def without_wait(r):
    import torch

    dist, device = r.torch_group(eager=True)
    g, words = r.gpu, 1 << 22
    out = torch.empty(2 * words, dtype=torch.int32, device=device)
    x = torch.empty(words, dtype=torch.int32, device=device)

    def gather(name):
        g.fill(x.data_ptr(), 7 + r.rank, words, 0)
        g.fill(out.data_ptr(), 3, 2 * words, 0)
        g.sync(0)
        r.barrier(name)
        # The communication follows what its stream does before the post.
        held = g.hold(0, 3)
        g.fill(x.data_ptr(), 17 + r.rank, words, 0)
        dist.all_gather_into_tensor(out, x, async_op=True).wait()
        wrong = [g.differ(out.data_ptr() + 4 * words * it, 17 + it, words, 0) for it in (0, 1)]
        g.release(held, 0.1)
        torch.cuda.synchronize()
        return sum(map(g.count, wrong))

    gather("warm")
    r.control(gather("waits") == 0, "Wait; the communication follows its stream up to the post")
    # Rank 1 is late: rank 0 reads the output, then overwrites the input.
    g.fill(x.data_ptr(), 7 + r.rank, words, 0)
    g.fill(out.data_ptr(), 3, 2 * words, 0)
    torch.cuda.synchronize()
    r.barrier("late")
    if r.rank == 1:
        held = g.hold(0, 3)
        dist.all_gather_into_tensor(out, x, async_op=True)
        g.release(held, 0.5)
        torch.cuda.synchronize()
        theirs = g.differ(out.data_ptr(), 7, words, 0)
        g.sync(0)
        r.note(f"rank 1 got {g.count(theirs)} words that rank 0 wrote behind its post")
    else:
        dist.all_gather_into_tensor(out, x, async_op=True)
        wrong = g.differ(out.data_ptr() + 4 * words, 8, words, 0)
        g.fill(x.data_ptr(), 99, words, 0)
        g.sync(0)
        r.fault(g.count(wrong) == words, f"{g.count(wrong)} old words of the output")
        torch.cuda.synchronize()


P2P = {
    "eager": {"eager": True},
    "pair": {"eager": False, "provokes": False},
    "cold": {"eager": False, "cold": True},
    "cold, one order": {"eager": False, "cold": True, "crossed": False, "provokes": False},
}


@trial("communicators", "receive and all-reduce crossed,", 2, "on one communicator they deadlock; the communicator of a pair is another one; cold, the hosts deadlock", "the opposite end", arms=P2P)
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
    with r.watch(5, "the hosts wait for each other"):
        # Rank 0 receives, so its kernel waits.
        works = []
        if r.rank == 0:
            works.append(dist.irecv(x, 1))
            works.append(dist.all_reduce(y, async_op=True))
        elif crossed:
            works.append(dist.all_reduce(y, async_op=True))
            works.append(dist.isend(x, 0))
        else:
            works.append(dist.isend(x, 0))
            works.append(dist.all_reduce(y, async_op=True))
    end = time.monotonic() + 3
    while not all(it.is_completed() for it in works) and time.monotonic() < end:
        time.sleep(0.01)
    ended = [it.is_completed() for it in works]
    r.fault(not all(ended), f"ended: {ended}")
    if not all(ended):
        r.leave()


SIZES = {
    "1 KiB": {"words": 256, "provokes": None},
    "64 KiB": {"words": 1 << 14, "provokes": None},
    "1 MiB": {"words": 1 << 18, "provokes": None},
    "64 MiB": {"words": 1 << 24},
}


@trial("communicators", "sends before receives,", 2, "two sends, each before its receive, deadlock (small ones may be buffered)", "they end", arms=SIZES)
def sends_first(r, words):
    from gpu import Comm

    g, comm = r.gpu, Comm(r, "pair")
    s, x, y = g.stream(), g.alloc(words), g.alloc(words)
    g.fill(x, 5 + r.rank, words, s)
    comm.group(lambda: comm.send(x, words, s), lambda: comm.receive(y, words, s))
    wrong = g.differ(y, 6 - r.rank, words, s)
    r.control(g.ends(s, 3) is not None and g.count(wrong) == 0, "a group")
    with r.watch(4, "the hosts wait"):
        comm.send(x, words, s)
        comm.receive(y, words, s)
    ended = g.ends(s, 3)
    r.fault(ended is None, "hangs" if ended is None else "ends")
    if ended is None:
        r.leave()


@trial("collective-data", "root of a broadcast", 2, "the root ends before the other rank begins (while buffers suffice); a member of an all-reduce does not", "the root waits")
def broadcast_root(r):
    from gpu import Comm

    g, comm = r.gpu, Comm(r, "all")
    s, x = g.stream(), g.alloc(1 << 24)
    g.fill(x, 5, 1 << 24, s)
    kinds = {"broadcast": lambda n: comm.broadcast(x, x, n, 0, s), "all-reduce": lambda n: comm.all_reduce(x, x, n, s)}
    for name, call in kinds.items():
        for words in (256, 1 << 14, 1 << 18, 1 << 24):
            call(words)
            g.sync(s)
            r.stage(f"{name} {words}")
            r.barrier(f"{name} {words}")
            if r.rank == 1:
                time.sleep(0.4)
            call(words)
            ended = g.ends(s, 0.3)
            g.sync(s)
            if r.rank == 0:
                r.value(f"{name} {4 * words} bytes, ends before its peer begins", ended is not None)
            if words == 256 and r.rank == 0 and name == "broadcast":
                r.fault(ended is not None, "1 KiB")
            elif r.rank == 0 and name == "all-reduce":
                r.control(ended is None)


@trial("groups", "a receive over what is sent", 2, "the receive overwrites what a send of its group still reads", "each rank gets what the other one had")
def group_overlap(r):
    from gpu import Comm

    g, comm = r.gpu, Comm(r, "all")
    s, x, apart = g.stream(), g.alloc(2 * LARGE), g.alloc(LARGE)

    def exchange(target):
        g.fill(x, 5 + r.rank, 2 * LARGE, s)
        comm.group(lambda: comm.send(x, LARGE, s), lambda: comm.receive(target, LARGE, s))
        wrong = g.differ(target, 6 - r.rank, LARGE, s)
        g.sync(s)
        return g.count(wrong)

    exchange(apart)
    r.control(exchange(apart) == 0, "separate memory")
    found = {it: exchange(x + 4 * it) for it in (LARGE // 128, LARGE // 64, LARGE // 32, LARGE // 8, LARGE // 2)}
    r.value("wrong words by distance", {str(name): it for name, it in found.items()})
    r.fault(any(found.values()), tries=len(found))


@trial("groups", "messages of a pair", 2, "they arrive in the order of the posts", "another order", provokes=False)
def message_order(r, tries=100):
    from gpu import Comm

    g, comm = r.gpu, Comm(r, "all")
    s, words = g.stream(), 1 << 18
    mine, theirs, wrong = [g.alloc(words) for _ in range(4)], [g.alloc(words) for _ in range(4)], []
    for it in range(tries):
        for i in range(4):
            g.fill(mine[i], 1000 * it + 10 * i + r.rank, words, s)
        # Sends and receives alternate on rank 0 only.
        order = [0, 1, 2, 3]
        sends = [lambda i=i: comm.send(mine[i], words, s) for i in order]
        receives = [lambda i=i: comm.receive(theirs[i], words, s) for i in order]
        works = sends + receives if r.rank else [it for pair in zip(receives, sends) for it in pair]
        comm.group(*works)
        wrong += [g.differ(theirs[i], 1000 * it + 10 * i + 1 - r.rank, words, s) for i in order]
        if it % 50 == 49:
            g.sync(s)
    r.fault(sum(map(g.count, wrong)) > 0, tries=tries)


@trial("in-place", "shifted output", 2, "an output that overlaps the input elsewhere is wrong", "it is right")
def shifted_output(r):
    from gpu import Comm

    g, comm = r.gpu, Comm(r, "all")
    s, x, apart = g.stream(), g.alloc(3 * LARGE), g.alloc(2 * LARGE)

    def reduces(target):
        g.fill(x, 5 + r.rank, LARGE, s)
        comm.all_reduce(x, target, LARGE, s)
        wrong = g.differ(target, 11, LARGE, s)
        g.sync(s)
        return g.count(wrong)

    def gathers(target):
        # The input is the second part: of rank 1 it is in place if the target is x.
        g.fill(x, 0, 3 * LARGE, s)
        source = target + 4 * LARGE * r.rank if target == x else x + 4 * LARGE
        g.fill(source, 5 + r.rank, LARGE, s)
        comm.all_gather(source, target, LARGE, s)
        wrong = [g.differ(target + 4 * LARGE * it, 5 + it, LARGE, s) for it in (0, 1)]
        g.sync(s)
        return sum(map(g.count, wrong))

    reduces(apart)
    r.control(reduces(apart) == 0 and reduces(x) == 0 and gathers(apart) == 0 and gathers(x) == 0, "separate memory, and in place")
    found = {}
    for it in (LARGE // 128, LARGE // 32, LARGE // 2):
        found[f"all-reduce {it}"] = reduces(x + 4 * it)
        found[f"all-gather {it}"] = gathers(x + 4 * it)
    r.value("wrong words by distance", found)
    r.fault(any(found.values()), tries=len(found))


@trial("runs", "graphs without a barrier", 2, "the next run overwrites what the peer still reads", "each run reads its own values")
def replays(r, runs=20):
    from gpu import Comm

    g, comm = r.gpu, Comm(r, "all")
    s, x, small = g.stream(), g.alloc(1 << 20), g.alloc(64)
    theirs, count = r.peer("x", x), 1 << 10

    def run(barrier, bad):
        g.launch("add", s, x, 1, count, block=256)
        comm.all_reduce(small, small, 64, s)
        if r.rank == 1:
            g.launch("hold", s, g.flags_at + 4 * 1000, int(5e6))
        g.launch("unlike", s, x, theirs, count, bad, block=256)
        if barrier:
            comm.all_reduce(small, small, 64, s)

    for name, barrier in (("barrier", True), ("none", False)):
        g.next_count += 1
        bad = g.counts + 4 * g.next_count
        g.fill(x, 0, count, s)
        g.sync(s)
        r.barrier(f"{name} begin")
        run(True, g.counts)
        graph = g.capture(s, lambda: run(barrier, bad))
        g.sync(s)
        r.barrier(f"{name} captured")
        for _ in range(runs):
            g.call("cuGraphLaunch", graph, s)
        g.sync(s)
        r.barrier(f"{name} end")
        if barrier:
            r.control(g.read(bad) == 0, "a collective at the end")
        elif r.rank == 1:
            r.fault(g.read(bad) > 0, f"{g.read(bad)} words of another run", runs)


FULL = {"NCCL_MAX_CTAS": 1, "NCCL_MIN_CTAS": 1, "NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"}
KERNELS = {
    "one stream, crossed": {"streams": 1, "crossed": True},
    "two streams, crossed": {"crossed": True, "provokes": None},
    "two streams, crossed, implicit": {"crossed": True, "provokes": None, "NCCL_LAUNCH_ORDER_IMPLICIT": 1},
    "full GPU, one start order": {**FULL, "full": True, "delayed": "first", "provokes": False},
    "full GPU, two start orders": {**FULL, "full": True, "delayed": "different"},
    "full GPU, two start orders, implicit": {**FULL, "full": True, "delayed": "different", "provokes": False, "NCCL_LAUNCH_ORDER_IMPLICIT": 1},
}


@trial("kernel-order", "two communicators,", 2, "kernels that start in different orders wait for each other; NCCL_LAUNCH_ORDER_IMPLICIT keeps the issue order", "they end", arms=KERNELS, limit=20)
def kernel_order(r, streams=2, crossed=False, full=False, delayed=""):
    from gpu import Comm

    g, words = r.gpu, 1 << 22
    comms = [Comm(r, "A"), Comm(r, "B")]
    data, on = [g.alloc(words), g.alloc(words)], [g.stream() for _ in range(streams)] * (3 - streams)
    occupant, wrong = g.stream(), []

    def fill():
        for it in (0, 1):
            g.fill(data[it], 5 + r.rank + 10 * it, words, on[it])
        g.ends(on[0], 5)
        g.ends(on[1], 5)

    def post(which):
        comms[which].all_reduce(data[which], data[which], words, on[which])

    def check():
        return [g.differ(data[it], 11 + 20 * it, words, on[it]) for it in (0, 1)]

    fill()
    post(0)
    post(1)
    wrong = check()
    r.control(all(g.ends(it, 5) is not None for it in on) and not sum(map(g.count, wrong)), "the same order, a free GPU")
    tries = 1 if full or streams == 1 else 20
    for it in range(tries):
        fill()
        r.barrier(f"try {it}")
        blocks = 0
        if full:
            # One multiprocessor is left, on which one of both kernels fits.
            blocks = g.attribute(16) - 1
            room = g.hold(occupant, 12, grid=blocks, shared=200 << 10)
            time.sleep(0.2)
        with r.watch(8, "the host blocks"):
            held = 0
            for which in (1, 0) if crossed and r.rank else (0, 1):
                if delayed and which == (0 if delayed == "first" else r.rank):
                    held = g.wait(on[which])
                post(which)
        if held:
            g.release(held, 0.5)
        ended = [g.ends(stream, 3) is not None for stream in on]
        if not all(ended):
            r.fault(True, f"ended: {ended}", it + 1)
            if full:
                # With the GPU free, both end.
                r.barrier("hang")
                g.release(room)
                after = all(g.ends(stream, 3) is not None for stream in on)
                r.note(f"both end once the GPU is free: {after}")
            r.leave()
        if full:
            g.release(room)
        wrong = check()
        g.ends(on[0], 5)
        g.ends(on[1], 5)
        assert not sum(map(g.count, wrong)), "wrong sums"
    r.fault(False, tries=tries)
