"""Least squares on replays: the positive numbers that bring what is simulated closest to what was measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Vector = np.ndarray


def least_squares(
    misses: Callable[[Vector], Vector], start: Vector, nudges: Vector, rounds: int = 5, floor: float = 0.0
) -> Vector:
    """The vector with the least sum of squared `misses` (relative errors, any number of them), none below `floor`.

    Gauss-Newton with finite differences of size `nudges`.
    """
    best = np.array(start, dtype=np.float64)
    best_miss = misses(best)
    for _ in range(rounds):
        moved = [misses(best + np.where(np.arange(best.size) == i, nudges, 0.0)) for i in range(best.size)]
        slopes = np.stack([miss - best_miss for miss in moved], axis=1)
        change = np.linalg.lstsq(slopes, -best_miss, rcond=None)[0] * nudges
        # The replayed queue answers in small jumps: a step that makes things worse is halved before it is given up.
        for share in (1.0, 0.5, 0.25):
            candidate = np.maximum(floor, best + share * change)
            miss = misses(candidate)
            if float(miss @ miss) < float(best_miss @ best_miss):
                best, best_miss = candidate, miss
                break
        else:
            break
    return best
