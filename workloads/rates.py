"""How fast requests come, over time: steps, ramps, a wave, and changes made while a run goes on.

A rate is integrated into the number of requests that are due by a time. Arrival processes are drawn for the rate 1 and
then bent by the inverse of that integral (time rescaling: Çinlar, "Introduction to Stochastic Processes", 1975, 4.7),
so a change of the rate moves the requests that are yet to come and makes no other ones.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Protocol


class Piece(Protocol):
    """A rate from its own start on. Times are seconds from that start, counts are requests since then."""

    def count(self, seconds: float) -> float:
        """How many requests are due within the first `seconds`."""

    def seconds(self, count: float) -> float:
        """When the `count`-th is due; infinity where never."""


class Line:
    """From one rate to another in `length_s`, then on at the second. Requests/s."""

    def __init__(self, begins: float, ends: float, length_s: float = 0.0) -> None:
        self._begins, self._ends, self._length_s = begins, ends, length_s
        self._slope = (ends - begins) / length_s if length_s else 0.0
        self._within = (begins + ends) / 2 * length_s

    def count(self, seconds: float) -> float:
        if seconds <= self._length_s:
            return (self._begins + self._slope * seconds / 2) * seconds
        return self._within + self._ends * (seconds - self._length_s)

    def seconds(self, count: float) -> float:
        if count <= 0:
            return 0.0
        if self._length_s and count <= self._within:
            # The quadratic's root in the form that loses no digits where the slope is small.
            return 2 * count / (self._begins + math.sqrt(max(self._begins**2 + 2 * self._slope * count, 0.0)))
        return self._length_s + (count - self._within) / self._ends if self._ends else math.inf


class Sine:
    """`mean` requests/s, swinging by the share `swing` of it with the period given; rising at its start."""

    def __init__(self, mean: float, swing: float, period_s: float) -> None:
        self._mean, self._swing, self._period_s = mean, swing, period_s
        self._turn = 2 * math.pi / period_s

    def count(self, seconds: float) -> float:
        return self._mean * (seconds + self._swing / self._turn * (1 - math.cos(self._turn * seconds)))

    def seconds(self, count: float) -> float:
        if not self._mean:
            return math.inf
        # The wave adds between nothing and two amplitudes of its integral: the root lies in between.
        high = count / self._mean
        low = max(high - 2 * self._swing / self._turn, 0.0)
        for _ in range(60):
            middle = (low + high) / 2
            if self.count(middle) < count:
                low = middle
            else:
                high = middle
        return high


class RateCurve:
    """The fleet's rate from the start of sending on; changes at one time take the place of everything after it."""

    def __init__(self, pieces: Sequence[tuple[float, Piece]]) -> None:
        """`pieces` are (start in seconds, rate from there), the first at 0."""
        self._starts: list[float] = []
        self._counts: list[float] = []
        self._pieces: list[Piece] = []
        for start_s, piece in pieces:
            self._add(start_s, piece)

    def count(self, seconds: float) -> float:
        """How many requests a process of rate 1 would have sent where this one has been going for `seconds`."""
        at = max(bisect.bisect_right(self._starts, seconds) - 1, 0)
        return self._counts[at] + self._pieces[at].count(max(seconds - self._starts[at], 0.0))

    def seconds(self, count: float) -> float:
        """The inverse of `count`: when that many are due; infinity where the rate has come to rest before."""
        at = max(bisect.bisect_left(self._counts, count) - 1, 0)
        return self._starts[at] + self._pieces[at].seconds(count - self._counts[at])

    def change(self, at_s: float, rate: float) -> None:
        """`rate` holds from `at_s` on. What was to come after it is forgotten."""
        kept = max(bisect.bisect_left(self._starts, at_s), 1)
        if at_s <= 0:
            self._starts, self._counts, self._pieces = [], [], []
            self._add(0.0, Line(rate, rate))
            return
        count = self.count(at_s)
        del self._starts[kept:], self._counts[kept:], self._pieces[kept:]
        self._starts.append(at_s)
        self._counts.append(count)
        self._pieces.append(Line(rate, rate))

    def _add(self, start_s: float, piece: Piece) -> None:
        count = self.count(start_s) if self._pieces else 0.0
        self._starts.append(start_s)
        self._counts.append(count)
        self._pieces.append(piece)


def flat(rate: float) -> RateCurve:
    """Always the same rate."""
    return RateCurve([(0.0, Line(rate, rate))])


def stages(begins: float, steps: Sequence[tuple[float, float]]) -> RateCurve:
    """From the rate `begins` through (seconds, rate) after (seconds, rate), in straight lines; the last one holds."""
    pieces: list[tuple[float, Piece]] = []
    start_s, rate = 0.0, begins
    for length_s, ends in steps:
        if length_s > 0:
            pieces.append((start_s, Line(rate, ends, length_s)))
        start_s, rate = start_s + length_s, ends
    pieces.append((start_s, Line(rate, rate)))
    return RateCurve(pieces)


def wave(mean: float, swing: float, period_s: float) -> RateCurve:
    """A sine around `mean`: between (1 - swing) and (1 + swing) times that."""
    return RateCurve([(0.0, Sine(mean, swing, period_s))])
