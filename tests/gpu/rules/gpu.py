"""The CUDA driver, kernels that spin, and NCCL's C interface, through ctypes. Nothing here calls cuMulticastCreate."""

import ctypes
import glob
import os
import threading
import time
from ctypes import byref, c_int, c_uint32, c_uint64, c_void_p

SOURCE = r"""
typedef unsigned int u32;
typedef unsigned long long u64;
__device__ u64 now() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
__device__ void spin(u64 flag, u64 ns) { u64 t = now(); while (!*(volatile u32*)flag && now() - t < ns) __nanosleep(500); }
// Each thread handles elements at a distance of the whole grid.
#define EACH(i, n) for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (u64)blockDim.x)
// Spins until the flag is set, at most for the time.
extern "C" __global__ void hold(u64 flag, u64 ns) { spin(flag, ns); }
extern "C" __global__ void fill(u64 out, u64 value, u64 n) { EACH(i, n) ((volatile u32*)out)[i] = value; }
extern "C" __global__ void add(u64 out, u64 value, u64 n) { EACH(i, n) ((volatile u32*)out)[i] += value; }
// Counts the elements that differ from a value, or from those of another array.
extern "C" __global__ void differ(u64 in, u64 value, u64 n, u64 sum) { EACH(i, n) if (((volatile u32*)in)[i] != (u32)value) atomicAdd((u32*)sum, 1); }
extern "C" __global__ void unlike(u64 a, u64 b, u64 n, u64 sum) { EACH(i, n) if (((volatile u32*)a)[i] != ((volatile u32*)b)[i]) atomicAdd((u32*)sum, 1); }
// Lets kernels that depend programmatically start, then spins, then writes.
extern "C" __global__ void early(u64 out, u64 value, u64 n, u64 flag, u64 ns) {
    asm volatile("griddepcontrol.launch_dependents;");
    spin(flag, ns);
    EACH(i, n) ((volatile u32*)out)[i] = value;
}
extern "C" __global__ void differ_late(u64 in, u64 value, u64 n, u64 sum) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    EACH(i, n) if (((volatile u32*)in)[i] != (u32)value) atomicAdd((u32*)sum, 1);
}
"""
KERNELS = ["hold", "fill", "add", "differ", "unlike", "early", "differ_late"]


class Failure(Exception):
    """An error code of CUDA or NCCL."""

    def __init__(self, call, code, text=""):
        super().__init__(f"{call}: {code} {text}")
        self.code = code


def library(name, *patterns):
    """Returns a library: the loaded one, or the first file of the patterns."""
    import torch

    site = os.path.dirname(os.path.dirname(torch.__file__))
    found = [file for it in patterns for file in sorted(glob.glob(it.replace("SITE", site)))]
    for it in [name, *found]:
        try:
            return ctypes.CDLL(it)
        except OSError:
            pass
    raise OSError(f"no {name}")


def cubin():
    """Returns the compiled kernels."""
    rtc = library("libnvrtc.so.13", "SITE/nvidia/*/lib/libnvrtc.so.*", "/usr/local/cuda*/lib64/libnvrtc.so.*")
    program, size = c_void_p(), c_uint64()
    rtc.nvrtcCreateProgram(byref(program), SOURCE.encode(), b"rules.cu", 0, None, None)
    code = rtc.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(b"--gpu-architecture=sm_90"))
    if code:
        raise Failure("nvrtcCompileProgram", code)
    rtc.nvrtcGetCUBINSize(program, byref(size))
    data = ctypes.create_string_buffer(size.value)
    rtc.nvrtcGetCUBIN(program, data)
    return data.raw


def words(args):
    """Passes integers as 64 bits: the calling convention of x86-64 ignores what a narrower parameter does not have."""
    return [c_uint64(it) if isinstance(it, int) else it for it in args]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [("sizes", c_uint32 * 7), ("stream", c_void_p), ("attributes", c_void_p), ("count", c_uint32)]


class Gpu:
    """A GPU of this process: streams, memory, and kernels that are loaded before a trial begins."""

    def __init__(self, device):
        import torch

        torch.cuda.set_device(device)
        torch.zeros(1, device="cuda")
        self.device = device
        self.cu = ctypes.CDLL("libcuda.so.1")
        self.context = c_void_p()
        self.call("cuCtxGetCurrent", byref(self.context))
        module, host = c_void_p(), c_void_p()
        self.call("cuModuleLoadData", byref(module), cubin())
        self.kernels = {it: c_void_p() for it in KERNELS}
        for it, kernel in self.kernels.items():
            self.call("cuModuleGetFunction", byref(kernel), module, it.encode())
        self.call("cuMemHostAlloc", byref(host), 4096, 1)
        self.flags = (c_uint32 * 1024).from_address(host.value)
        self.flags_at, self.next_flag = host.value, 0
        self.counts, self.next_count = self.alloc(4096), 0
        self.fill(self.counts, 0, 4096, 0)
        # What is loaded at its first launch must not be loaded while a kernel spins.
        for it in KERNELS:
            self.launch(it, 0, self.flags_at, 0, 0, self.flags_at, 0)
        self.call("cuMemcpyDtoDAsync_v2", self.counts, self.counts + 64, 4, 0)
        self.sync(0)

    def call(self, name, *args):
        code = getattr(self.cu, name)(*words(args))
        if code:
            text = ctypes.c_char_p()
            self.cu.cuGetErrorString(code, byref(text))
            raise Failure(name, code, (text.value or b"").decode())

    def attribute(self, which):
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), which, self.device)
        return value.value

    def alloc(self, count):
        """Returns memory for a number of words."""
        at = c_uint64()
        self.call("cuMemAlloc_v2", byref(at), 4 * count)
        return at.value

    def stream(self):
        it = c_void_p()
        self.call("cuStreamCreate", byref(it), 1)
        return it.value

    def event(self, stream):
        it = c_void_p()
        self.call("cuEventCreate", byref(it), 2)
        self.call("cuEventRecord", it, stream)
        return it.value

    def order(self, first, then):
        """Lets a stream wait for what another one has been given."""
        self.call("cuStreamWaitEvent", then, self.event(first), 0)

    def sync(self, stream):
        self.call("cuStreamSynchronize", stream)

    def ends(self, stream, seconds):
        """Returns after how many seconds a stream has ended, or nothing if it has not."""
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            code = self.cu.cuStreamQuery(c_uint64(stream))
            if code == 0:
                return time.monotonic() - start
            if code != 600:
                raise Failure("cuStreamQuery", code)
            time.sleep(0.001)
        return None

    def launch(self, name, stream, *args, grid=1, block=1, shared=0, dependent=False):
        """Launches a kernel; one that is dependent may start before the one in front of it has ended."""
        values = words(args)
        pointers = (c_void_p * len(values))(*[ctypes.cast(byref(it), c_void_p) for it in values])
        # An attribute: its number, a pad, and its value. CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION is 6.
        attribute = (c_uint32 * 18)(6, 0, 1)
        config = LaunchConfig((c_uint32 * 7)(grid, 1, 1, block, 1, 1, shared), stream, ctypes.addressof(attribute), int(dependent))
        self.call("cuLaunchKernelEx", byref(config), self.kernels[name], pointers, None)

    def fill(self, at, value, count, stream):
        self.launch("fill", stream, at, value, count, grid=min(64, count // 256 + 1), block=256)

    def differ(self, at, value, count, stream):
        """Counts the words that differ from a value. Returns the number of the sum."""
        self.next_count += 1
        self.launch("differ", stream, at, value, count, self.counts + 4 * self.next_count, grid=min(64, count // 256 + 1), block=256)
        return self.next_count

    def count(self, number):
        """Returns a sum. The stream must have ended."""
        return self.read(self.counts + 4 * number)

    def wrong(self, at, value, count, stream):
        """Returns how many words differ from a value behind the work of a stream."""
        number = self.differ(at, value, count, stream)
        self.sync(stream)
        return self.count(number)

    def read(self, at):
        value, stream = c_uint32(), self.stream()
        self.call("cuMemcpyDtoHAsync_v2", byref(value), at, 4, stream)
        self.sync(stream)
        return value.value

    def hold(self, stream, seconds=4.0, grid=1, shared=0):
        """Launches a kernel that spins until `release`, at most for the time. Returns its number."""
        self.next_flag += 1
        if shared:
            self.call("cuFuncSetAttribute", self.kernels["hold"], 8, shared)
        self.launch("hold", stream, self.flags_at + 4 * self.next_flag, int(seconds * 1e9), grid=grid, shared=shared)
        return self.next_flag

    def wait(self, stream):
        """Lets a stream wait until `release`, without a kernel. Returns the number."""
        self.next_flag += 1
        self.call("cuStreamWaitValue32_v2", stream, self.flags_at + 4 * self.next_flag, 1, 0)
        return self.next_flag

    def release(self, number, after=0.0):
        time.sleep(after)
        self.flags[number] = 1

    def in_thread(self, work):
        """Starts a thread that has the context."""

        def run():
            self.call("cuCtxSetCurrent", self.context)
            work()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def capture(self, stream, work):
        """Returns the graph of what `work` gives to a stream, which may wait for others."""
        graph, executable = c_void_p(), c_void_p()
        self.call("cuStreamBeginCapture_v2", stream, 2)
        try:
            work()
        finally:
            code = self.cu.cuStreamEndCapture(c_uint64(stream), byref(graph))
        if code:
            raise Failure("cuStreamEndCapture", code)
        self.call("cuGraphInstantiateWithFlags", byref(executable), graph, 0)
        return executable.value


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Config(ctypes.Structure):
    """The first fields of ncclConfig_t (2.14), which later versions accept."""

    _fields_ = [("size", c_uint64), ("magic", c_uint32), ("version", c_uint32), ("blocking", c_int)]


def nccl():
    return library("libnccl.so.2", "SITE/nvidia/nccl/lib/libnccl.so.2")


class Comm:
    """A communicator of all ranks, of NCCL's C interface. Words are unsigned integers, and reductions sums."""

    def __init__(self, rank, name, blocking=None):
        self.lib, self.handle, self.rank = nccl(), c_void_p(), rank.rank
        identity = UniqueId()
        if rank.rank == 0:
            self.call("ncclGetUniqueId", byref(identity))
            rank.store.set(f"nccl {name}", bytes(identity).hex())
        else:
            identity = UniqueId.from_buffer_copy(bytes.fromhex(rank.store.get(f"nccl {name}").decode()))
        if blocking is None:
            self.call("ncclCommInitRank", byref(self.handle), c_int(rank.ranks), identity, c_int(rank.rank))
        else:
            config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, blocking)
            self.call("ncclCommInitRankConfig", byref(self.handle), c_int(rank.ranks), identity, c_int(rank.rank), byref(config))

    def call(self, name, *args):
        code = getattr(self.lib, name)(*words(args))
        # ncclInProgress is no error.
        if code not in (0, 7):
            raise Failure(name, code)
        return code

    def ready(self, seconds=10.0):
        """Waits until a communicator that does not block is in no state of progress."""
        state, start = c_int(7), time.monotonic()
        while state.value == 7 and time.monotonic() - start < seconds:
            self.call("ncclCommGetAsyncError", self.handle, byref(state))
        return state.value == 0

    def all_reduce(self, source, target, count, stream):
        return self.call("ncclAllReduce", source, target, count, c_int(3), c_int(0), self.handle, stream)

    def all_gather(self, source, target, count, stream):
        return self.call("ncclAllGather", source, target, count, c_int(3), self.handle, stream)

    def broadcast(self, source, target, count, root, stream):
        return self.call("ncclBroadcast", source, target, count, c_int(3), c_int(root), self.handle, stream)

    def send(self, source, count, stream):
        return self.call("ncclSend", source, count, c_int(3), c_int(1 - self.rank), self.handle, stream)

    def receive(self, target, count, stream):
        return self.call("ncclRecv", target, count, c_int(3), c_int(1 - self.rank), self.handle, stream)

    def group(self, *works):
        self.call("ncclGroupStart")
        for work in works:
            work()
        return self.call("ncclGroupEnd")
