"""How much two runs of one program may differ by rounding.

A floating sum of n terms differs by at most (n - 1) u of the sum of absolute values from the exact one (Higham, Accuracy and Stability of
Numerical Algorithms, 2002, section 4.2; u is half the machine epsilon), and with probability almost 1 by at most lambda sqrt(n) u (Higham and
Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4). A parallel program adds in another
order. This is the bound for one sum. How much the layers behind it enlarge a rounding error depends on the values, so it is measured: the program
on one device runs again, with each parameter and each result of a module multiplied by 1 + u or 1 - u at random (Vignes, A stochastic arithmetic
for reliable scientific computation, Math. Comput. Simul. 35, 1993). What this changes in a tensor, rounding may change.
"""

from __future__ import annotations

import math
from typing import Any, Iterable, Mapping

from ._entry import Key

#: The unit roundoff of element types.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

#: How often the bound of the rounding errors of a sum, lambda, and the measured change, are taken.
SUMS, MEASURED = 8.0, 16.0


class Tolerance:
    """``terms``: the length of the longest sum. ``changes``: the measured change of each tensor, if it is measured."""

    def __init__(self, types: Iterable[str], terms: int, changes: Mapping[Key, float] | None = None) -> None:
        known = [ROUNDOFF.get(it, 2.0**-3) for it in types] or [ROUNDOFF["float32"]]
        #: That of the least precise type.
        self.roundoff = max(known)
        # Sums of types of 16 bits and less are accumulated in float32.
        accumulated = min(self.roundoff, ROUNDOFF["float32"])
        self._relative = SUMS * math.sqrt(terms) * accumulated + (2 * self.roundoff if self.roundoff > accumulated else 0)
        self._changes = changes or {}

    def of(self, key: Key, whole: Any, base: float = 0.0) -> float:
        """Of a tensor of the program on one device. ``base``: the largest element of what an update was added to."""
        scale = float(whole.abs().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).max()) if whole.numel() else 0.0
        return self._relative * scale + 4 * self.roundoff * base + MEASURED * self._changes.get(key, 0.0)
