"""Operators of core aten that PyTorch does not decompose, as functions of others: decompositions of hir's own, by name."""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence

from ._fallback import copied


def attentions_written_out(module: Any) -> Any:
    """Returns a graph of Dynamo in which flexible attention, with its masks and changes of scores, is PyTorch's own function of matrices."""
    from torch._higher_order_ops.flex_attention import flex_attention, math_attention

    if not any(it.target is flex_attention for it in module.graph.nodes):
        return module
    own = copied(module)
    for it in own.graph.nodes:
        if it.target is flex_attention:
            it.target = math_attention
    own.recompile()
    return own


def functions() -> dict[str, Callable[..., Any]]:
    """The decompositions, by the names of their operators."""
    import torch

    def distances(x: Any, y: Any, p: float, _: Any = None) -> Any:
        return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)

    def distances_of_pairs(x: Any, p: float = 2) -> Any:
        rows = [torch.linalg.vector_norm(x[at + 1 :] - x[at], p, 1) for at in range(x.shape[0] - 1)]
        return torch.cat(rows) if rows else x.new_zeros(0)

    def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
        x, mask = torch.broadcast_tensors(x, mask)
        if source.numel() == 0:
            return x.clone()
        places = (mask.reshape(-1).long().cumsum(0) - 1).clamp(0, source.numel() - 1)
        return torch.where(mask, source.reshape(-1)[places].view(x.shape), x)

    def embedding_bag(
        rows: Any, indices: Any, offsets: Any, scale: bool = False, mode: int = 0, sparse: bool = False, weights: Any = None,
        ends: bool = False, padding: int = -1,
    ) -> tuple[Any, Any, Any, Any]:  # fmt: skip
        starts = offsets[:-1] if ends else offsets
        # An empty bag begins where the next one does.
        bag = (torch.arange(indices.shape[0]).unsqueeze(1) >= starts.unsqueeze(0)).sum(1) - 1
        inside = (bag.unsqueeze(0) == torch.arange(starts.shape[0]).unsqueeze(1)) & (indices != padding).unsqueeze(0)
        sizes, taken = inside.sum(1), rows[indices]
        if mode == 2:
            several = torch.where(inside.unsqueeze(2), taken, -math.inf)
            found = torch.where(sizes.unsqueeze(1) > 0, several.amax(1), 0.0)
            return found, bag, sizes, several.argmax(1)
        total = inside.to(rows.dtype) @ (taken if weights is None else taken * weights.unsqueeze(1))
        if mode == 1:
            total = total / sizes.clamp(min=1).unsqueeze(1)
        return total, bag, sizes, offsets.clone()

    def waves(count: int, results: int, sign: int, dtype: Any) -> tuple[Any, Any]:
        """The cosines and sines of a discrete Fourier transform."""
        products = torch.arange(count).unsqueeze(1) * torch.arange(results) % count
        angles = products.to(torch.float64) * (sign * 2 * math.pi / count)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def along(x: Any, dim: int, matrix: Any) -> Any:
        return (x.movedim(dim, -1) @ matrix).movedim(-1, dim)

    def transformed(real: Any, imaginary: Any, dims: Sequence[int], sign: int) -> tuple[Any, Any]:
        for dim in dims:
            cosine, sine = waves(real.shape[dim], real.shape[dim], sign, real.dtype)
            real, imaginary = (
                along(real, dim, cosine) - along(imaginary, dim, sine),
                along(real, dim, sine) + along(imaginary, dim, cosine),
            )
        return real, imaginary

    def factor(normalization: int, sizes: Sequence[int]) -> float:
        return (1.0, 1 / math.sqrt(math.prod(sizes)), 1 / math.prod(sizes))[normalization]

    def real_to_complex(x: Any, dims: Sequence[int], normalization: int, onesided: bool) -> Any:
        count = x.shape[dims[-1]]
        cosine, sine = waves(count, count // 2 + 1 if onesided else count, -1, x.dtype)
        parts = transformed(along(x, dims[-1], cosine), along(x, dims[-1], sine), dims[:-1], -1)
        scale = factor(normalization, [x.shape[it] for it in dims])
        return torch.complex(*(it * scale for it in parts))

    def complex_to_complex(x: Any, dims: Sequence[int], normalization: int, forward: bool) -> Any:
        real, imaginary = torch.view_as_real(x).unbind(-1)
        parts = transformed(real, imaginary, dims, -1 if forward else 1)
        scale = factor(normalization, [x.shape[it] for it in dims])
        return torch.complex(*(it * scale for it in parts))

    def complex_to_real(x: Any, dims: Sequence[int], normalization: int, last: int) -> Any:
        real, imaginary = torch.view_as_real(x).unbind(-1)
        real, imaginary = transformed(real, imaginary, dims[:-1], 1)
        dim, half = dims[-1], last // 2 + 1
        cosine, sine = (it[:half] for it in waves(last, last, 1, real.dtype))
        # The other half of the operand is the conjugate of this one.
        places = torch.arange(half).unsqueeze(1)
        twice = torch.where((places == 0) | (2 * places == last), 1.0, 2.0).to(real.dtype)
        total = along(real.narrow(dim, 0, half), dim, cosine * twice) - along(imaginary.narrow(dim, 0, half), dim, sine * twice)
        return total * factor(normalization, [last if it == dim else x.shape[it] for it in dims])

    return {
        "aten._cdist_forward.default": distances,
        "aten._embedding_bag.default": embedding_bag,
        "aten._embedding_bag_forward_only.default": embedding_bag,
        "aten._fft_c2c.default": complex_to_complex,
        "aten._fft_c2r.default": complex_to_real,
        "aten._fft_r2c.default": real_to_complex,
        "aten._pdist_forward.default": distances_of_pairs,
        "aten.atan2.out": lambda x, y, *, out: out.copy_(torch.atan2(x, y)),
        "aten.masked_scatter.default": masked_scatter,
    }
