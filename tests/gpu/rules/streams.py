"""Trials of streams, events, processes and launches."""

import time

from harness import trial

WORDS = 1 << 20


@trial("stream-order", "without an event", 1, "a read on another stream is stale")
@trial("caller", "input and output", 1, "the caller overwrites an input that a side stream still reads", arms={"": {"reads_first": True}})
def two_streams(r, reads_first=False):
    g = r.gpu
    first, then, x = g.stream(), g.stream(), g.alloc(WORDS)

    def accesses(unordered):
        g.fill(x, 7, WORDS, first)
        g.order(first, then)
        held = g.hold(first)
        kinds = [lambda on: g.fill(x, 9, WORDS, on), lambda on: g.differ(x, 7 if reads_first else 9, WORDS, on)]
        found = [kinds[reads_first](first)]
        if not unordered:
            g.order(first, then)
        found.append(kinds[not reads_first](then))
        g.release(held, 0.2)
        g.sync(first)
        g.sync(then)
        return g.count(found[not reads_first])

    r.compare(accesses, "with an event", WORDS, "stale or overwritten words")


def read_of_peer(r, x, theirs):
    """Reads the memory of the peer behind a barrier of processes, once with `Synchronize` before it."""
    g = r.gpu
    s, other = g.stream(), g.stream()

    def read(at_once):
        g.fill(x, 7, WORDS, s)
        g.sync(s)
        r.barrier(f"{at_once} old")
        held = g.hold(s)
        g.fill(x, 9, WORDS, s)
        if not at_once:
            g.release(held)
            g.sync(s)
        r.barrier(f"{at_once} issued")
        wrong = g.wrong(theirs, 9, WORDS, other)
        r.barrier(f"{at_once} read")
        g.release(held)
        g.sync(s)
        return wrong

    r.compare(read, "the writer synchronises before the barrier", WORDS, "stale words")


@trial("stream-order", "barrier of hosts", 2, "a barrier of processes orders no streams")
def barrier_of_hosts(r):
    x = r.gpu.alloc(WORDS)
    read_of_peer(r, x, r.peer("x", x))


@trial("mapped-views", "symmetric memory", 2, "a view reads the shard before its peer writes it, unless the writer synchronises")
def symmetric_view(r):
    import torch
    import torch.distributed._symmetric_memory as symmetric

    dist, device = r.torch_group()
    shard = symmetric.empty(WORDS, dtype=torch.int32, device=device)
    view = symmetric.rendezvous(shard, dist.group.WORLD)
    read_of_peer(r, shard.data_ptr(), view.get_buffer(1 - r.rank, (WORDS,), torch.int32).data_ptr())


@trial("host-waits", "host reads", 1, "without a synchronisation the host reads the old value; one of another stream does not wait")
def host_reads(r):
    g = r.gpu
    a, b = g.stream(), g.stream()

    def read(stream):
        g.flags[900] = 7
        held = g.hold(a)
        g.fill(g.flags_at + 4 * 900, 9, 1, a)
        if stream == a:
            g.release(held)
        g.sync(stream)
        value = g.flags[900]
        g.release(held, 0.1)
        g.sync(a)
        return value

    r.control(all(read(a) == 9 for _ in range(10)), "10 times")
    found = read(b)
    r.fault(found == 7, f"read {found}")


@trial("visible-writes", "flag of a peer", 2, "behind the wait all words are new; without it they are old")
def flag_of_peer(r, tries=300):
    g = r.gpu
    s, data = g.stream(), g.alloc(WORDS + 1024)
    flag, answer = data + 4 * WORDS, data + 4 * WORDS + 512
    g.fill(data, 0, WORDS + 1024, s)
    g.sync(s)
    flush = 1 << 30 if g.attribute(98) else 0
    r.value("CAN_FLUSH_REMOTE_WRITES", g.attribute(98))
    theirs = r.peer("data", data)
    r.barrier("ready")
    wrong = []
    for it in range(1, tries + 1):
        if r.rank == 0:
            g.call("cuStreamWaitValue32_v2", s, answer, it - 1, flush)
            g.fill(theirs, it, WORDS, s)
            g.call("cuStreamWriteValue32_v2", s, theirs + 4 * WORDS, it, 0)
        else:
            g.call("cuStreamWaitValue32_v2", s, flag, it, flush)
            wrong.append(g.differ(data, it, WORDS, s))
            g.call("cuStreamWriteValue32_v2", s, theirs + 4 * WORDS + 512, it, 0)
    r.control(g.ends(s, 5) is not None and all(g.count(it) == 0 for it in wrong), f"{tries} times with the wait")
    held = g.hold(s) if r.rank == 0 else 0
    if r.rank == 0:
        g.fill(theirs, tries + 1, WORDS, s)
    r.barrier("issued")
    if r.rank == 1:
        early = g.wrong(data, tries + 1, WORDS, s)
        r.fault(early == WORDS, f"without the wait {early} old words")
    g.release(held, 0.3)
    g.sync(s)


@trial("semaphores", "one word", 1, "of two equal values one is lost, and the reader waits forever (protocol of nvFuser, emulated)")
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
    "32 queues": {"CUDA_DEVICE_MAX_CONNECTIONS": 32, "queues": 32},
}


@trial("hardware-queues", "blocked streams", 1, "a stream behind as many blocked ones as there are queues does not run", arms=QUEUES)
def hardware_queues(r, queues):
    g = r.gpu

    def stuck(kind, blocked, others):
        """Returns which of some streams do not run that are created behind blocked ones."""
        streams, held = [g.stream() for _ in range(blocked + others)], g.next_flag + 1
        g.next_flag = held
        for it in streams[:blocked]:
            if kind == "kernel":
                g.launch("hold", it, g.flags_at + 4 * held, int(3e9))
            else:
                g.call("cuStreamWaitValue32_v2", it, g.flags_at + 4 * held, 1, 0)
        # What depends on a blocked stream blocks its queue.
        for it in streams:
            g.launch("hold", it, g.flags_at, 1)
        time.sleep(0.3)
        found = [number for number, it in enumerate(streams[blocked:], 1) if g.ends(it, 0.001) is None]
        g.release(held)
        assert all(g.ends(it, 5) is not None for it in streams)
        return found

    least = {}
    for kind in ("kernel", "wait for a value"):
        r.control(queues == 1 or not stuck(kind, 1, 1), f"one stream, {kind}")
        least[kind] = next((it for it in (1, 4, 7, 8, 9, 16, 31, 32, 33, 64) if stuck(kind, it, 1)), None)
        r.value(f"blocked streams, {kind}", least[kind])
        r.value(f"which of 64 streams behind a blocked one do not run, {kind}", stuck(kind, 1, 64))
    r.fault(all(it == queues for it in least.values()))


@trial("launch-queue", "depth", 1, "a launch blocks the host behind about 1024 launches of its stream", limit=30)
def launch_queue(r, most=6000):
    g = r.gpu
    streams = [g.stream() for _ in range(4)]
    graph = g.capture(streams[0], lambda: g.launch("hold", streams[0], g.flags_at, 1))
    event = g.event(streams[0])
    kinds = {
        "kernels": lambda i: g.launch("hold", streams[0], g.flags_at, 1),
        "kernels on 4 streams": lambda i: g.launch("hold", streams[i % 4], g.flags_at, 1),
        "events": lambda i: g.call("cuEventRecord", event, streams[0]),
        "graphs": lambda i: g.call("cuGraphLaunch", graph, streams[0]),
    }
    for name, issue in kinds.items():
        held, done = g.hold(streams[0], 4), [0]
        for it in streams[1:]:
            g.launch("hold", it, g.flags_at + 4 * held, int(4e9))

        def work():
            for i in range(most):
                issue(i)
                done[0] += 1

        thread, before = g.in_thread(work), -1
        while thread.is_alive() and done[0] != before:
            before = done[0]
            time.sleep(0.3)
        stalled = thread.is_alive()
        if name == "kernels":
            beside = g.stream()
            free = g.in_thread(lambda: g.launch("hold", beside, g.flags_at, 1))
            free.join(0.3)
            r.control(not free.is_alive(), "another stream")
            r.fault(stalled)
        g.release(held)
        thread.join(5)
        for it in streams:
            g.sync(it)
        r.value(name, f"{before} until it blocks" if stalled else done[0])


LOADING = {"lazy": {"CUDA_MODULE_LOADING": "LAZY"}, "eager": {"CUDA_MODULE_LOADING": "EAGER", "provokes": False, "limit": 50}}


@trial("lazy-loading", "first launch", 1, "the first launch of a kernel of a loaded module waits for a kernel that spins", arms=LOADING)
def first_launch(r):
    import torch

    assert r.gpu
    s, x = torch.cuda.Stream(), torch.rand(1000, device="cuda")
    torch.cuda.synchronize()

    def blocks(name, work):
        with torch.cuda.stream(s):
            return r.blocks(name, work, 1.0)

    kernels = {"torch.atan2": lambda: torch.atan2(x, x, out=x), "torch.asinh": lambda: torch.asinh(x, out=x)}
    found = [blocks(f"first {name}", work) for name, work in kernels.items()]
    r.control(not any([blocks(f"second {name}", work) for name, work in kernels.items()]), "kernels that are loaded")
    r.fault(any(found))


@trial("dependent-launch", "without its wait", 1, "a kernel that does not wait reads old values")
def dependent_launch(r):
    g = r.gpu
    s, x, count = g.stream(), g.alloc(1024), 1024

    def read(name, dependent):
        g.fill(x, 7, count, s)
        g.sync(s)
        g.next_flag, g.next_count = g.next_flag + 1, g.next_count + 1
        g.launch("early", s, x, 9, count, g.flags_at + 4 * g.next_flag, int(4e9), block=64)
        g.launch(name, s, x, 9, count, g.counts + 4 * g.next_count, block=64, dependent=dependent)
        g.release(g.next_flag, 0.2)
        g.sync(s)
        return g.count(g.next_count)

    r.control(read("differ_late", True) == 0, "one that waits")
    r.compare(lambda dependent: read("differ", dependent), "a usual launch", count, "stale words")
