"""Operators that hir does not know, written with operators that it knows: PyTorch's decompositions, and some of hir."""

from __future__ import annotations

from functools import cache
from typing import Any, Callable, Mapping

from ._written_out import functions
from .operators import OPERATORS

#: Operators whose decompositions are not among those of core aten, because core aten has the operators themselves.
BEYOND_CORE = (
    "_native_batch_norm_legit.default",
    "_native_batch_norm_legit.no_stats",
    "_native_batch_norm_legit_functional.default",
    "_native_batch_norm_legit_no_training.default",
    "addmv.default",
    "elu.default",
    "grid_sampler_2d.default",
    "hardtanh.default",
    "leaky_relu.default",
    "logical_xor.default",
    "native_batch_norm.default",
    "upsample_bilinear2d.default",
    "upsample_bilinear2d.vec",
    "upsample_nearest2d.vec",
)


@cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """PyTorch's decompositions of operators without a rule, for AOTAutograd.

    Random operators stay as they are: decomposed, they would draw other numbers than the model draws without hir.
    """
    import torch
    from torch._decomp import core_aten_decompositions, decomposition_table

    def overload(name: str) -> Any:
        _, packet, it = name.split(".")
        return getattr(getattr(torch.ops.aten, packet), it)

    def is_wanted(it: Any) -> bool:
        return str(it) not in OPERATORS and torch.Tag.nondeterministic_seeded not in getattr(it, "tags", ())

    table = {it: rule for it, rule in core_aten_decompositions().items() if is_wanted(it)}
    names = {f"aten.{name}" for name in BEYOND_CORE}
    table |= {it: rule for it, rule in decomposition_table.items() if str(it) in names}
    return table | {overload(name): rule for name, rule in functions().items()}
