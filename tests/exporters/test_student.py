"""Student's t against scipy's."""

from __future__ import annotations

import pytest
from scipy import stats

from exporters.student import critical, two_sided_p


@pytest.mark.parametrize("df", [1, 2, 3.3, 6, 29, 500, 1e5])
def test_probabilities_are_scipys(df: float) -> None:
    for t in (0.0, 0.1, 1.0, 2.0, 5.0, 20.0, 100.0):
        assert two_sided_p(t, df) == pytest.approx(2 * stats.t.sf(t, df), rel=1e-8, abs=1e-14)
        assert two_sided_p(-t, df) == two_sided_p(t, df)


@pytest.mark.parametrize("p", [0.5, 0.05, 0.001, 0.0001])
def test_critical_values_are_scipys(p: float) -> None:
    for df in (2, 4, 29):
        assert critical(p, df) == pytest.approx(stats.t.isf(p / 2, df), rel=1e-8)
