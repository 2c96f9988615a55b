"""Trials of PyTorch's allocator with recorded streams and captures, and of the signal pads of its symmetric memory."""

from harness import trial
from memory import WORDS, tensor


@trial("recorded-streams", "free behind the recorded stream", 1, "a block is reused only once the recorded stream has ended its work", provokes=False)
def recorded(r, tries=5):
    import torch

    g, early = r.gpu, 0
    main, side = torch.cuda.Stream(), torch.cuda.Stream()

    def free(records):
        """Returns whether the block is reused while a kernel of `side` spins, and afterwards."""
        with torch.cuda.stream(main):
            x = tensor()
            held = g.hold(side.cuda_stream)
            if records:
                x.record_stream(side)
            at = x.data_ptr()
            del x
            y = tensor()
            before = y.data_ptr() == at
            g.release(held)
            torch.cuda.synchronize()
            z = tensor()
            after = z.data_ptr() == at
        return before, after

    free(True)
    r.control(free(False)[0], "without record_stream the block is reused at once")
    for _ in range(tries):
        before, after = free(True)
        early += before
        r.control(after, "the block is reused afterwards")
    r.fault(early, f"{early} reused", tries)


@trial("recorded-streams", "free in a capture", 1, "a capture does not reuse a block with a recorded stream", provokes=False)
def recorded_in_capture(r):
    import torch

    def captured(records):
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream()
            x = tensor()
            x.fill_(7)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                x.add_(1)
            if records:
                x.record_stream(side)
            main.wait_stream(side)
            at = x.data_ptr()
            del x
            y = tensor()
            y.fill_(9)
            same = y.data_ptr() == at
        graph.replay()
        torch.cuda.synchronize()
        return same

    r.control(captured(False), "without record_stream the block is reused in the capture")
    r.fault(captured(True))


@trial("captured-works", "work that is dropped", 2, "a capture reuses the operand of a communication whose work is dropped without a wait")
def dropped_work(r):
    import torch

    dist, device = r.torch_group()
    out, other = tensor(2 * WORDS), tensor(1024)
    dist.all_gather_into_tensor(out, tensor())
    dist.all_reduce(other)
    torch.cuda.synchronize()

    def captured(waits):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            x = tensor()
            x.fill_(7)
            work = dist.all_gather_into_tensor(out, x, async_op=True)
            at = x.data_ptr()
            del x
            if not waits:
                del work
            y = tensor()
            y.fill_(9)
            same = y.data_ptr() == at
            if waits:
                work.wait()
            dist.all_reduce(other)
        r.barrier(f"captured {waits}")
        graph.replay()
        torch.cuda.synchronize()
        return same

    r.control(not captured(True), "a work that is awaited later keeps its operand")
    r.fault(captured(False))


@trial(
    "signal-pads",
    "two streams",
    2,
    "two one-shot all-reduces of a group on two streams take each other's signals, if their tensors are of one allocation",
    arms={"of one allocation": {"allocations": 1}, "of two allocations": {"allocations": 2, "provokes": False}},
)
def pads(r, allocations):
    import torch
    import torch.distributed._symmetric_memory as symmetric

    dist, device = r.torch_group()
    g, group, words = r.gpu, dist.group.WORLD.group_name, 1024
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    blocks = [symmetric.empty(2 * words, dtype=torch.float32, device=device) for _ in range(allocations)]
    for it in blocks:
        symmetric.rendezvous(it, group)
    inputs = blocks[0][:words], blocks[-1][words:]

    def reduce(name, orders):
        """Returns the number of wrong sums, with rank 0's second stream and rank 1's first one late."""
        for it in blocks:
            it.zero_()
        torch.cuda.synchronize()
        r.barrier(name)
        results = []
        late = 0 if orders else 1 - r.rank
        held = g.hold(streams[late].cuda_stream, 2)
        for at, stream in enumerate(streams):
            if orders and at:
                stream.wait_stream(streams[0])
            with torch.cuda.stream(stream):
                inputs[at].fill_((at + 1) * (r.rank + 1))
                results.append(torch.ops.symm_mem.one_shot_all_reduce(inputs[at], "sum", group))
        g.release(held, 0.3)
        torch.cuda.synchronize()
        return sum(int((it != 3 * (at + 1)).sum()) for at, it in enumerate(results))

    r.control(reduce("warm", True) == 0 and reduce("ordered", True) == 0, "the second stream waits for the first one")
    with r.watch(8, "the ranks wait for each other"):
        found = reduce("unordered", False)
    r.store.set(f"found {r.rank}", str(found))
    found = sum(int(r.store.get(f"found {rank}")) for rank in (0, 1))
    r.fault(found, f"{found} wrong sums")
