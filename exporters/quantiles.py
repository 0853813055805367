"""The one definition of a quantile here, and of when there are too few observations to print one.

A quantile is numpy's default: linear interpolation between order statistics (type 7 of Hyndman and Fan, "Sample
Quantiles in Statistical Packages", The American Statistician 50, 1996). It is exact from the observations kept, never
an average of other quantiles. One that leaves fewer than ten observations beyond it, n * (1 - q) < 10, is None,
which the screen shows as "too few".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tailgate.exits import BadInput

LEVELS: dict[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
LEAST_BEYOND = 10

Floats = np.ndarray[Any, np.dtype[np.float64]]


def level_of(name: str) -> float:
    """0.95 for 'p95', 0.999 for 'p999'. Raises `BadInput` for anything else than p and digits."""
    if name[:1] != "p" or not name[1:].isdigit():
        raise BadInput(f"'{name}' is no quantile", "write it like p95 or p999")
    return int(name[1:]) / 10 ** (len(name) - 1)


def enough(count: int, level: float) -> bool:
    """Whether at least ten of `count` observations lie beyond the quantile `level`."""
    # Rounded, because 100 * (1 - 0.9) is 9.999999999999998.
    return round(count * (1 - level), 6) >= LEAST_BEYOND


def statistics(values: Floats) -> dict[str, float | int | None]:
    """`{count, mean, min, max, p50, p90, p95, p99, p999}` of a 1-d array; None where there is nothing or too few.

    Puts `values` into another order: a copy of all gaps of a long run would be most of the memory that it takes.
    """
    count = int(values.size)
    found: dict[str, float | int | None] = {"count": count, "mean": None, "min": None, "max": None}
    found |= dict.fromkeys(LEVELS)
    if not count:
        return found
    found["mean"], found["min"], found["max"] = float(values.mean()), float(values.min()), float(values.max())
    told = {name: level for name, level in LEVELS.items() if enough(count, level)}
    if told:
        quantiles = np.quantile(values, list(told.values()), overwrite_input=True)
        found |= dict(zip(told, quantiles.tolist(), strict=True))
    return found


def adjusted_statistics(values: Floats, failed: int) -> dict[str, float | int | str | None]:
    """Quantiles of `values` with `failed` more that are infinitely late: 'infinite' where a quantile reaches them."""
    count = int(values.size) + failed
    found: dict[str, float | int | str | None] = {"count": count}
    ordered = np.sort(values)
    for name, level in LEVELS.items():
        if not enough(count, level):
            found[name] = None
            continue
        rank = (count - 1) * level
        below, above = math.floor(rank), math.ceil(rank)
        if above >= values.size:
            found[name] = "infinite"
        else:
            low, high = float(ordered[below]), float(ordered[above])
            found[name] = low + (high - low) * (rank - below)
    return found
