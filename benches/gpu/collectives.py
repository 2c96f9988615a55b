"""The collectives in PyTorch and with direct calls of NCCL, in slices of larger tensors.

A call gets the index of a slice. There is one slice, or so many that the L2 cache cannot contain those of the
last calls (compare.sh -c).
"""
import ctypes
import glob
import importlib.util
import os

from timing import NotAvailable


def tensor_at(it, address, count):
    """Returns `count` bf16 elements at an address of GPU memory as a tensor."""

    class Memory:
        __cuda_array_interface__ = {"shape": (count,), "typestr": "<i2", "data": (address, False), "version": 3}

    return it.torch.as_tensor(Memory(), device=it.device).view(it.torch.bfloat16)


class Nccl:
    """A communicator of all ranks, and direct calls of PyTorch's NCCL, as nccl.h declares them."""

    BF16, SUM = 9, 0
    # NCCL_WIN_COLL_SYMMETRIC: the window has the same offsets on all ranks, so NCCL may use its kernels over peer
    # memory.
    SYMMETRIC = 1
    # NCCL_CTA_POLICY_ZERO: copy engines instead of kernels, where NCCL can.
    DEFAULT_POLICY, COPY_ENGINES = 0, 2

    class Config(ctypes.Structure):
        # ncclConfig_t of NCCL 2.28. Later versions append fields, and take those that are missing as undefined.
        UNDEFINED = -(1 << 31)
        _fields_ = [
            ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
            ("blocking", ctypes.c_int), ("cga_cluster_size", ctypes.c_int), ("min_ctas", ctypes.c_int),
            ("max_ctas", ctypes.c_int), ("net_name", ctypes.c_char_p), ("split_share", ctypes.c_int),
            ("traffic_class", ctypes.c_int), ("comm_name", ctypes.c_char_p), ("collnet_enable", ctypes.c_int),
            ("cta_policy", ctypes.c_int), ("shrink_share", ctypes.c_int), ("nvls_ctas", ctypes.c_int),
            ("channels_per_peer", ctypes.c_int), ("nvlink_centric_sched", ctypes.c_int),
        ]

        def __init__(self, policy):
            undefined = {name: self.UNDEFINED for name, kind in self._fields_[3:] if kind is ctypes.c_int}
            undefined.update(size=ctypes.sizeof(self), magic=0xCAFEBEEF, version=22800, cta_policy=policy)
            super().__init__(**undefined)

    def __init__(self, it, policy):
        self.it, self.library = it, ctypes.CDLL("libnccl.so.2")
        identifier = (ctypes.c_char * 128)()
        if it.rank == 0:
            self.call("ncclGetUniqueId", ctypes.byref(identifier))
        told = [bytes(identifier)]
        it.dist.broadcast_object_list(told, device=it.device)

        class Identifier(ctypes.Structure):
            _fields_ = [("internal", ctypes.c_char * 128)]

        self.comm = ctypes.c_void_p()
        identifier, config = Identifier.from_buffer_copy(told[0]), self.Config(policy)
        self.call(
            "ncclCommInitRankConfig", ctypes.byref(self.comm), it.ranks, identifier, it.rank, ctypes.byref(config)
        )

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned {status}")

    def collective(self, name, xs, ys, count, *more):
        """Returns a call on the stream that is current in PyTorch. The call keeps the tensors alive."""
        if not hasattr(self.library, name):
            raise NotAvailable(f"this NCCL has no {name}")

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

        return tensor_at(self.it, address.value, count)


class Nvshmem:
    """NVSHMEM's collectives on streams, as host/nvshmemx_coll_api.h declares them, in its symmetric memory."""

    INIT_WITH_UNIQUEID, TEAM_WORLD = 1 << 3, 0
    # NCCL is measured beside it, so NVSHMEM uses its own kernels. All ranks are on one host.
    ENVIRONMENT = {
        "NVSHMEM_DISABLE_NVLS": "1", "NVSHMEM_DISABLE_NCCL": "1", "NVSHMEM_REMOTE_TRANSPORT": "none",
        "NVSHMEM_SYMMETRIC_SIZE": "16G",
    }

    class UniqueId(ctypes.Structure):
        _fields_ = [("version", ctypes.c_int), ("internal", ctypes.c_char * 124)]

    class InitAttributes(ctypes.Structure):
        # nvshmemx_init_attr_v1 of device_host/nvshmem_types.h. The 128 bytes of arguments begin with their version
        # and, at byte 8, the version of the arguments of the unique identifier.
        _fields_ = [
            ("version", ctypes.c_int), ("mpi_comm", ctypes.c_void_p), ("args_version", ctypes.c_int),
            ("padding", ctypes.c_int), ("uid_version", ctypes.c_int), ("rest", ctypes.c_char * 116),
        ]

    def __init__(self, it):
        os.environ.update(self.ENVIRONMENT)
        package = importlib.util.find_spec("nvidia")
        places = package.submodule_search_locations if package else ()
        found = [path for place in places for path in glob.glob(f"{place}/nvshmem/lib/libnvshmem_host.so.*")]
        if not found:
            raise NotAvailable("NVSHMEM is not installed")
        self.it, self.library = it, ctypes.CDLL(sorted(found)[0], mode=ctypes.RTLD_GLOBAL)
        self.library.nvshmem_malloc.restype = ctypes.c_void_p
        identifier = self.UniqueId(self.version_of(self.UniqueId))
        if it.rank == 0:
            self.call("nvshmemx_get_uniqueid", ctypes.byref(identifier))
        told = [bytes(identifier)]
        it.dist.broadcast_object_list(told, device=it.device)
        self.identifier = self.UniqueId.from_buffer_copy(told[0])
        attributes = self.InitAttributes(self.version_of(self.InitAttributes), None, (1 << 16) + 128, 0, (1 << 16) + 24)
        self.call(
            "nvshmemx_set_attr_uniqueid_args", it.rank, it.ranks, ctypes.byref(self.identifier), ctypes.byref(attributes)
        )
        self.call("nvshmemx_hostlib_init_attr", self.INIT_WITH_UNIQUEID, ctypes.byref(attributes))

    @staticmethod
    def version_of(structure):
        return (1 << 16) + ctypes.sizeof(structure)

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned {status}")

    def tensor(self, slices, count):
        """Returns slices of symmetric memory. They are never freed."""
        address = self.library.nvshmem_malloc(ctypes.c_size_t(2 * slices * count))
        if not address:
            raise RuntimeError("nvshmem_malloc returned no memory")
        return list(tensor_at(self.it, address, slices * count).view(slices, count).unbind())

    def collective(self, name, xs, ys, count):
        """Returns a call on the stream that is current in PyTorch."""
        function = f"nvshmemx_bfloat16_{name}_on_stream"

        def call(index):
            to, source = (ctypes.c_void_p(it.data_ptr()) for it in (ys[index], xs[index]))
            stream = ctypes.c_void_p(self.it.torch.cuda.current_stream().cuda_stream)
            self.call(function, self.TEAM_WORLD, to, source, ctypes.c_size_t(count), stream)

        return call


def measure_nvshmem(it, name, sent, received, count):
    """Measures calls of NVSHMEM. `sent` and `received` are numbers of elements of a rank, `count` is the argument."""

    def make():
        if not hasattr(it, "nvshmem"):
            it.nvshmem = Nvshmem(it)
        xs, ys = (it.nvshmem.tensor(it.case["slices"], elements) for elements in (sent, received))
        for x in xs:
            x.copy_(it.random(sent))
        return it.nvshmem.collective(name, xs, ys, count), ys

    # Its sums of 8 MiB take 100 times as long as NCCL's. Larger sizes are not measured, for all kinds alike.
    if sent <= 4 << 20:
        it.measure("NVSHMEM", make, graph=True)


def nccl_of(it, policy=Nccl.DEFAULT_POLICY):
    if not hasattr(it, "nccl"):
        it.nccl = {}
    if policy not in it.nccl:
        it.nccl[policy] = Nccl(it, policy)
    return it.nccl[policy]


def slices(it, make, count):
    """Returns the slices of a tensor: `make` makes the whole tensor."""
    return list(make(it.case["slices"], count).unbind())


def measure_nccl(it, name, sent, received, count, *more, copy_engines=False):
    """Measures direct calls of NCCL, on plain memory and in symmetric windows. `sent` and `received` are numbers of
    elements of a rank, `count` is the argument. `copy_engines`: whether NCCL can also do it with copy engines."""

    def plain():
        xs, ys = slices(it, it.random, sent), slices(it, it.poisoned, received)
        return nccl_of(it).collective(name, xs, ys, count, *more), ys

    def symmetric(policy):
        def make():
            nccl, parts = nccl_of(it, policy), it.case["slices"]
            whole = nccl.window(parts * sent)
            whole.copy_(it.random(parts * sent))
            xs = list(whole.view(parts, sent).unbind())
            ys = list(nccl.window(parts * received).view(parts, received).unbind())
            return nccl.collective(name, xs, ys, count, *more), ys

        return make

    it.measure("NCCL, called directly", plain, graph=True)
    it.measure("NCCL, symmetric windows", symmetric(Nccl.DEFAULT_POLICY), graph=True)
    if copy_engines:
        it.measure("NCCL, symmetric windows, copy engines", symmetric(Nccl.COPY_ENGINES), graph=True)


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

    measure_nccl(it, "ncclAllGather", part, count, part, copy_engines=True)
    it.measure("PyTorch, NCCL", make, graph=True)
    it.measure("PyTorch, symmetric memory, copy engines", copies, graph=True)
    measure_nvshmem(it, "fcollect", part, count, part)


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

    measure_nccl(it, "ncclAllReduce", count, count, count, Nccl.SUM)
    it.measure("PyTorch, NCCL", make, graph=True)
    if count <= 4 << 20:
        it.measure("PyTorch, symmetric memory, one-shot", one_shot, graph=True)
    it.measure("PyTorch, symmetric memory, two-shot", two_shot, graph=True)
    measure_nvshmem(it, "sum_reduce", count, count, count)


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

    measure_nccl(it, "ncclReduceScatter", count, part, part, Nccl.SUM)
    it.measure("PyTorch, NCCL", make, graph=True)
    it.measure("PyTorch, symmetric memory", kernel, graph=True)
    measure_nvshmem(it, "sum_reducescatter", count, part, part)


def time_all_to_all(it, count):
    def make():
        xs, ys = slices(it, it.random, count), slices(it, it.poisoned, count)
        return lambda index: it.dist.all_to_all_single(ys[index], xs[index]), ys

    measure_nccl(it, "ncclAlltoAll", count, count, count // it.ranks, copy_engines=True)
    it.measure("PyTorch, NCCL", make, graph=True)
    measure_nvshmem(it, "alltoall", count, count, count // it.ranks)


TIMED = {
    "allgather": time_allgather,
    "allreduce": time_allreduce,
    "reduce-scatter": time_reduce_scatter,
    "all-to-all": time_all_to_all,
}
