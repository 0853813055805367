"""The histogram keeps its promise of 0.5 % over the whole range, merges exactly, and survives its own encoding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.histogram import BUCKETS, LatencyHistogram, bucket_response_time, pack_counts, unpack_counts
from tailgate.exits import BadInput

LATENCIES = st.lists(st.floats(1e-5, 3600.0), min_size=1, max_size=300)


@given(LATENCIES, st.floats(0, 1))
def test_a_quantile_is_within_half_a_percent_of_numpys(latencies: list[float], level: float) -> None:
    values = np.array(latencies)
    true = float(np.quantile(values, level))
    assert LatencyHistogram.of(values).quantiles([level])[0] == pytest.approx(true, rel=0.005)


@given(LATENCIES, LATENCIES)
def test_merging_is_the_same_as_counting_everything_in_one_place(one: list[float], other: list[float]) -> None:
    merged = LatencyHistogram.of(np.array(one))
    merged.merge(LatencyHistogram.of(np.array(other)))
    together = LatencyHistogram.of(np.array(one + other))
    assert (merged.counts == together.counts).all()
    assert (merged.least_s, merged.greatest_s) == (together.least_s, together.greatest_s)
    assert merged.total_s == pytest.approx(together.total_s)
    assert merged.count == len(one) + len(other)


@given(LATENCIES)
def test_packing_loses_nothing(latencies: list[float]) -> None:
    histogram = LatencyHistogram.of(np.array(latencies))
    again = LatencyHistogram.from_dict(histogram.to_dict())
    assert (again.counts == histogram.counts).all()
    assert again.statistics() == histogram.statistics()


def test_an_empty_histogram_packs_too() -> None:
    again = LatencyHistogram.from_dict(LatencyHistogram().to_dict())
    assert again.count == 0
    assert np.isnan(again.quantiles([0.5])).all()
    assert again.statistics()["p50"] is None


@pytest.mark.parametrize("text", ["", "not base85 \x00", pack_counts(np.ones(BUCKETS, dtype=np.int64))[:-7]])
def test_a_damaged_histogram_is_said_to_be_one(text: str) -> None:
    with pytest.raises(BadInput, match=r"not a histogram: .*; the file is damaged; make it anew"):
        unpack_counts(text)


@given(st.floats(0.01, 3.6e6))
def test_locusts_bucket_is_close_and_settled(milliseconds: float) -> None:
    bucket = bucket_response_time(milliseconds)
    assert bucket == pytest.approx(milliseconds, rel=0.005)
    assert bucket_response_time(bucket) == bucket


@given(LATENCIES)
def test_locusts_bucket_is_the_histograms(latencies: list[float]) -> None:
    middles, counts = LatencyHistogram.of(np.array(latencies)).nonzero()
    buckets = sorted({bucket_response_time(value * 1e3) for value in latencies})
    assert buckets == pytest.approx((middles * 1e3).tolist(), rel=1e-6)
    assert counts.sum() == len(latencies)


@pytest.mark.parametrize("milliseconds", [0, 0.0, -1.0, 1e-6])
def test_what_is_too_short_counts_as_shortest(milliseconds: float) -> None:
    assert bucket_response_time(milliseconds) < 0.01


def test_what_is_too_long_keeps_its_exact_extreme() -> None:
    histogram = LatencyHistogram.of(np.array([0.0, 1e6]))
    assert histogram.quantiles([0.0, 1.0]).tolist() == [pytest.approx(0, abs=1e-5), pytest.approx(4096, rel=0.01)]
    assert histogram.greatest_s == 1e6


def test_a_million_latencies_pack_small() -> None:
    values = np.random.default_rng(0).lognormal(-4, 0.5, 1_000_000)
    assert len(LatencyHistogram.of(values).to_dict()["counts"]) < 3000
