"""PyTorch programs of several ranks: imported, checked, overlapped and simulated. Importing this module does not import PyTorch."""

from __future__ import annotations

from ..compare import Comparison, compare
from ._capture import capture, capture_ranks, explain, from_export, from_fx
from ._communicating import register_operator
from ._gpu import set_environment
from ._graph import Graph, Node, TorchFaultError, TorchImportError
from ._program import TorchProgram, from_graphs
from ._recorded import read_recorded, recorded_graph, to_recorded

__all__ = [
    "Comparison",
    "Graph",
    "Node",
    "TorchFaultError",
    "TorchImportError",
    "TorchProgram",
    "capture",
    "capture_ranks",
    "compare",
    "explain",
    "from_export",
    "from_fx",
    "from_graphs",
    "read_recorded",
    "recorded_graph",
    "register_operator",
    "to_recorded",
]

# CUDA reads these variables when it starts.
set_environment()
