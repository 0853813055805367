"""The client's measure of itself: quantiles from logarithmic steps."""

from __future__ import annotations

import numpy as np
import pytest

from locustfiles.client.spread import Spread


def test_nothing_has_no_quantile() -> None:
    assert Spread().quantile_s(0.5) is None


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_quantiles_are_within_a_step_of_the_exact_ones(q: float) -> None:
    values = np.random.default_rng(1).lognormal(10, 2, 5000).astype(np.int64)
    spread = Spread()
    for part in np.array_split(values, 7):
        spread.add(part.tolist())
    assert spread.count == 5000
    assert spread.quantile_s(q) == pytest.approx(np.quantile(values, q) / 1e9, rel=0.03)


def test_signs_do_not_matter_and_zeros_count() -> None:
    spread = Spread()
    spread.add([0, 0, 0, -1000])
    assert spread.quantile_s(0.5) == 0.0
    assert spread.quantile_s(1.0) == pytest.approx(1e-6, rel=0.03)
