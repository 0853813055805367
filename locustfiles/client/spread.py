"""A distribution of durations in constant memory, for what the client measures of itself."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

_STEPS_PER_OCTAVE = 32  # 2.2 % a step
_MOST_WAITING = 512
_STEPS = 64 * _STEPS_PER_OCTAVE


class Spread:
    """Counts of absolute values in ns, in logarithmic steps of 2.2 %; values below 1 ns count as 0."""

    __slots__ = ("_counted", "_counts", "_waiting")

    def __init__(self) -> None:
        self._counts = np.zeros(_STEPS, np.int64)
        self._counted = 0
        self._waiting = array("q")

    @property
    def count(self) -> int:
        return self._counted + len(self._waiting)

    def add(self, values_ns: Iterable[int]) -> None:
        self._waiting.extend(values_ns)
        if len(self._waiting) >= _MOST_WAITING:
            self._count()

    def _count(self) -> None:
        magnitude = np.abs(np.array(self._waiting, np.int64))
        steps = np.ceil(np.log2(np.maximum(magnitude, 1)) * _STEPS_PER_OCTAVE).astype(np.int64) + (magnitude > 0)
        np.add.at(self._counts, steps, 1)
        self._counted += len(magnitude)
        del self._waiting[:]

    def quantile_s(self, q: float) -> float | None:
        """The `q` quantile in seconds, None without values."""
        if not self.count:
            return None
        self._count()
        step = int(np.searchsorted(np.cumsum(self._counts), q * self.count))
        return 0.0 if step == 0 else float(2 ** ((step - 1) / _STEPS_PER_OCTAVE)) * 1e-9
