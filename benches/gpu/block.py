"""A transformer block in PyTorch. Every call gets the index of a slice, which layers do not use."""
import cases


def time_block(it, m, n, k):
    """Measures H = X + attention(X), Y = H + mlp(H), for m rows of width n."""
    torch, dist, d = it.torch, it.dist, it.ranks
    heads, extent, scale = cases.HEADS // d, n // cases.HEADS, cases.scale(n)

    def weights():
        # The rows of the first weight are, for each head, its queries, keys and values.
        shapes = [(3 * n // d, n), (n, n // d), (k // d, n), (n, k // d)]
        return [it.random(*shape).t() for shape in shapes]

    def by_head(qkv):
        return qkv.view(cases.SEQUENCES, -1, heads, 3, extent).permute(3, 0, 2, 1, 4)

    def by_matmuls(qkv):
        q, key, v = (part.reshape(-1, m // cases.SEQUENCES, extent) for part in by_head(qkv))
        nothing = torch.empty(1, device=it.device, dtype=torch.bfloat16)
        scores = torch.baddbmm(nothing, q, key.transpose(1, 2), beta=0, alpha=scale)
        found = torch.bmm(torch.softmax(scores, -1), v)
        return found.view(cases.SEQUENCES, heads, -1, extent).transpose(1, 2).reshape(m, -1)

    def fused_attention(qkv):
        q, key, v = by_head(qkv)
        found = torch.nn.functional.scaled_dot_product_attention(q, key, v, scale=scale)
        return found.transpose(1, 2).reshape(m, -1)

    def products():
        x, (w1, w2, w3, w4), y = it.random(m, n), weights(), it.poisoned(m, n)

        def call(_):
            inner = torch.mm(by_matmuls(torch.mm(x, w1)), w2)
            torch.mm(torch.relu_(torch.mm(inner, w3)), w4, out=y)

        return call, [y]

    def separate():
        x, (w1, w2, w3, w4) = it.random(m // d, n), weights()
        whole, inner, y = it.poisoned(m, n), it.poisoned(m // d, n), it.poisoned(m // d, n)

        def call(_):
            dist.all_gather_into_tensor(whole, x)
            dist.reduce_scatter_tensor(inner, torch.mm(by_matmuls(torch.mm(whole, w1)), w2))
            inner.add_(x)
            dist.all_gather_into_tensor(whole, inner)
            dist.reduce_scatter_tensor(y, torch.mm(torch.relu_(torch.mm(whole, w3)), w4))
            y.add_(inner)

        return call, [y]

    def fused(attention):
        def make():
            _, name = it.group()
            (w1, w2, w3, w4), last = weights(), []
            x, inner = it.shared(m // d, n), it.shared(m // d, n)
            x.copy_(it.random(m // d, n))
            gathered, scattered = torch.ops.symm_mem.fused_all_gather_matmul, torch.ops.symm_mem.fused_matmul_reduce_scatter

            def call(_):
                qkv = gathered(x, [w1], 0, name, return_A=False)[1][0]
                torch.add(x, scattered(attention(qkv), w2, "sum", 0, name), out=inner)
                hidden = gathered(inner, [w3], 0, name, return_A=False)[1][0]
                last[:] = [scattered(torch.relu_(hidden), w4, "sum", 0, name).add_(inner)]

            return call, lambda: last

        return make

    it.measure("matmul only", products, graph=True)
    it.measure("PyTorch, NCCL", separate, graph=True)
    it.measure("PyTorch, symmetric memory", fused(by_matmuls), graph=True)
    it.measure("PyTorch, symmetric memory, fused attention", fused(fused_attention), graph=True)
