"""JAX programs: the StableHLO that JAX lowers a function to is read as a program, and run beside XLA. Importing this module does not import JAX."""

from __future__ import annotations

from ._capture import Jitted, Lowered, capture
from ._verify import Difference, Verification, verify

__all__ = ["Difference", "Jitted", "Lowered", "Verification", "capture", "verify"]
