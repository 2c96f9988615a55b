"""Trials of allocators, frees and what keeps memory."""

import ctypes
import time

from harness import trial

WORDS = 1 << 22


def tensor(words=WORDS):
    import torch

    return torch.empty(words, dtype=torch.int32, device="cuda")


def spare():
    """Lets the allocator have blocks, so that it calls no cudaMalloc while a kernel spins."""
    kept = [tensor() for _ in range(6)]
    kept.clear()


@trial("blocks", "reuse without record_stream", 1, "a new tensor has the storage that a side stream still reads", "the block is kept")
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
        small = tensor(1024)
        y = tensor()
        g.fill(y.data_ptr(), 9, WORDS, main.cuda_stream)
        same = y.data_ptr() == at
        pools = [elsewhere.data_ptr() != at, not at <= small.data_ptr() < at + 4 * WORDS]
        g.release(held, 0.2)
        torch.cuda.synchronize()
        return same, g.count(wrong), pools

    read(True)
    same, wrong, pools = read(True)
    r.control(not same and wrong == 0 and all(pools), "record_stream; pools by stream and size")
    same, wrong, pools = read(False)
    r.fault(same and wrong == WORDS, f"same block: {same}, {wrong} overwritten words; pools by stream and size: {pools}")


@trial("blocks", "two MemPools", 1, "a pool of its own gets no block of the default pool", "the block of the other pool", provokes=False)
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


def late_gather(r, dist, out, x, late):
    """Posts an all-gather. With `late`, rank 1 posts it later, and rank 0 goes on at once."""
    if r.rank == 1:
        time.sleep(late)
    return dist.all_gather_into_tensor(out, x, async_op=True)


@trial("held-operands", "pending work", 2, "operands of a work that nobody waited for are not reused while it runs", "their block is reused", provokes=False)
def pending(r, tries=5):
    dist, device = r.torch_group(eager=True)
    g, out = r.gpu, tensor(2 * WORDS)
    spare()
    late_gather(r, dist, out, tensor(), 0).wait()
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
        work, at = late_gather(r, dist, out, x, 0.3), x.data_ptr()
        del x
        y = tensor()
        reused += y.data_ptr() == at
        g.fill(y.data_ptr(), 99, WORDS, s)
        work.wait()
        g.sync(0)
        counts = [g.differ(out.data_ptr() + 4 * WORDS * rank, 7 + rank, WORDS, 0) for rank in (0, 1)]
        g.sync(0)
        wrong += sum(map(g.count, counts))
        g.sync(s)
        del y
    r.fault(reused or wrong, f"{reused} reused, {wrong} wrong words", tries)


@trial("held-operands", "watchdog, then the next call", 2, "operands are freed in the next call behind the end of the work, though a side stream reads them", "kept until a wait")
def watchdog(r):
    import torch

    dist, device = r.torch_group(eager=True)
    g, out, other = r.gpu, tensor(2 * WORDS), tensor(1024)
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    spare()
    late_gather(r, dist, out, tensor(), 0).wait()
    dist.all_reduce(other)
    torch.cuda.synchronize()

    def read(name, keeps):
        x = tensor()
        g.fill(x.data_ptr(), 7, WORDS, main.cuda_stream)
        side.wait_stream(main)
        r.barrier(f"{name} begin")
        work = late_gather(r, dist, out, x, 0)
        held = g.hold(side.cuda_stream, 6)
        wrong = g.differ(x.data_ptr(), 7, WORDS, side.cuda_stream)
        at, kept = x.data_ptr(), x if keeps else None
        del x
        end = time.monotonic() + 3
        while not work.is_completed() and time.monotonic() < end:
            time.sleep(0.01)
        before = tensor()
        early = before.data_ptr() == at
        if early:
            g.fill(at, 9, WORDS, main.cuda_stream)
        time.sleep(1)
        dist.all_reduce(other)
        y = tensor()
        same = y.data_ptr() == at
        g.fill(y.data_ptr(), 9, WORDS, main.cuda_stream)
        g.release(held, 0.2)
        torch.cuda.synchronize()
        del kept
        return early, same, g.count(wrong)

    early, same, wrong = read("kept", True)
    r.control(not early and not same and wrong == 0, "the program keeps the tensor")
    early, same, wrong = read("freed", False)
    r.fault((early or same) and wrong == WORDS, f"freed before the next call: {early}, by it: {same}, {wrong} overwritten words")


@trial("stream-ordered-frees", "cuMemAllocAsync", 1, "a free on the stream of the allocation that does not follow a use lets the next allocation overwrite it", "the use is right")
def free_async(r):
    g = r.gpu
    a, b = g.stream(), g.stream()

    def allocate():
        at = ctypes.c_uint64()
        g.call("cuMemAllocAsync", ctypes.byref(at), 4 * WORDS, a)
        return at.value

    def use(joins):
        x = allocate()
        g.fill(x, 7, WORDS, a)
        g.order(a, b)
        held = g.hold(b)
        wrong = g.differ(x, 7, WORDS, b)
        if joins:
            g.order(b, a)
        g.call("cuMemFreeAsync", x, a)
        y = allocate()
        g.fill(y, 9, WORDS, a)
        g.call("cuMemFreeAsync", y, a)
        g.release(held, 0.2)
        g.sync(a)
        g.sync(b)
        return x == y, g.count(wrong)

    use(True)
    same, wrong = use(True)
    r.control(wrong == 0, f"the free follows the use; same memory: {same}")
    same, wrong = use(False)
    r.fault(wrong == WORDS, f"same memory: {same}, {wrong} overwritten words")


class Mapped:
    """Memory of CUDA's virtual memory management."""

    def __init__(self, g, size=1 << 25):
        self.g, self.size, self.handle, self.at = g, size, ctypes.c_uint64(), ctypes.c_uint64()

    def create(self):
        prop = (ctypes.c_int * 8)(1, 0, 1, self.g.device, 0, 0, 0, 0)
        self.g.call("cuMemCreate", ctypes.byref(self.handle), self.size, prop, 0)

    def reserve(self):
        self.g.call("cuMemAddressReserve", ctypes.byref(self.at), self.size, 0, 0, 0)

    def map(self):
        self.g.call("cuMemMap", self.at.value, self.size, 0, self.handle.value, 0)

    def access(self):
        self.g.call("cuMemSetAccess", self.at.value, self.size, (ctypes.c_int * 3)(1, self.g.device, 3), 1)

    def unmap(self):
        self.g.call("cuMemUnmap", self.at.value, self.size)

    def release(self):
        self.g.call("cuMemRelease", self.handle.value)


@trial("symmetric-memory", "calls while a kernel spins", 1, "cudaMalloc and cudaFree wait for all streams (m34)", "they return at once", limit=40)
def calls_block(r):
    import torch

    g = r.gpu
    s, size = g.stream(), 1 << 25
    mapped, at, host, it = Mapped(g), ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p()
    pageable, word = ctypes.create_string_buffer(1 << 22), ctypes.c_uint32(7)
    small, pool, keep = g.alloc(1 << 20), ctypes.c_uint64(), []
    calls = {
        "cuStreamQuery": lambda: g.cu.cuStreamQuery(ctypes.c_uint64(s)),
        "cuMemAlloc": lambda: g.call("cuMemAlloc_v2", ctypes.byref(at), size),
        "cuMemFree": lambda: g.call("cuMemFree_v2", at.value),
        "cuMemHostAlloc": lambda: g.call("cuMemHostAlloc", ctypes.byref(host), size, 1),
        "cuMemFreeHost": lambda: g.call("cuMemFreeHost", host),
        "cuMemCreate": mapped.create,
        "cuMemAddressReserve": mapped.reserve,
        "cuMemMap": mapped.map,
        "cuMemSetAccess": mapped.access,
        "cuMemUnmap": mapped.unmap,
        "cuMemRelease": mapped.release,
        "cuMemAllocAsync (first)": lambda: g.call("cuMemAllocAsync", ctypes.byref(pool), size, s),
        "cuMemFreeAsync": lambda: g.call("cuMemFreeAsync", pool.value, s),
        "cuMemcpyHtoD 4 MiB": lambda: g.call("cuMemcpyHtoD_v2", small, pageable, 1 << 22),
        "cuMemcpyDtoH 4 B": lambda: g.call("cuMemcpyDtoH_v2", ctypes.byref(word), small, 4),
        "cuStreamCreate": lambda: g.call("cuStreamCreate", ctypes.byref(it), 1),
        "cuStreamDestroy": lambda: g.call("cuStreamDestroy_v2", it),
        "torch.empty 1 GiB": lambda: keep.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda")),
        "del, empty_cache": lambda: (keep.clear(), torch.cuda.empty_cache()),
        "cuCtxSynchronize": lambda: g.call("cuCtxSynchronize"),
    }
    blocked = {}
    for name, call in calls.items():
        r.stage(name)
        spent, error = g.blocked_by_kernel(call)
        blocked[name] = spent > 0.3
        r.value(name, error or ("blocks" if spent > 0.3 else round(spent, 3)))
    r.control(blocked["cuCtxSynchronize"] and not blocked["cuStreamQuery"], "cuCtxSynchronize blocks, cuStreamQuery does not")
    r.fault(blocked["cuMemAlloc"] or blocked["cuMemFree"] or blocked["cuMemSetAccess"] or blocked["cuMemUnmap"])


@trial("symmetric-memory", "unmap while a kernel reads", 1, "cuMemUnmap does not wait: the kernel faults", "it waits for the kernel", provokes=None, faults=True)
def unmap_while_read(r):
    g = r.gpu
    s, count = g.stream(), 1 << 20

    def read(name, waits):
        mapped = Mapped(g)
        for step in (mapped.create, mapped.reserve, mapped.map, mapped.access):
            step()
        g.fill(mapped.at.value, 7, count, s)
        g.sync(s)
        g.hold(s, 1.0)
        wrong = g.differ(mapped.at.value, 7, count, s)
        if waits:
            g.sync(s)
        start = time.monotonic()
        mapped.unmap()
        mapped.release()
        r.value(f"{name}, seconds of cuMemUnmap", time.monotonic() - start)
        g.sync(s)
        return g.count(wrong)

    r.control(read("the host waits", True) == 0, "the host waits for the kernel before")
    try:
        wrong = read("at once", False)
        r.fault(wrong != 0, f"{wrong} wrong words")
    except Exception as error:
        r.fault(True, str(error))


@trial("symmetric-memory", "PyTorch, while a kernel spins", 2, "allocation and rendezvous of symmetric memory wait for the streams of the GPU", "they return at once", limit=25)
def torch_symmetric(r):
    import torch
    import torch.distributed._symmetric_memory as symmetric

    dist, device = r.torch_group(eager=True)
    g, kept = r.gpu, []
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
            found[name], error = g.blocked_by_kernel(it, 1.0)
            assert not error, error
        else:
            start = time.monotonic()
            it()
            found[name] = time.monotonic() - start
        r.value(name, "blocks" if found[name] > 0.8 else round(found[name], 3))
    r.barrier("control")
    torch.cuda.synchronize()
    start = time.monotonic()
    for it in steps.values():
        it()
    r.control(time.monotonic() - start < 0.8, "without a kernel that spins")
    if r.rank == 0:
        r.fault(any(it > 0.8 for it in found.values()))


@trial("unwritten", "torch.empty", 1, "a new tensor has the elements of a freed one", "zeros, or other defined values")
def unwritten(r):
    import torch

    g, kept = r.gpu, []
    for zero in (True, False):
        x = tensor()
        g.fill(x.data_ptr(), 7, WORDS, 0)
        torch.cuda.synchronize()
        del x
        y = torch.zeros(WORDS, dtype=torch.int32, device="cuda") if zero else tensor()
        torch.cuda.synchronize()
        old = g.differ(y.data_ptr(), 0 if zero else 7, WORDS, 0)
        g.sync(0)
        kept.append(g.count(old))
        del y
    r.control(kept[0] == 0, "torch.zeros")
    r.fault(kept[1] == 0, f"{WORDS - kept[1]} old words")
