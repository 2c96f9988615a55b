"""``hir.torch.compare``: the values of a parallel PyTorch program beside those of the same program on one device."""

from ._compare import Comparison, compare

__all__ = ["Comparison", "compare"]
