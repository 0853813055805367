"""Exact quantiles of more values than memory should hold: they come in parts, twice.

The first time they are counted in buckets. The second time only those of the few buckets are kept that hold an order
statistic that is asked for: a hundredth of all gaps, say, unless nearly all are alike.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from exporters.histogram import BUCKETS, Counts, bucket_of
from exporters.quantiles import LEVELS, Floats, enough

Parts = Callable[[], Iterable[Floats]]
"""Gives the values (seconds, not negative), the same ones each time it is called."""


def statistics_in_parts(parts: Parts) -> dict[str, float | int | None]:
    """As `quantiles.statistics` of all of them."""
    total, least, greatest = 0.0, np.inf, -np.inf
    counts: Counts = np.zeros(BUCKETS, dtype=np.int64)
    for values in parts():
        if values.size:
            counts += np.bincount(bucket_of(values), minlength=BUCKETS)
            total += float(values.sum())
            least, greatest = min(least, float(values.min())), max(greatest, float(values.max()))
    count = int(counts.sum())
    found: dict[str, float | int | None] = {"count": count, "mean": None, "min": None, "max": None}
    found |= dict.fromkeys(LEVELS)
    if count:
        found |= {"mean": total / count, "min": least, "max": greatest}
        told = {name: level for name, level in LEVELS.items() if enough(count, level)}
        found |= zip(told, _quantiles(parts, counts, list(told.values())).tolist(), strict=True)
    return found


def quantiles_in_parts(parts: Parts, levels: Sequence[float]) -> Floats:
    """As `numpy.quantile` of all of them; NaN where there are none."""
    counts: Counts = np.zeros(BUCKETS, dtype=np.int64)
    for values in parts():
        counts += np.bincount(bucket_of(values), minlength=BUCKETS)
    return _quantiles(parts, counts, levels)


def _quantiles(parts: Parts, counts: Counts, levels: Sequence[float]) -> Floats:
    """`counts` are those of all values by bucket."""
    if not counts.any() or not levels:
        return np.full(len(levels), np.nan)
    position = (counts.sum() - 1) * np.asarray(levels, dtype=np.float64)
    ranks = np.stack((np.floor(position), np.ceil(position))).astype(np.int64)
    upto = np.cumsum(counts)
    buckets = np.searchsorted(upto, ranks, side="right")
    wanted = np.zeros(BUCKETS, dtype=np.bool_)
    wanted[buckets] = True
    kept = array("d")
    for values in parts():
        kept.frombytes(values[wanted[bucket_of(values)]].tobytes())
    ordered = np.frombuffer(kept, dtype=np.float64)
    ordered.sort()
    # Buckets are in the order of their values: what a rank loses is what lies below in buckets that were not kept.
    low, high = ordered[ranks - np.cumsum(np.where(wanted, 0, counts))[buckets]]
    share, step = position - ranks[0], high - low
    # From the nearer end, as numpy does it, to the last bit.
    found: Floats = np.where(share < 0.5, low + step * share, high - step * (1 - share))
    return found
