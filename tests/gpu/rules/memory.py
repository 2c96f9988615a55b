"""Trials of allocators, frees and what keeps memory."""

import ctypes
import time

from gpu import Failure
from harness import trial

WORDS = 1 << 22


def tensor(words=WORDS):
    import torch

    return torch.empty(words, dtype=torch.int32, device="cuda")


def spare():
    """Lets the allocator have blocks, so that it calls no cudaMalloc while a kernel spins."""
    kept = [tensor() for _ in range(6)]
    kept.clear()


@trial("blocks", "reuse without record_stream", 1, "a new tensor has the storage that a side stream still reads")
def reuse(r):
    import torch

    g = r.gpu
    main, side, other = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()

    def read(records):
        x = tensor()
        g.fill(x.data_ptr(), 7, WORDS, main.cuda_stream)
        side.wait_stream(main)
        held = g.hold(side.cuda_stream)
        wrong = g.differ(x.data_ptr(), 7, WORDS, side.cuda_stream)
        if records:
            x.record_stream(side)
        at = x.data_ptr()
        # The stream on which a tensor was allocated gets its block, whichever one is current at the free.
        with torch.cuda.stream(other):
            del x
            elsewhere = tensor()
        small, y = tensor(1024), tensor()
        g.fill(y.data_ptr(), 9, WORDS, main.cuda_stream)
        pools = elsewhere.data_ptr() != at and not at <= small.data_ptr() < at + 4 * WORDS
        same = y.data_ptr() == at
        g.release(held, 0.2)
        torch.cuda.synchronize()
        return same, g.count(wrong), pools

    read(True)
    r.control(read(True) == (False, 0, True), "record_stream; pools by stream and size")
    same, wrong, pools = read(False)
    r.fault(same and wrong == WORDS and pools, f"same block: {same}, {wrong} overwritten words; pools by stream and size: {pools}")


@trial("blocks", "two MemPools", 1, "a pool of its own gets no block of the default pool", provokes=False)
def pools(r, tries=20):
    import torch

    pool, mixed, same = torch.cuda.MemPool(), 0, 0
    for _ in range(tries):
        x = tensor()
        at = x.data_ptr()
        del x
        with torch.cuda.use_mem_pool(pool):
            y = tensor()
        mixed += y.data_ptr() == at
        del y
        z = tensor()
        same += z.data_ptr() == at
        del z
    r.control(same == tries, "the default pool reuses its own block")
    r.fault(mixed > 0, tries=tries)


@trial("held-operands", "pending work", 2, "operands of a work that nobody waited for are not reused while it runs", provokes=False)
def pending(r, tries=5):
    dist, device = r.torch_group()
    g, out = r.gpu, tensor(2 * WORDS)
    spare()
    dist.all_gather_into_tensor(out, tensor())
    x = tensor()
    at = x.data_ptr()
    del x
    y = tensor()
    r.control(y.data_ptr() == at, "without a communication the block is reused")
    del y
    reused = wrong = 0
    s = g.stream()
    for it in range(tries):
        x = tensor()
        g.fill(x.data_ptr(), 7 + r.rank, WORDS, 0)
        g.sync(0)
        r.barrier(f"try {it}")
        time.sleep(0.3 * r.rank)
        work, at = dist.all_gather_into_tensor(out, x, async_op=True), x.data_ptr()
        del x
        y = tensor()
        reused += y.data_ptr() == at
        g.fill(y.data_ptr(), 99, WORDS, s)
        work.wait()
        wrong += sum(g.wrong(out.data_ptr() + 4 * WORDS * rank, 7 + rank, WORDS, 0) for rank in (0, 1))
        g.sync(s)
        del y
    r.fault(reused or wrong, f"{reused} reused, {wrong} wrong words", tries)


@trial("held-operands", "watchdog, then the next call", 2, "operands are freed in the next call behind the end of the work, though a side stream reads them")
def watchdog(r):
    import torch

    dist, device = r.torch_group()
    g, out, other = r.gpu, tensor(2 * WORDS), tensor(1024)
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    spare()
    dist.all_gather_into_tensor(out, tensor())
    dist.all_reduce(other)
    torch.cuda.synchronize()

    def read(frees):
        x = tensor()
        g.fill(x.data_ptr(), 7, WORDS, main.cuda_stream)
        side.wait_stream(main)
        r.barrier(f"begin {frees}")
        work = dist.all_gather_into_tensor(out, x, async_op=True)
        held = g.hold(side.cuda_stream, 6)
        wrong = g.differ(x.data_ptr(), 7, WORDS, side.cuda_stream)
        at, kept = x.data_ptr(), None if frees else x
        del x
        end = time.monotonic() + 3
        while not work.is_completed() and time.monotonic() < end:
            time.sleep(0.01)
        before = tensor()
        early = before.data_ptr() == at
        time.sleep(1)
        dist.all_reduce(other)
        y = tensor()
        same = y.data_ptr() == at
        g.fill(y.data_ptr(), 9, WORDS, main.cuda_stream)
        g.release(held, 0.2)
        torch.cuda.synchronize()
        del kept
        return early, same, g.count(wrong)

    r.control(read(False) == (False, False, 0), "the program keeps the tensor")
    early, same, wrong = read(True)
    r.fault(same and wrong == WORDS, f"freed before the next call: {early}, by it: {same}, {wrong} overwritten words")


@trial("stream-ordered-frees", "cuMemAllocAsync", 1, "a free on the stream of the allocation that does not follow a use lets the next allocation overwrite it")
def free_async(r):
    g = r.gpu
    a, b = g.stream(), g.stream()

    def allocate():
        at = ctypes.c_uint64()
        g.call("cuMemAllocAsync", ctypes.byref(at), 4 * WORDS, a)
        return at.value

    def use(early):
        x = allocate()
        g.fill(x, 7, WORDS, a)
        g.order(a, b)
        held = g.hold(b)
        wrong = g.differ(x, 7, WORDS, b)
        if not early:
            g.order(b, a)
        g.call("cuMemFreeAsync", x, a)
        y = allocate()
        r.value(f"same memory, {early}", x == y)
        g.fill(y, 9, WORDS, a)
        g.release(held, 0.2)
        # A synchronisation unmaps what is free, so `y` keeps the memory until the use has ended.
        g.sync(b)
        g.call("cuMemFreeAsync", y, a)
        g.sync(a)
        return g.count(wrong)

    r.compare(use, "the free follows the use", WORDS, "overwritten words")


def mapped(g, size=1 << 25):
    """Returns the address of memory of CUDA's virtual memory management, and the calls that make and end it."""
    handle, at, place = ctypes.c_uint64(), ctypes.c_uint64(), (ctypes.c_int * 8)(1, 0, 1, g.device, 0, 0, 0, 0)
    return at, {
        "cuMemCreate": lambda: g.call("cuMemCreate", ctypes.byref(handle), size, place, 0),
        "cuMemAddressReserve": lambda: g.call("cuMemAddressReserve", ctypes.byref(at), size, 0, 0, 0),
        "cuMemMap": lambda: g.call("cuMemMap", at.value, size, 0, handle.value, 0),
        "cuMemSetAccess": lambda: g.call("cuMemSetAccess", at.value, size, (ctypes.c_int * 3)(1, g.device, 3), 1),
        "cuMemUnmap": lambda: g.call("cuMemUnmap", at.value, size),
        "cuMemRelease": lambda: g.call("cuMemRelease", handle.value),
    }


@trial("symmetric-memory", "calls while a kernel spins", 1, "cudaFree waits for all streams (m34); virtual memory management does not", limit=40)
def calls_block(r):
    import torch

    g = r.gpu
    s, size, at, pool, keep = g.stream(), 1 << 25, ctypes.c_uint64(), ctypes.c_uint64(), []
    calls = {
        "cuStreamQuery": lambda: g.cu.cuStreamQuery(ctypes.c_uint64(s)),
        "cuMemAlloc": lambda: g.call("cuMemAlloc_v2", ctypes.byref(at), size),
        "cuMemFree": lambda: g.call("cuMemFree_v2", at.value),
        **mapped(g)[1],
        "cuMemAllocAsync (first)": lambda: g.call("cuMemAllocAsync", ctypes.byref(pool), size, s),
        "cuMemFreeAsync": lambda: g.call("cuMemFreeAsync", pool.value, s),
        "torch.empty 1 GiB": lambda: keep.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda")),
        "del, empty_cache": lambda: (keep.clear(), torch.cuda.empty_cache()),
        "cuCtxSynchronize": lambda: g.call("cuCtxSynchronize"),
    }
    blocked = {name: r.blocks(name, call) for name, call in calls.items()}
    r.control(blocked["cuCtxSynchronize"] and not blocked["cuStreamQuery"], "cuCtxSynchronize blocks, cuStreamQuery does not")
    r.control(not blocked["cuMemSetAccess"] and not blocked["cuMemUnmap"], "virtual memory management")
    r.fault(blocked["cuMemFree"])


@trial("symmetric-memory", "allocation while a kernel spins", 1, "CUDA's guide lets cudaMalloc wait for all streams (m34)", provokes=None, limit=30)
def allocation_blocks(r):
    g, at = r.gpu, ctypes.c_uint64()
    r.control(r.blocks("cuCtxSynchronize", lambda: g.call("cuCtxSynchronize")), "cuCtxSynchronize blocks")
    sizes = [1 << it for it in range(8, 36, 3)]
    found = [r.blocks(f"{size} bytes", lambda: g.call("cuMemAlloc_v2", ctypes.byref(at), size)) for size in sizes]
    r.fault(any(found), tries=len(found))


@trial("symmetric-memory", "unmap while a kernel reads", 1, "cuMemUnmap does not wait: the kernel faults", faults=True)
def unmap_while_read(r):
    g = r.gpu
    s, count = g.stream(), 1 << 20

    def read(waits):
        at, calls = mapped(g)
        for name in ("cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"):
            calls[name]()
        g.fill(at.value, 7, count, s)
        g.sync(s)
        g.hold(s, 1.0)
        wrong = g.differ(at.value, 7, count, s)
        if waits:
            g.sync(s)
        calls["cuMemUnmap"]()
        calls["cuMemRelease"]()
        g.sync(s)
        return g.count(wrong)

    r.control(read(True) == 0, "the host waits for the kernel before")
    try:
        wrong = read(False)
        r.fault(wrong != 0, f"{wrong} wrong words")
    except Failure as error:
        r.fault(True, str(error))


@trial("symmetric-memory", "PyTorch, while a kernel spins", 2, "PyTorch's free of symmetric memory waits for the streams of the GPU, allocation and rendezvous do not", limit=25)
def torch_symmetric(r):
    import torch
    import torch.distributed._symmetric_memory as symmetric

    dist, device = r.torch_group()
    kept = []
    steps = {
        "empty": lambda: kept.append(symmetric.empty(WORDS, dtype=torch.int32, device=device)),
        "rendezvous": lambda: kept.append(symmetric.rendezvous(kept[0], dist.group.WORLD)),
        "free": lambda: (kept.clear(), torch.cuda.empty_cache()),
    }
    for it in steps.values():
        it()
    torch.cuda.synchronize()
    found = {}
    for name, it in steps.items():
        r.barrier(f"step {name}")
        if r.rank == 0:
            found[name] = r.blocks(name, it, 1.0)
        else:
            it()
    if r.rank == 0:
        r.control(not found["empty"] and not found["rendezvous"], "allocation and rendezvous")
        r.fault(found["free"])


@trial("unwritten", "torch.empty", 1, "a new tensor has the elements of a freed one")
def unwritten(r):
    import torch

    g = r.gpu

    def old_words(empty):
        x = tensor()
        g.fill(x.data_ptr(), 7, WORDS, 0)
        torch.cuda.synchronize()
        del x
        y = tensor() if empty else torch.zeros(WORDS, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        return g.wrong(y.data_ptr(), 0, WORDS, 0)

    r.compare(old_words, "torch.zeros", WORDS)
