"""Quantiles of values that come in parts are numpy's, to the last bit, whatever the values are."""

from __future__ import annotations

import numpy as np
import pytest

from exporters.quantiles import Floats, statistics
from exporters.selection import quantiles_in_parts, statistics_in_parts

RNG = np.random.default_rng(8)
LEVELS = [0.0, 0.013, 0.5, 0.9, 0.95, 0.97, 0.99, 0.999, 1.0]


@pytest.mark.parametrize(
    "values",
    [
        RNG.gamma(50, 0.0002, 30_001),
        RNG.lognormal(-4, 3, 20_000),
        np.full(5000, 0.01),
        np.concatenate((np.zeros(400), np.full(5000, 0.01), RNG.exponential(9000, 30))),
        RNG.integers(1, 9, 4000) * 1e-9,
        np.array([0.25]),
        np.array([0.1, 0.3]),
    ],
    ids=["peaked", "spread", "alike", "odd ends", "nanoseconds", "one", "two"],
)
def test_they_are_numpys_to_the_last_bit(values: Floats) -> None:
    pieces = np.array_split(values, 7)
    assert np.array_equal(quantiles_in_parts(lambda: pieces, LEVELS), np.quantile(values, LEVELS))
    found, whole = statistics_in_parts(lambda: pieces), statistics(values.copy())
    assert found.pop("mean") == pytest.approx(whole.pop("mean"), rel=1e-13)
    assert found == whole


def test_nothing_has_no_quantiles() -> None:
    assert np.isnan(quantiles_in_parts(lambda: [np.empty(0)], [0.5])).all()
    assert statistics_in_parts(list) == statistics(np.empty(0))
