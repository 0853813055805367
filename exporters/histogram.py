"""A log-linear histogram of latencies: at most 0.4 % off anywhere between 8 µs and 68 minutes, merged by adding counts.

Every power of two of seconds is cut into 128 equal buckets, and a bucket stands for its midpoint, so that a value is
off by at most half a bucket: 1/256 of the octave's lower end. (The layout of HdrHistogram, G. Tene, with floats.)
Bucket 0 takes what is shorter, the last one what is longer; the exact extremes are kept beside the counts.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from exporters.quantiles import LEVELS, Floats, enough
from tailgate.exits import BadInput

PER_OCTAVE = 128
_LOWEST_EXPONENT = -17
_HIGHEST_EXPONENT = 12
_LEAST_S = 1e-9
BUCKETS = (_HIGHEST_EXPONENT - _LOWEST_EXPONENT) * PER_OCTAVE + 2
RELATIVE_ERROR = 0.5 / PER_OCTAVE

Counts = np.ndarray[Any, np.dtype[np.int64]]


def bucket_of(values_s: Floats) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The bucket of each of `values_s` (seconds), same shape."""
    mantissa, exponent = np.frexp(np.maximum(values_s, _LEAST_S))
    found = ((exponent - 1 - _LOWEST_EXPONENT) * PER_OCTAVE + 1).astype(np.float64)
    found += np.floor((mantissa - 0.5) * (2 * PER_OCTAVE))
    return np.clip(found, 0, BUCKETS - 1).astype(np.int32)


def _lower_edges() -> Floats:
    inner = np.arange(BUCKETS - 1)
    edges = np.ldexp(1 + (inner % PER_OCTAVE) / PER_OCTAVE, _LOWEST_EXPONENT + inner // PER_OCTAVE)
    return np.concatenate(([0.0], edges))


EDGES_S: Floats = _lower_edges()
"""Lower edge of each bucket, seconds."""
SHORTEST_S = float(EDGES_S[1])
"""What is shorter is not told from nothing."""
MIDPOINTS_S: Floats = np.concatenate(((EDGES_S[:-1] + EDGES_S[1:]) / 2, EDGES_S[-1:]))
"""What each bucket stands for, seconds."""


def bucket_response_time(milliseconds: float) -> float:
    """The midpoint, in ms, of the bucket `milliseconds` falls into: what Locust's statistics shall count it as.

    Made to stand in for `locust.stats.bucket_response_time`, which rounds to two digits. Applied twice it gives the
    same, and equal times on any number of workers give equal keys.
    """
    mantissa, exponent = math.frexp(max(milliseconds * 1e-3, _LEAST_S))
    found = (exponent - 1 - _LOWEST_EXPONENT) * PER_OCTAVE + 1 + math.floor((mantissa - 0.5) * (2 * PER_OCTAVE))
    return float(_MIDPOINTS_MS[min(max(found, 0), BUCKETS - 1)])


_MIDPOINTS_MS: list[float] = [float(f"{middle * 1e3:.7g}") for middle in MIDPOINTS_S]


class LatencyHistogram:
    """Counts of latencies in seconds. `counts` has `BUCKETS` entries; `total_s` is the exact sum."""

    __slots__ = ("counts", "greatest_s", "least_s", "total_s")

    def __init__(self) -> None:
        self.counts: Counts = np.zeros(BUCKETS, dtype=np.int64)
        self.total_s = 0.0
        self.least_s = math.inf
        self.greatest_s = -math.inf

    @classmethod
    def of(cls, values_s: Floats) -> LatencyHistogram:
        """A histogram of these values."""
        made = cls()
        made.add(values_s)
        return made

    def add(self, values_s: Floats | Iterable[float]) -> None:
        """Counts every one of `values_s` (seconds); values below zero count as zero."""
        values = np.maximum(np.asarray(values_s, dtype=np.float64), 0.0)
        if not values.size:
            return
        self.counts += np.bincount(bucket_of(values), minlength=BUCKETS)
        self.total_s += float(values.sum())
        self.least_s = min(self.least_s, float(values.min()))
        self.greatest_s = max(self.greatest_s, float(values.max()))

    def merge(self, other: LatencyHistogram) -> None:
        """Adds the other's counts to these: the same as having seen both sides' values here."""
        self.counts += other.counts
        self.total_s += other.total_s
        self.least_s = min(self.least_s, other.least_s)
        self.greatest_s = max(self.greatest_s, other.greatest_s)

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def nonzero(self) -> tuple[Floats, Counts]:
        """Midpoints (seconds) and counts of the buckets that hold anything."""
        held = np.flatnonzero(self.counts)
        return MIDPOINTS_S[held], self.counts[held]

    def quantiles(self, levels: Iterable[float]) -> Floats:
        """Those quantiles, seconds: as numpy's over the values, each order statistic replaced by its bucket's midpoint.

        NaN where nothing was counted.
        """
        wanted = np.asarray(list(levels), dtype=np.float64)
        if not self.count:
            return np.full(wanted.shape, np.nan)
        ranks = (self.count - 1) * wanted
        cumulated = np.cumsum(self.counts)
        low = MIDPOINTS_S[np.searchsorted(cumulated, np.floor(ranks), side="right")]
        high = MIDPOINTS_S[np.searchsorted(cumulated, np.ceil(ranks), side="right")]
        found: Floats = np.clip(low + (high - low) * (ranks - np.floor(ranks)), self.least_s, self.greatest_s)
        return found

    def statistics(self) -> dict[str, float | int | None]:
        """As `exporters.quantiles.statistics`, within the histogram's error."""
        count = self.count
        found: dict[str, float | int | None] = {"count": count, "mean": None, "min": None, "max": None}
        found |= dict.fromkeys(LEVELS)
        if count:
            found |= {"mean": self.total_s / count, "min": self.least_s, "max": self.greatest_s}
            told = {name: level for name, level in LEVELS.items() if enough(count, level)}
            found |= zip(told, self.quantiles(told.values()).tolist(), strict=True)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Compact and JSON-able; a histogram of a million latencies takes about 1 kB."""
        extremes = {"least_s": self.least_s, "greatest_s": self.greatest_s} if self.count else {}
        return {"counts": pack_counts(self.counts), "total_s": self.total_s, **extremes}

    @classmethod
    def from_dict(cls, packed: dict[str, Any]) -> LatencyHistogram:
        """The histogram in `packed`. Raises `BadInput` where that is none."""
        made = cls()
        made.counts = unpack_counts(packed["counts"])
        made.total_s = float(packed["total_s"])
        made.least_s = float(packed.get("least_s", math.inf))
        made.greatest_s = float(packed.get("greatest_s", -math.inf))
        return made


def pack_counts(counts: Counts) -> str:
    """Non-zero counts as text: distances between their buckets, then the counts, as 32-bit words, deflated, base64."""
    held = np.flatnonzero(counts)
    if counts.size and int(counts.max(initial=0)) >= 2**32:
        raise ValueError("a bucket holds more than 2**32 values")
    # Bytes of equal weight side by side deflate best: most high bytes are zero.
    words = np.concatenate((np.diff(held, prepend=0), counts[held])).astype("<u4")
    planes = words.view(np.uint8).reshape(-1, 4).T.tobytes()
    return base64.b85encode(zlib.compress(planes, 9)).decode("ascii")


def unpack_counts(text: str, size: int = BUCKETS) -> Counts:
    """The counts in `text`, `size` of them. Raises `BadInput` where it holds none."""
    try:
        planes = np.frombuffer(zlib.decompress(base64.b85decode(text)), dtype=np.uint8)
        words = np.ascontiguousarray(planes.reshape(4, -1).T).view("<u4").ravel()
        gaps, values = np.split(words, 2)
        counts: Counts = np.zeros(size, dtype=np.int64)
        counts[np.cumsum(gaps, dtype=np.int64)] = values
    except (ValueError, zlib.error, IndexError) as error:
        raise BadInput(f"not a histogram: {error}", "the file is damaged; make it anew") from None
    return counts
