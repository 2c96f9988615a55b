"""The layers in PyTorch. Every call gets the index of a slice, which layers do not use."""
import block


def fused_gather(it, a, b):
    """Returns a call of PyTorch's fused all-gather + matmul, and its result."""
    symmetric, name = it.group()
    shared = symmetric.empty(*a.shape, device=it.device, dtype=a.dtype)
    shared.copy_(a)
    last = []

    def call(_):
        last[:] = it.torch.ops.symm_mem.fused_all_gather_matmul(shared, [b.t()], 0, name, return_A=False)[1]

    return call, lambda: last


def fused_scatter(it, a, b):
    """Returns a call of PyTorch's fused matmul + reduce-scatter, and its result."""
    _, name = it.group()
    last = []

    def call(_):
        last[:] = [it.torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b.t(), "sum", 0, name)]

    return call, lambda: last


def time_product(it, m, n, k):
    """Measures a matrix product, without communication."""

    def matmul():
        a, b, c = it.random(m, k), it.random(n, k), it.poisoned(m, n)
        return lambda _: it.torch.mm(a, b.t(), out=c), [c]

    it.measure("matmul only", matmul, graph=True)


def time_gather(it, m, n, k):
    """Measures all-gather + product of n rows of B on each rank."""
    torch, dist, d = it.torch, it.dist, it.ranks

    def gather():
        a, whole = it.random(m // d, k), it.poisoned(m, k)
        return lambda _: dist.all_gather_into_tensor(whole, a), [whole]

    def separate():
        a, b = it.random(m // d, k), it.random(n, k)
        whole, c = it.poisoned(m, k), it.poisoned(m, n)

        def call(_):
            dist.all_gather_into_tensor(whole, a)
            torch.mm(whole, b.t(), out=c)

        return call, [c]

    time_product(it, m, n, k)
    it.measure("all-gather only, NCCL", gather)
    it.measure("PyTorch, NCCL", separate, graph=True)
    it.measure("PyTorch, symmetric memory", lambda: fused_gather(it, it.random(m // d, k), it.random(n, k)), graph=True)


def time_summed(it, m, n, k, chunk_counts):
    """Measures product + all-reduce, with the rows in chunks."""
    torch, dist, part = it.torch, it.dist, k // it.ranks

    def operands():
        return it.random(m, part), it.random(n, part)

    def reduce():
        x, y = it.random(m, n), it.poisoned(m, n)
        return lambda _: dist.all_reduce(y), [y], lambda: y.copy_(x)

    def nccl(chunks):
        def make():
            (x, w), y = operands(), it.poisoned(m, n)
            pool = [torch.cuda.Stream() for _ in range(chunks)]

            def call(_):
                current = torch.cuda.current_stream()
                if chunks == 1:
                    torch.mm(x, w.t(), out=y)
                    dist.all_reduce(y)
                    return
                for stream, rows, out in zip(pool, x.chunk(chunks), y.chunk(chunks)):
                    stream.wait_stream(current)
                    with torch.cuda.stream(stream):
                        torch.mm(rows, w.t(), out=out)
                        dist.all_reduce(out, async_op=True).wait()
                for stream in pool:
                    current.wait_stream(stream)

            return call, [y]

        return make

    def two_shot(chunks):
        """The products on one stream, and PyTorch's two-shot kernels on another one."""

        def make():
            x, w = operands()
            _, name = it.group()
            # A tensor for each chunk, because the kernels of a tensor share its signals.
            parts = [it.shared(m // chunks, n) for _ in range(chunks)]
            side, done = torch.cuda.Stream(), [torch.cuda.Event() for _ in range(chunks)]

            def call(_):
                current = torch.cuda.current_stream()
                stream = side if chunks > 1 else current
                for rows, out, event in zip(x.chunk(chunks), parts, done):
                    torch.mm(rows, w.t(), out=out)
                    event.record(current)
                    with torch.cuda.stream(stream):
                        stream.wait_event(event)
                        torch.ops.symm_mem.two_shot_all_reduce_(out, "sum", name)
                current.wait_stream(stream)

            return call, parts

        return make

    def one_shot():
        x, w = operands()
        _, name = it.group()
        partial, last = it.shared(m, n), []

        def call(_):
            torch.mm(x, w.t(), out=partial)
            last[:] = [torch.ops.symm_mem.one_shot_all_reduce(partial, "sum", name)]

        return call, lambda: last

    time_product(it, m, n, part)
    it.measure("all-reduce only, NCCL", reduce)
    for chunks in chunk_counts:
        it.measure(f"PyTorch, NCCL, {chunks} chunks", nccl(chunks), graph=True)
    if 2 * m * n <= 8 << 20:
        it.measure("PyTorch, symmetric memory, one-shot", one_shot, graph=True)
    for chunks in chunk_counts:
        if m % chunks == 0:
            it.measure(f"PyTorch, symmetric memory, two-shot, {chunks} chunks", two_shot(chunks), graph=True)


def time_matmul_reduce_scatter(it, m, n, k):
    torch, dist, d = it.torch, it.dist, it.ranks

    def operands():
        return it.random(m, k // d), it.random(n, k // d)

    def scatter():
        c, y = it.random(m, n), it.poisoned(m // d, n)
        return lambda _: dist.reduce_scatter_tensor(y, c), [y]

    def separate():
        (a, b), c, y = operands(), it.poisoned(m, n), it.poisoned(m // d, n)

        def call(_):
            torch.mm(a, b.t(), out=c)
            dist.reduce_scatter_tensor(y, c)

        return call, [y]

    time_product(it, m, n, k // d)
    it.measure("reduce-scatter only, NCCL", scatter)
    it.measure("PyTorch, NCCL", separate, graph=True)
    it.measure("PyTorch, symmetric memory", lambda: fused_scatter(it, *operands()), graph=True)


def time_mlp(it, m, n, k):
    """Measures all-gather + linear n -> k, relu, linear k -> n + reduce-scatter of m rows."""
    torch, dist, d = it.torch, it.dist, it.ranks

    def weights():
        return it.random(k // d, n), it.random(n, k // d)

    def products():
        x, (w1, w2) = it.random(m, n), weights()
        hidden, y = it.poisoned(m, k // d), it.poisoned(m, n)

        def call(_):
            torch.mm(x, w1.t(), out=hidden)
            torch.relu_(hidden)
            torch.mm(hidden, w2.t(), out=y)

        return call, [y]

    def separate():
        x, (w1, w2) = it.random(m // d, n), weights()
        whole, hidden, partial = it.poisoned(m, n), it.poisoned(m, k // d), it.poisoned(m, n)
        y = it.poisoned(m // d, n)

        def call(_):
            dist.all_gather_into_tensor(whole, x)
            torch.mm(whole, w1.t(), out=hidden)
            torch.relu_(hidden)
            torch.mm(hidden, w2.t(), out=partial)
            dist.reduce_scatter_tensor(y, partial)

        return call, [y]

    def fused():
        symmetric, name = it.group()
        (w1, w2), last = weights(), []
        x = symmetric.empty(m // d, n, device=it.device, dtype=torch.bfloat16)
        x.copy_(it.random(m // d, n))

        def call(_):
            hidden = torch.ops.symm_mem.fused_all_gather_matmul(x, [w1.t()], 0, name, return_A=False)[1][0]
            torch.relu_(hidden)
            last[:] = [torch.ops.symm_mem.fused_matmul_reduce_scatter(hidden, w2.t(), "sum", 0, name)]

        return call, lambda: last

    it.measure("matmul only", products, graph=True)
    it.measure("PyTorch, NCCL", separate, graph=True)
    it.measure("PyTorch, symmetric memory", fused, graph=True)


TIMED = {
    "allgather-linear": time_gather,
    "linear-allreduce": lambda *case: time_summed(*case, (1, 2, 4, 8)),
    "matmul-reduce-scatter": time_matmul_reduce_scatter,
    "column-parallel": lambda it, m, n, k: time_gather(it, m, n // it.ranks, k),
    "row-parallel": lambda *case: time_summed(*case, (1, 2)),
    "mlp": time_mlp,
    "block": block.time_block,
}
