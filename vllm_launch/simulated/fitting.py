"""Least squares on replays: the positive numbers that bring what is simulated closest to what was measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Vector = np.ndarray
_CAUTIONS = (0.0, 0.001, 0.01, 0.1, 1.0)
_FARTHEST = 50.0  # nudges that slopes can be believed for


def least_squares(
    misses: Callable[[Vector], Vector], start: Vector, nudges: Vector, rounds: int = 5, floor: float = 0.0
) -> Vector:
    """The vector with the least sum of squared `misses` (relative errors, any number of them), none below `floor`.

    Gauss-Newton with finite differences of size `nudges`; where its step makes things worse, as it does where the
    measurement says little of some number, ever more cautious ones (Levenberg, "A method for the solution of certain
    non-linear problems in least squares", 1944).
    """
    best = np.array(start, dtype=np.float64)
    best_miss = misses(best)
    for _ in range(rounds):
        moved = [misses(best + np.where(np.arange(best.size) == i, nudges, 0.0)) for i in range(best.size)]
        slopes = np.stack([miss - best_miss for miss in moved], axis=1)
        for caution in _CAUTIONS:
            step = _step(slopes, best_miss, caution)
            if np.abs(step).max() > _FARTHEST:
                continue
            candidate = np.maximum(floor, best + step * nudges)
            miss = misses(candidate)
            if float(miss @ miss) < float(best_miss @ best_miss):
                best, best_miss = candidate, miss
                break
        else:
            break
    return best


def _step(slopes: Vector, miss: Vector, caution: float) -> Vector:
    """In nudges. `caution` is the weight of taking none, in terms of the steepest slope's."""
    weight = np.sqrt(caution * float((slopes**2).sum(axis=0).max()))
    still = weight * np.eye(slopes.shape[1])
    step: Vector = np.linalg.lstsq(np.vstack((slopes, still)), np.append(-miss, np.zeros(len(still))), rcond=None)[0]
    return step
