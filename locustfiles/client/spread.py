"""A distribution of durations in constant memory, for what the client measures of itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_STEPS_PER_OCTAVE = 32  # 2.2 % a step
_STEPS = 64 * _STEPS_PER_OCTAVE


class Spread:
    """Counts of absolute values in ns, in logarithmic steps of 2.2 %; values below 1 ns count as 0."""

    __slots__ = ("_counts", "count")

    def __init__(self) -> None:
        self._counts = np.zeros(_STEPS, np.int64)
        self.count = 0

    def add(self, values_ns: npt.NDArray[np.int64]) -> None:
        magnitude = np.abs(values_ns)
        steps = np.ceil(np.log2(np.maximum(magnitude, 1)) * _STEPS_PER_OCTAVE).astype(np.int64) + (magnitude > 0)
        np.add.at(self._counts, steps, 1)
        self.count += len(values_ns)

    def quantile_s(self, q: float) -> float | None:
        """The `q` quantile in seconds, None without values."""
        if not self.count:
            return None
        step = int(np.searchsorted(np.cumsum(self._counts), q * self.count))
        return 0.0 if step == 0 else float(2 ** ((step - 1) / _STEPS_PER_OCTAVE)) * 1e-9
