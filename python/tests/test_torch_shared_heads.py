"""Attentions whose model repeats keys and values read them as they are."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from hir.torch._shared_heads import share_heads  # noqa: E402

attention = torch.nn.functional.scaled_dot_product_attention


def interleaved(q, k, v):
    """Heads behind the rows, as Llama has them."""
    k, v = (it.repeat_interleave(4, 2) for it in (k, v))
    return attention(*(it.transpose(1, 2) for it in (q, k, v)), is_causal=True)


def expanded(q, k, v):
    """As transformers repeats them."""
    k, v = (it.permute(0, 2, 1, 3)[:, :, None, :, :].expand(2, 2, 4, 16, 8).reshape(2, 8, 16, 8) for it in (k, v))
    return attention(q.transpose(1, 2), k, v, is_causal=True)


def of_one_head(q, k, v):
    k, v = (it[:, :, :1].expand(-1, -1, 8, -1).transpose(1, 2) for it in (k, v))
    return attention(q.transpose(1, 2), k, v, is_causal=True, scale=0.5)


def tiled(q, k, v):
    """Head 0 reads the keys 0, head 1 the keys 1: no consecutive heads share them."""
    k, v = (it.transpose(1, 2).unsqueeze(1).expand(2, 4, 2, 16, 8).reshape(2, 8, 16, 8) for it in (k, v))
    return attention(q.transpose(1, 2), k, v, is_causal=True)


def of_keys_alone(q, k, v):
    return attention(q.transpose(1, 2), k.repeat_interleave(4, 2).transpose(1, 2), v.repeat(1, 1, 4, 1).transpose(1, 2))


def with_repeated_rows(q, k, v):
    k, v = (it[:, :8].repeat_interleave(2, 1).repeat_interleave(4, 2).transpose(1, 2) for it in (k, v))
    return attention(q.transpose(1, 2), k, v)


def changed_behind(q, k, v):
    keys, values = (it.repeat_interleave(4, 2).transpose(1, 2) for it in (k.clone(), v))
    keys.mul_(3)
    return attention(q.transpose(1, 2), keys, values)


def with_a_cache(q, k, v):
    cache = torch.zeros_like(k)
    cache.index_copy_(1, torch.arange(16), k)
    keys, values = (it.repeat_interleave(4, 2).transpose(1, 2) for it in (cache, v))
    return attention(q.transpose(1, 2), keys, values)


def swapped_by_name(q, k, v):
    k, v = (it.repeat_interleave(4, 2).transpose(dim0=1, dim1=2) for it in (k, v))
    return attention(q.transpose(1, 2), k, v)


@pytest.mark.parametrize("function, shares", [
    *((it, True) for it in (interleaved, expanded, of_one_head)),
    *((it, False) for it in (tiled, of_keys_alone, with_repeated_rows, changed_behind, with_a_cache, swapped_by_name)),
])
def test_heads_are_shared_where_consecutive_ones_are_equal(function, shares):
    found = []

    def backend(module, inputs):
        share_heads(module)
        found.extend(it.kwargs.get("enable_gqa", False) for it in module.graph.nodes if "attention" in str(it.target))
        return module.forward

    torch.manual_seed(0)
    torch._dynamo.reset()
    inputs = [torch.randn(2, 16, heads, 8, requires_grad=True) for heads in (8, 2, 2)]
    expected, result = (it(*inputs) for it in (function, torch.compile(function, backend=backend, dynamic=False)))
    assert found == [shares]
    torch.testing.assert_close(result, expected)
    gradients = [torch.autograd.grad(it.square().sum(), inputs) for it in (result, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("function", [interleaved, expanded])
def test_hir_computes_shared_heads(function):
    torch.manual_seed(0)
    torch._dynamo.reset()
    inputs = [torch.randn(2, 16, heads, 8, requires_grad=True) for heads in (8, 2, 2)]
    compiled = torch.compile(function, backend="hir", dynamic=False, options={"run": "hir"})
    result, expected = compiled(*inputs), function(*inputs)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(it.square().sum(), inputs) for it in (result, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
