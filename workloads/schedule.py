"""When each request is due: one global schedule made from the seed, of which every worker can read any part.

A process numbers requests along a scale on which their mean distance is 1; a rate curve turns that scale into seconds.
Gaps are drawn in chunks, each from its own counter, and summed chunk by chunk in order: the offset of request i is the
same number on every worker, and asking for it costs one chunk at most beyond those already passed.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from typing import Protocol

import numpy as np
import numpy.typing as npt

from workloads import rates
from workloads.arrivals import ArrivalSpec
from workloads.randomness import key_of, uniform_array
from workloads.rates import RateCurve
from workloads.sources import Source

_CHUNK = 4096
_NEVER_NS = (1 << 63) - 1


class Process(Protocol):
    """Where requests lie on the scale of rate 1, ascending."""

    def at(self, index: int) -> float:
        """Request `index`. IndexError past the end."""


class Even:
    """One after the other at the same distance, the first at once."""

    def at(self, index: int) -> float:
        return float(index)


class Renewal:
    """Independent gamma gaps of mean 1: exponential ones (a Poisson process) at shape 1."""

    def __init__(self, shape: float, seed: int) -> None:
        self._shape = shape
        self._key = key_of("arrivals", seed)
        self._starts = [0.0]
        self._recent: OrderedDict[int, npt.NDArray[np.float64]] = OrderedDict()

    def at(self, index: int) -> float:
        chunk, within = divmod(index, _CHUNK)
        return float(self._offsets(chunk)[within])

    def _offsets(self, chunk: int) -> npt.NDArray[np.float64]:
        if chunk in self._recent:
            return self._recent[chunk]
        while len(self._starts) <= chunk:
            behind = len(self._starts) - 1
            self._starts.append(self._starts[behind] + float(np.cumsum(self._gaps(behind))[-1]))
        offsets: npt.NDArray[np.float64] = self._starts[chunk] + np.cumsum(self._gaps(chunk))
        self._recent[chunk] = offsets
        if len(self._recent) > 4:
            self._recent.popitem(last=False)
        return offsets

    def _gaps(self, chunk: int) -> npt.NDArray[np.float64]:
        if self._shape == 1.0:
            return np.asarray(-np.log(uniform_array(self._key, chunk, _CHUNK)))
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(self._key[:16], "little") ^ chunk))
        return np.asarray(generator.standard_gamma(self._shape, _CHUNK) / self._shape)


class Recorded:
    """A trace's own times: its scale is the trace's seconds."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def at(self, index: int) -> float:
        return self._source.design(index).offset_s or 0.0


class Schedule:
    """Offsets of requests from the start of sending."""

    def __init__(self, process: Process, curve: RateCurve, length: int | None = None) -> None:
        self._process = process
        self._curve = curve
        self._length = length

    def at(self, index: int) -> float:
        """Seconds after the start at which request `index` is due, infinity where the rate rests before it. IndexError
        past the end."""
        if index < 0 or (self._length is not None and index >= self._length):
            raise IndexError(index)
        return self._curve.seconds(self._process.at(index))

    def due_before(self, seconds: float) -> int:
        """How many requests are due before that time; they are those with the lowest indices."""
        low, high = 0, 1
        while not self._reaches(high - 1, seconds):
            low, high = high, high * 2
        while low < high:
            middle = (low + high) // 2
            if self._reaches(middle, seconds):
                high = middle
            else:
                low = middle + 1
        return low

    def change_rate(self, at_s: float, rate: float) -> None:
        """From `at_s` on: requests/s, or a trace's pace."""
        self._curve.change(at_s, rate)

    def sha256(self, n: int = 1000) -> str:
        """A hash over the first `n` times, in whole ns: equal where two runs have the same schedule."""
        total = hashlib.sha256()
        for index in range(n if self._length is None else min(n, self._length)):
            due_s = self.at(index)
            total.update((_NEVER_NS if math.isinf(due_s) else int(due_s * 1e9)).to_bytes(8, "little"))
        return total.hexdigest()

    def _reaches(self, index: int, seconds: float) -> bool:
        return (self._length is not None and index >= self._length) or self.at(index) >= seconds


def make_schedule(spec: ArrivalSpec, seed: int, source: Source | None = None, time_scale: float = 1.0) -> Schedule:
    """The schedule of open arrivals; those of a `trace` are `source`'s, `time_scale` times as fast."""
    assert spec.open, "a closed loop has no schedule"
    length = source.length if source is not None else None
    if spec.kind == "trace":
        assert source is not None, "checked by make_plan"
        return Schedule(Recorded(source), rates.flat(time_scale), length)
    shape = spec.burstiness if spec.kind == "gamma" else 1.0
    return Schedule(Even() if spec.kind == "constant" else Renewal(shape, seed), curve_of(spec), length)


def curve_of(spec: ArrivalSpec) -> RateCurve:
    """The rate over time that the arrivals ask for; at rest where users are to set it."""
    rate = spec.request_rate or 0.0
    if spec.stages:
        return rates.stages(rate, [(stage.seconds, stage.to) for stage in spec.stages])
    if spec.wave:
        return rates.wave(rate, spec.wave.swing, spec.wave.period)
    return rates.flat(rate)
