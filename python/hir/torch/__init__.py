"""PyTorch programs of several ranks: imported, checked, overlapped and simulated."""

from __future__ import annotations

from ._graph import Graph, Node, TorchImportError
from ._program import TorchProgram, from_graphs
from ._recorded import read_recorded, recorded_graph

__all__ = ["Graph", "Node", "TorchImportError", "TorchProgram", "from_graphs", "read_recorded", "recorded_graph"]
