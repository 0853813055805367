"""Locust's statistics as we leave them: fine buckets, bulk entries equal to single ones, a clean Aggregated row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from locust import stats
from locust.stats import RequestStats

from locustfiles import locust_stats


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    # install() replaces these for good; other tests shall find them as they were.
    monkeypatch.setattr(stats, "bucket_response_time", stats.bucket_response_time)
    for owner, name in (
        (RequestStats, "log_request"),
        (stats.StatsCSV, "_percentile_fields"),
        (stats.StatsCSVFileWriter, "stats_writer"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    locust_stats.install()


@given(st.floats(min_value=0.01, max_value=3.6e6))
def test_a_bucket_is_within_half_a_percent_from_10_us_to_an_hour(time_ms: float) -> None:
    assert stats.bucket_response_time(time_ms) == pytest.approx(time_ms, rel=0.005)


def test_many_values_at_once_are_the_same_as_one_by_one() -> None:
    values = np.random.default_rng(1).lognormal(2.0, 1.5, 5000)
    one_by_one, at_once = RequestStats(), RequestStats()
    for value in values:
        one_by_one.log_request("ITL", "chat", float(value), 0)
    locust_stats.log_many(at_once, "ITL", "chat", values)
    single, bulk = one_by_one.get("chat", "ITL"), at_once.get("chat", "ITL")
    assert bulk.num_requests == single.num_requests == 5000
    assert bulk.response_times == single.response_times
    assert bulk.min_response_time == single.min_response_time
    assert bulk.max_response_time == single.max_response_time
    assert bulk.total_response_time == pytest.approx(single.total_response_time)
    assert sum(bulk.num_reqs_per_sec.values()) == 5000
    assert [bulk.get_response_time_percentile(p) for p in (0.5, 0.95, 0.99)] == [
        single.get_response_time_percentile(p) for p in (0.5, 0.95, 0.99)
    ]


def test_parts_of_requests_stay_out_of_aggregated() -> None:
    found = RequestStats()
    found.log_request("POST", "chat", 100, 5)
    for part in ("TTFT", "ITL", "TPOT", "LAG"):
        found.log_request(part, "chat", 7, 0)
    locust_stats.log_many(found, "ITL", "chat", np.array([1.0, 2.0]))
    assert (found.total.num_requests, found.total.max_response_time) == (1, 100)
    assert found.get("chat", "ITL").num_requests == 3


def test_percentiles_merged_over_workers_are_those_of_all_values() -> None:
    values = np.random.default_rng(2).gamma(4.0, 3.0, 9000)
    merged, whole = RequestStats().get("chat", "ITL"), RequestStats()
    for part in np.split(values, 3):
        worker = RequestStats()
        locust_stats.log_many(worker, "ITL", "chat", part)
        merged.extend(worker.get("chat", "ITL"))
    locust_stats.log_many(whole, "ITL", "chat", values)
    assert merged.response_times == whole.get("chat", "ITL").response_times
    assert merged.get_response_time_percentile(0.99) == pytest.approx(np.quantile(values, 0.99), rel=0.006)
