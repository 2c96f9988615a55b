"""hir: multi-GPU Host IR programs, read, checked, transformed and simulated.

>>> import hir
>>> program = hir.read(hir.EXAMPLE)
>>> program.ranks
2
>>> program.check().raise_if_found()
>>> program.run_passes("lower-to-communication").simulate()["T1"].shape
(8,)
"""

from __future__ import annotations

from importlib.metadata import version as _version

# Not in `__all__`: `from hir import *` must not hide the modules of JAX and PyTorch.
from . import jax as jax
from . import torch as torch
from ._diagnostic import Diagnostic, FindingsError, Fix, HirError, Label, Report
from ._hang import HangReport, hang
from ._program import EXAMPLE, Program, Tensor, read

__version__ = _version("hir")

__all__ = [
    "EXAMPLE",
    "Diagnostic",
    "FindingsError",
    "Fix",
    "HangReport",
    "HirError",
    "Label",
    "Program",
    "Report",
    "Tensor",
    "hang",
    "read",
]
