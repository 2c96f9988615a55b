"""The collectives in PyTorch and with direct calls of NCCL, in slices of larger tensors.

A call gets the index of a slice. There is one slice, or so many that the L2 cache cannot contain those of the
last calls (compare.sh -c).
"""
import ctypes

from timing import NotAvailable


class Nccl:
    """A communicator of all ranks, and direct calls of PyTorch's NCCL, as nccl.h declares them."""

    BF16, SUM = 9, 0
    # NCCL_WIN_COLL_SYMMETRIC: the window has the same offsets on all ranks, so NCCL may use its kernels over peer
    # memory.
    SYMMETRIC = 1

    def __init__(self, it):
        self.it, self.library = it, ctypes.CDLL("libnccl.so.2")
        identifier = (ctypes.c_char * 128)()
        if it.rank == 0:
            self.call("ncclGetUniqueId", ctypes.byref(identifier))
        told = [bytes(identifier)]
        it.dist.broadcast_object_list(told, device=it.device)

        class Identifier(ctypes.Structure):
            _fields_ = [("internal", ctypes.c_char * 128)]

        self.comm = ctypes.c_void_p()
        self.call(
            "ncclCommInitRank", ctypes.byref(self.comm), it.ranks, Identifier.from_buffer_copy(told[0]), it.rank
        )

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned {status}")

    def collective(self, name, xs, ys, count, *more):
        """Returns a call on the stream that is current in PyTorch. The call keeps the tensors alive."""

        def call(index):
            at = [ctypes.c_void_p(it.data_ptr()) for it in (xs[index], ys[index])]
            stream = ctypes.c_void_p(self.it.torch.cuda.current_stream().cuda_stream)
            self.call(name, *at, ctypes.c_size_t(count), self.BF16, *more, self.comm, stream)

        return call

    def window(self, count):
        """Returns a tensor of `count` elements in a symmetric window. It is never freed."""
        if not hasattr(self.library, "ncclCommWindowRegister"):
            raise NotAvailable("this NCCL has no windows")
        address, window = ctypes.c_void_p(), ctypes.c_void_p()
        size = ctypes.c_size_t(2 * count)
        self.call("ncclMemAlloc", ctypes.byref(address), size)
        self.call("ncclCommWindowRegister", self.comm, address, size, ctypes.byref(window), self.SYMMETRIC)
        if not window:
            raise NotAvailable("NCCL registers no symmetric window on this host")

        class Memory:
            __cuda_array_interface__ = {
                "shape": (count,), "typestr": "<i2", "data": (address.value, False), "version": 3,
            }

        return self.it.torch.as_tensor(Memory(), device=self.it.device).view(self.it.torch.bfloat16)


def nccl_of(it):
    if not hasattr(it, "nccl"):
        it.nccl = Nccl(it)
    return it.nccl


def slices(it, make, count):
    """Returns the slices of a tensor: `make` makes the whole tensor."""
    return list(make(it.case["slices"], count).unbind())


def measure_nccl(it, name, sent, received, *more):
    """Measures direct calls of NCCL, on plain memory and in symmetric windows. `sent` and `received` are numbers
    of elements of a rank."""

    def plain():
        xs, ys = slices(it, it.random, sent), slices(it, it.poisoned, received)
        return nccl_of(it).collective(name, xs, ys, min(sent, received), *more), ys

    def symmetric():
        count = it.case["slices"]
        whole = nccl_of(it).window(count * sent)
        whole.copy_(it.random(count * sent))
        xs = list(whole.view(count, sent).unbind())
        ys = list(nccl_of(it).window(count * received).view(count, received).unbind())
        return nccl_of(it).collective(name, xs, ys, min(sent, received), *more), ys

    it.measure("NCCL, called directly", plain, graph=True)
    it.measure("NCCL, symmetric windows", symmetric, graph=True)


def time_allgather(it, count):
    torch, part = it.torch, count // it.ranks

    def make():
        xs, ys = slices(it, it.random, part), slices(it, it.poisoned, count)
        return lambda index: it.dist.all_gather_into_tensor(ys[index], xs[index]), ys

    def copies():
        _, name = it.group()
        xs, last = [it.shared(part) for _ in range(it.case["slices"])], []
        for x in xs:
            x.copy_(it.random(part))

        def call(index):
            y = torch.ops.symm_mem._low_contention_all_gather(xs[index], name)
            last[:] = [torch.ops._c10d_functional.wait_tensor(y)]

        return call, lambda: last

    measure_nccl(it, "ncclAllGather", part, count)
    it.measure("PyTorch, NCCL", make, graph=True)
    it.measure("PyTorch, symmetric memory, copy engines", copies, graph=True)


def time_allreduce(it, count):
    torch = it.torch

    # In place, as in PyTorch, on new data each time, because repeated sums would overflow.
    def make():
        x, y = it.random(it.case["slices"], count), it.poisoned(it.case["slices"], count)
        ys = list(y.unbind())
        return lambda index: it.dist.all_reduce(ys[index]), ys, lambda: y.copy_(x)

    def symmetric():
        _, name = it.group()
        xs = slices(it, it.random, count)
        # A tensor for each slice, because the kernels of a tensor share its signals.
        shared = [it.shared(count) for _ in xs]

        def fill():
            for to, x in zip(shared, xs):
                to.copy_(x)

        return name, shared, fill

    def one_shot():
        name, shared, fill = symmetric()
        last = []

        def call(index):
            last[:] = [torch.ops.symm_mem.one_shot_all_reduce(shared[index], "sum", name)]

        return call, lambda: last, fill

    def two_shot():
        name, shared, fill = symmetric()
        return lambda index: torch.ops.symm_mem.two_shot_all_reduce_(shared[index], "sum", name), shared, fill

    measure_nccl(it, "ncclAllReduce", count, count, Nccl.SUM)
    it.measure("PyTorch, NCCL", make, graph=True)
    if count <= 4 << 20:
        it.measure("PyTorch, symmetric memory, one-shot", one_shot, graph=True)
    it.measure("PyTorch, symmetric memory, two-shot", two_shot, graph=True)


def time_reduce_scatter(it, count):
    torch, part = it.torch, count // it.ranks

    def make():
        xs, ys = slices(it, it.random, count), slices(it, it.poisoned, part)
        return lambda index: it.dist.reduce_scatter_tensor(ys[index], xs[index]), ys

    def kernel():
        if not hasattr(torch.ops.symm_mem, "reduce_scatter_out"):
            raise NotAvailable("this PyTorch has no reduce_scatter_out")
        _, name = it.group()
        xs, ys = [it.shared(count) for _ in range(it.case["slices"])], slices(it, it.poisoned, part)
        for x in xs:
            x.copy_(it.random(count))
        return lambda index: torch.ops.symm_mem.reduce_scatter_out(xs[index], name, False, ys[index]), ys

    measure_nccl(it, "ncclReduceScatter", count, part, Nccl.SUM)
    it.measure("PyTorch, NCCL", make, graph=True)
    it.measure("PyTorch, symmetric memory", kernel, graph=True)


def time_all_to_all(it, count):
    def make():
        xs, ys = slices(it, it.random, count), slices(it, it.poisoned, count)
        return lambda index: it.dist.all_to_all_single(ys[index], xs[index]), ys

    def nvshmem():
        # PyTorch has an all-to-all in symmetric memory for this backend only, and a process has one backend.
        raise NotAvailable("the other measurements use the backend CUDA of symmetric memory")

    it.measure("PyTorch, NCCL", make, graph=True)
    it.measure("PyTorch, NVSHMEM", nvshmem)


TIMED = {
    "allgather": time_allgather,
    "allreduce": time_allreduce,
    "reduce-scatter": time_reduce_scatter,
    "all-to-all": time_all_to_all,
}
