"""The operators that the importer knows: each module registers rules."""

from __future__ import annotations

from . import _attention as _attention, _collectives as _collectives, _communications as _communications
from . import _complex as _complex, _elementwise as _elementwise, _host as _host, _indexing as _indexing
from . import _pooling as _pooling, _products as _products, _reductions as _reductions, _shape as _shape, _split_axis as _split_axis
from ._communications import UNORDERED, rendezvous
from ._complex import PARTS, takes_complex
from ._host import ARITHMETIC, ON_HOST, arithmetic
from ._registry import COMMUNICATIONS, OPERATORS, Call, Operator, partition

__all__ = [
    "ARITHMETIC",
    "COMMUNICATIONS",
    "ON_HOST",
    "OPERATORS",
    "PARTS",
    "UNORDERED",
    "Call",
    "Operator",
    "arithmetic",
    "partition",
    "rendezvous",
    "takes_complex",
]
