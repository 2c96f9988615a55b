"""Trials of streams, events, processes and launches."""

import time

from harness import trial

WORDS = 1 << 20


@trial("harness", "processes", 2, "two processes start, and NCCL sums", "no process starts, or a wrong sum", provokes=False, limit=60)
def processes(r):
    from gpu import Comm

    g, comm = r.gpu, Comm(r, "sum")
    x, s = g.alloc(WORDS), g.stream()
    g.fill(x, 5 + r.rank, WORDS, s)
    comm.all_reduce(x, x, WORDS, s)
    wrong = g.differ(x, 11, WORDS, s)
    g.sync(s)
    r.fault(g.count(wrong) != 0)


def stale(g, a, b, order, write=None):
    """A delayed write on stream `a`, and a read on `b`. Returns the number of words that the read got too early."""
    x = g.alloc(WORDS)
    g.fill(x, 7, WORDS, a)
    g.sync(a)
    held = g.hold(a)
    (write or (lambda: g.fill(x, 9, WORDS, a)))()
    order()
    wrong = g.differ(x, 9, WORDS, b)
    g.release(held, 0.2)
    g.sync(a)
    g.sync(b)
    return g.count(wrong)


@trial("stream-order", "without an event", 1, "a read on another stream is stale", "it sees the write of the first stream")
def without_event(r):
    g = r.gpu
    a, b = g.stream(), g.stream()
    r.control(stale(g, a, b, lambda: g.order(a, b)) == 0 and stale(g, a, a, lambda: None) == 0, "with an event, and on one stream")
    early = g.event(a)
    found = [stale(g, a, b, it) for it in (lambda: None, lambda: g.call("cuStreamWaitEvent", b, early, 0))]
    r.fault(found[0] == WORDS, f"{found[0]} stale words")
    r.value("stale behind an event that is recorded before", found[1])


@trial("stream-order", "legacy default stream", 1, "streams that do not block have no order with it", "a read there is stale on no stream")
def legacy(r):
    g = r.gpu
    plain, blocking = g.stream(), g.stream(blocking=True)
    r.control(stale(g, blocking, 0, lambda: None) == 0, "a blocking stream precedes the default stream")
    r.fault(stale(g, plain, 0, lambda: None) > 0)


@trial("stream-order", "barrier of hosts", 2, "a barrier of processes orders no streams", "the peer reads the new value")
def barrier_of_hosts(r):
    g = r.gpu
    s, x = g.stream(), g.alloc(WORDS)
    theirs = r.peer("x", x)

    def read(name, waits):
        g.fill(x, 7, WORDS, s)
        g.sync(s)
        r.barrier(f"{name} old")
        held = g.hold(s) if r.rank == 0 else 0
        if r.rank == 0:
            g.fill(x, 9, WORDS, s)
            if waits:
                g.release(held)
                g.sync(s)
        r.barrier(f"{name} issued")
        wrong = g.differ(theirs, 9, WORDS, s) if r.rank == 1 else 0
        time.sleep(0.2)
        g.release(held)
        g.sync(s)
        r.barrier(f"{name} end")
        return g.count(wrong) if r.rank == 1 else None

    waiting, at_once = read("waits", True), read("at once", False)
    if r.rank == 1:
        r.control(waiting == 0, "the writer synchronises before the barrier")
        r.fault(at_once == WORDS, f"{at_once} stale words")


@trial("host-waits", "host reads", 1, "without a synchronisation the host reads the old value; one of another stream does not wait", "new values")
def host_reads(r):
    g = r.gpu
    a, b = g.stream(), g.stream()
    at, host = g.flags_at + 4 * 900, lambda: g.flags[900]

    def read(stream):
        g.flags[900] = 7
        held = g.hold(a)
        g.fill(at, 9, 1, a)
        if stream == a:
            g.release(held)
        g.sync(stream)
        value = host()
        g.release(held, 0.1)
        g.sync(a)
        return value

    r.control(all(read(a) == 9 for _ in range(10)), "10 times")
    found = read(b)
    r.fault(found == 7, f"read {found}")


@trial("visible-writes", "flag of a peer", 2, "behind the wait all words are new; without it they are old", "old words behind the wait")
def flag_of_peer(r, tries=300):
    g = r.gpu
    s, data = g.stream(), g.alloc(WORDS + 1024)
    flag, answer = data + 4 * WORDS, data + 4 * WORDS + 512
    g.fill(data, 0, WORDS + 1024, s)
    g.sync(s)
    flush = 1 << 30 if g.attribute(98) else 0
    r.value("CAN_FLUSH_REMOTE_WRITES", g.attribute(98))
    their_data = r.peer("data", data)
    their_flag, their_answer = their_data + 4 * WORDS, their_data + 4 * WORDS + 512
    r.barrier("ready")
    wrong = []
    for it in range(1, tries + 1):
        if r.rank == 0:
            g.call("cuStreamWaitValue32_v2", s, answer, it - 1, flush)
            g.fill(their_data, it, WORDS, s)
            g.call("cuStreamWriteValue32_v2", s, their_flag, it, 0)
        else:
            g.call("cuStreamWaitValue32_v2", s, flag, it, flush)
            wrong.append(g.differ(data, it, WORDS, s))
            g.call("cuStreamWriteValue32_v2", s, their_answer, it, 0)
    ended = g.ends(s, 5)
    r.control(ended is not None and all(g.count(it) == 0 for it in wrong), f"{tries} times with the wait")
    if r.rank == 0:
        held = g.hold(s)
        g.fill(their_data, tries + 1, WORDS, s)
        r.barrier("issued")
        g.release(held, 0.3)
    else:
        r.barrier("issued")
        early = g.differ(data, tries + 1, WORDS, s)
        g.sync(s)
        r.fault(g.count(early) == WORDS, f"without the wait {g.count(early)} old words")
    g.sync(s)


@trial("mapped-views", "symmetric memory", 2, "a view reads the shard before its peer writes it, unless the writer synchronises", "new values")
def symmetric_view(r):
    import torch
    import torch.distributed._symmetric_memory as symmetric

    dist, device = r.torch_group(eager=True)
    shard = symmetric.empty(WORDS, dtype=torch.int32, device=device)
    view = symmetric.rendezvous(shard, dist.group.WORLD)
    theirs = view.get_buffer(1 - r.rank, (WORDS,), torch.int32).data_ptr()
    g = r.gpu
    s, x = g.stream(), shard.data_ptr()
    for name, waits in (("waits", True), ("at once", False)):
        g.fill(x, 7, WORDS, s)
        g.sync(s)
        r.barrier(f"{name} old")
        held = g.hold(s)
        g.fill(x, 9, WORDS, s)
        if waits:
            g.release(held)
            g.sync(s)
        r.barrier(f"{name} issued")
        other = g.stream()
        wrong = g.differ(theirs, 9, WORDS, other)
        g.sync(other)
        r.barrier(f"{name} read")
        g.release(held)
        g.sync(s)
        if waits:
            r.control(g.count(wrong) == 0, "the writer synchronises, then a barrier of hosts")
        else:
            r.fault(g.count(wrong) == WORDS, f"{g.count(wrong)} stale words")


@trial("caller", "input and output", 1, "the caller overwrites an input that a side stream still reads", "the side stream reads the input")
def caller(r):
    g = r.gpu
    main, side, x = g.stream(), g.stream(), g.alloc(WORDS)

    def program(joins):
        g.fill(x, 7, WORDS, main)
        g.order(main, side)
        held = g.hold(side)
        wrong = g.differ(x, 7, WORDS, side)
        if joins:
            g.order(side, main)
        g.fill(x, 9, WORDS, main)
        g.release(held, 0.2)
        g.sync(side)
        g.sync(main)
        return g.count(wrong)

    r.control(program(True) == 0, "the stream at exit waits for the side stream")
    found = program(False)
    r.fault(found == WORDS, f"{found} overwritten words")


@trial("semaphores", "one word", 1, "of two equal values one is lost, and the reader waits forever (protocol of nvFuser, emulated)", "both are read")
def one_word(r):
    g = r.gpu
    writer, reader, word = g.stream(), g.stream(), g.alloc(1)

    def posts(waits):
        g.fill(word, 0, 1, writer)
        g.sync(writer)
        g.call("cuStreamWriteValue32_v2", writer, word, 1, 0)
        if not waits:
            g.call("cuStreamWriteValue32_v2", writer, word, 1, 0)
            g.sync(writer)
        for _ in range(2):
            g.call("cuStreamWaitValue32_v2", reader, word, 1, 1)
            g.call("cuStreamWriteValue32_v2", reader, word, 0, 0)
            if waits:
                g.call("cuStreamWaitValue32_v2", writer, word, 0, 1)
                g.call("cuStreamWriteValue32_v2", writer, word, 1, 0)
        ended = g.ends(reader, 1.0)
        g.call("cuStreamWriteValue32_v2", writer, word, 1, 0)
        g.ends(reader, 1.0)
        return ended

    r.control(posts(True) is not None, "each post waits for the one before")
    r.fault(posts(False) is None, "the reader hangs")


QUEUES = {
    "1 queue": {"CUDA_DEVICE_MAX_CONNECTIONS": 1, "queues": 1},
    "default": {"queues": 8},
    "32 queues": {"CUDA_DEVICE_MAX_CONNECTIONS": 32, "queues": 32, "provokes": None},
}


@trial("hardware-queues", "blocked streams", 1, "a stream behind as many blocked ones as there are queues does not run", "each stream runs", arms=QUEUES)
def hardware_queues(r, queues):
    g = r.gpu
    least = {}
    for kind in ("kernel", "wait for a value"):
        for count in (1, 2, 4, 7, 8, 9, 12, 16, 24, 31, 32, 33, 40, 64):
            streams = [g.stream() for _ in range(count + 1)]
            g.next_flag += 1
            held = g.next_flag
            for it in streams[:-1]:
                if kind == "kernel":
                    g.launch("hold", it, g.flags_at + 4 * held, int(3e9))
                else:
                    g.call("cuStreamWaitValue32_v2", it, g.flags_at + 4 * held, 1, 0)
                # What depends on the stream blocks its queue.
                g.launch("hold", it, g.flags_at, 1)
            g.launch("hold", streams[-1], g.flags_at, 1)
            ran = g.ends(streams[-1], 0.3)
            g.release(held)
            blocked = ran is None
            if any(g.ends(it, 5) is None for it in streams):
                r.note(f"{kind}: streams did not end behind the release")
                r.fault(True)
                r.leave()
            if count == 1 and queues > 1:
                r.control(not blocked, f"one stream, {kind}")
            if blocked:
                least[kind] = count
                break
        r.value(f"blocked streams, {kind}", least.get(kind, "none of 64"))
    r.fault(bool(least))


@trial("launch-queue", "depth", 1, "a launch blocks the host behind about 1024 launches", "6,000 launches return", provokes=None, limit=30)
def launch_queue(r, most=6000):
    g = r.gpu
    x, other = g.alloc(64), g.alloc(64)
    streams = [g.stream() for _ in range(4)]
    graph = g.capture(streams[0], lambda: g.launch("hold", streams[0], g.flags_at, 1))
    event = g.event(streams[0])
    kinds = {
        "kernels": lambda i: g.launch("hold", streams[0], g.flags_at, 1),
        "kernels on 4 streams": lambda i: g.launch("hold", streams[i % 4], g.flags_at, 1),
        "events": lambda i: g.call("cuEventRecord", event, streams[0]),
        "copies": lambda i: g.call("cuMemcpyDtoDAsync_v2", x, other, 256, streams[0]),
        "values": lambda i: g.call("cuStreamWriteValue32_v2", streams[0], x, 1, 0),
        "graphs": lambda i: g.call("cuGraphLaunch", graph, streams[0]),
    }
    for name, issue in kinds.items():
        held = g.hold(streams[0], 4)
        for it in streams[1:]:
            g.launch("hold", it, g.flags_at + 4 * held, int(4e9))
        done = [0]

        def work():
            for i in range(most):
                issue(i)
                done[0] += 1

        thread, before = g.in_thread(work), -1
        while thread.is_alive() and done[0] != before:
            before = done[0]
            time.sleep(0.3)
        stalled = thread.is_alive()
        # Whether a launch to another stream blocks as well.
        if stalled and name == "kernels":
            spent, beside = time.monotonic(), g.stream()
            free = g.in_thread(lambda: g.launch("hold", beside, g.flags_at, 1))
            free.join(0.3)
            r.value("another stream blocks too", free.is_alive())
        g.release(held)
        thread.join(5)
        for it in streams:
            g.sync(it)
        r.value(name, done[0] if not stalled else f"{before} until it blocks")
        if name == "kernels":
            r.fault(stalled)


LOADING = {"lazy": {"CUDA_MODULE_LOADING": "LAZY"}, "eager": {"CUDA_MODULE_LOADING": "EAGER", "provokes": False, "limit": 50}}


@trial("lazy-loading", "first launch", 1, "the first launch of a kernel waits for a kernel that spins", "it returns at once", arms=LOADING, limit=20)
def first_launch(r):
    import torch

    g = r.gpu
    s, x = torch.cuda.Stream(), torch.rand(1000, device="cuda")
    torch.cuda.synchronize()
    again = g.blocked_by_kernel(lambda: g.launch("fill", s.cuda_stream, x.data_ptr(), 1, 8), 1.0)[0]
    r.control(again < 0.2, "a kernel that is loaded")
    found, loaded = {}, {}
    found["cuModuleLoadData, cuModuleGetFunction"] = g.blocked_by_kernel(lambda: loaded.update(g.module(["fill"])), 1.0)[0]
    g.kernels = {**g.kernels, **loaded}
    found["its first launch"] = g.blocked_by_kernel(lambda: g.launch("fill", s.cuda_stream, x.data_ptr(), 1, 8), 1.0)[0]

    def first(work):
        with torch.cuda.stream(s):
            work()

    found["first torch.atan2"] = g.blocked_by_kernel(lambda: first(lambda: torch.atan2(x, x, out=x)), 1.0)[0]
    found["first torch.asinh"] = g.blocked_by_kernel(lambda: first(lambda: torch.asinh(x, out=x)), 1.0)[0]
    for name, it in found.items():
        r.value(name, it)
    r.fault(any(it > 0.8 for it in found.values()))


@trial("dependent-launch", "without its wait", 1, "a kernel that does not wait reads old values", "it reads new values")
def dependent_launch(r):
    g = r.gpu
    s, x, count = g.stream(), g.alloc(1024), 1024

    def read(name, dependent, seconds=4):
        g.fill(x, 7, count, s)
        g.sync(s)
        g.next_flag, g.next_count = g.next_flag + 1, g.next_count + 1
        args = (x, 9, count, g.flags_at + 4 * g.next_flag, int(seconds * 1e9))
        g.launch("early", s, *args, block=64)
        sum_at = g.counts + 4 * g.next_count
        if dependent:
            g.launch_dependent(name, s, x, 9, count, sum_at)
        else:
            g.launch(name, s, x, 9, count, sum_at, block=64)
        g.release(g.next_flag, 0.2)
        g.sync(s)
        return g.count(g.next_count)

    read("differ_late", False, 0)
    r.control(read("differ", False) == 0 and read("differ_late", True) == 0, "a usual launch, and one that waits")
    found = read("differ", True)
    r.fault(found == count, f"{found} stale words")
