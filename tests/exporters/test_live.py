"""A run as it goes: counted as its summary counts it, tails over time that rest on enough, reasons as they arise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from exporters import web_tab
from exporters.columns import Columns
from exporters.compare import Measurement, compare
from exporters.counted import BOUNDS_S, Ended, count_ended
from exporters.facts import Facts
from exporters.histogram import RELATIVE_ERROR
from exporters.live import WHOLE, BaselineFigures, LiveRun, Worker
from exporters.quality import WorkerHealth
from exporters.record import RequestRecord
from tests.support.runs import START_NS, failed, meta, queueing_records, record, store


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def played(records: list[RequestRecord], seconds: int, **about: Any) -> LiveRun:
    """A live run after so many seconds, its records reported once a second when they have ended."""
    clock = Clock()
    live = LiveRun(meta(**about), now_s=clock)
    waiting = sorted(records, key=lambda one: one.end_ns)
    for second in range(1, seconds + 1):
        clock.now_s += 1
        ended = [one for one in waiting if one.end_ns <= START_NS + second * 10**9]
        waiting = waiting[len(ended) :]
        live.observe(ended)
        live.tick()
    return live


def test_it_counts_as_its_summary_does_and_ends_exact(tmp_path: Path) -> None:
    records = [*queueing_records(3), *(failed(5000 + i, at_s=i) for i in range(7))]
    run = store(tmp_path / "r", records, slo="ttft<300ms")
    live = played(records, 70, slo="ttft<300ms")
    for metric in ("ttft", "itl", "tpot", "e2e", "stall"):
        told, found = run.summary["metrics"][f"{metric}_s"], live.statistics(metric, WHOLE)
        assert found["count"] == told["count"]
        assert found["p95"] == pytest.approx(told["p95"], rel=RELATIVE_ERROR)
    assert live.goodput_share(WHOLE) == run.summary["goodput"]["share"]
    live.finish(run.summary)
    for cls in (WHOLE, "chat"):
        assert live.statistics("itl", cls) == run.summary["metrics"]["itl_s"]


def test_what_workers_counted_adds_up_to_what_one_would_have_counted() -> None:
    records = [
        *(record(i, at_s=i / 10, ttft_s=0.001 * i, gaps_s=(0.01, 0.0125, 70.0), worker=f"w{i % 3}") for i in range(60)),
        *(record(100 + i, at_s=i, request_class="long", in_window=i > 2, coalesced=1) for i in range(5)),
        *(failed(200 + i, at_s=i, error=("reset", "http_500")[i % 2]) for i in range(5)),
    ]
    about = meta(slo="ttft<30ms")
    whole, added = LiveRun(about), LiveRun(about)
    whole.observe(records)
    for start in range(0, len(records), 7):
        counted = count_ended(Columns.of(records[start : start + 7]), Facts({"slo": "ttft<30ms"}))
        added.add(msgspec.msgpack.decode(msgspec.msgpack.encode(counted), type=dict[str, Ended]))
    for key, tally in whole.tallies.items():
        other = added.tallies[key]
        assert np.array_equal(other.at_bounds, tally.at_bounds)
        assert np.array_equal(other.fine.counts, tally.fine.counts)
        assert (other.fine.least_s, other.fine.greatest_s) == (tally.fine.least_s, tally.fine.greatest_s)
        assert other.fine.total_s == pytest.approx(tally.fine.total_s, rel=1e-12)
    assert whole.tallies["itl", WHOLE].fine.count == 180
    assert (
        whole.tallies["itl", "chat"].at_bounds[[BOUNDS_S.index(0.01), BOUNDS_S.index(0.0125), -1]].tolist() == [60] * 3
    )
    assert added.requests == whole.requests
    assert whole.requests == {
        ("chat", "ok", ""): 60,
        ("long", "ok", ""): 2,
        ("chat", "failed", "reset"): 3,
        ("chat", "failed", "http_500"): 2,
    }
    assert (added.sent, added.good, added.tokens) == (whole.sent, whole.good, whole.tokens)
    assert (whole.good["chat"], whole.tokens["chat", "output"]) == (30, 240)


def test_a_point_in_time_rests_on_the_last_observations_that_are_enough() -> None:
    records = [record(i, at_s=i * 0.1, ttft_s=0.05 + 0.0001 * i) for i in range(1200)]
    live = played(records, 120)
    points = live.over_time("ttft", WHOLE)
    assert [at for at, *_ in points] == [2.0 * (i + 1) for i in range(60)]
    # 20 requests in two seconds are enough for a median, 200 for p95, 1,000 for p99.
    assert next(i for i, point in enumerate(points) if point[2] is not None) in (9, 10)
    assert next(i for i, point in enumerate(points) if point[3] is not None) in (49, 50)
    last = np.array([0.05 + 0.0001 * i for i in range(1179, 1199)])
    assert points[-1][1] == pytest.approx(float(np.median(last)), rel=0.01)


def test_a_long_run_needs_no_more_room_than_a_short_one() -> None:
    live = played([record(i, at_s=i) for i in range(3000)], 3000)
    points = live.over_time("ttft", WHOLE)
    assert 60 <= len(points) <= 180
    assert points[-1][0] > 2900
    assert [at for at, *_ in points] == sorted(at for at, *_ in points)


def test_warm_up_is_not_counted_and_time_counts_from_its_end() -> None:
    live = played([record(i, at_s=i * 0.1, in_window=i >= 50) for i in range(100)], 10)
    assert live.statistics("ttft", WHOLE)["count"] == 50


def test_why_it_is_not_valid_is_said_as_soon_as_it_is_so() -> None:
    live = played(queueing_records(1, seconds=10), 10)
    live.workers = {"w0": Worker(health=WorkerHealth(loop_lag_p99_s=0.001)), "w1": Worker()}
    assert live.reasons() == []
    live.workers["w1"].health.loop_lag_p99_s = 0.4
    assert "noticed the ends of streams late" in live.reasons()[0]
    live.workers["w1"].health.loop_lag_p99_s = 0.001
    live.lost = lambda: {"w1": "went silent"}
    assert "w1 went silent" in live.reasons()[0]
    live.lost = dict
    for late in (5, 6, 70):
        live.see_engine({"simulated_behind_steps_total": late, "step_tokens_count": 1000 + 10 * late})
    assert "the embedded engine fell behind real time in 10.0% of its steps" in live.reasons()[0]
    live.lost = lambda: {"w1": "went silent"}
    told = web_tab.snapshot(live, "running")
    assert told["validity"]["word"] == "not valid"
    assert [worker["lost"] for worker in told["workers"]] == [None, "went silent"]


def test_what_the_tab_gets_is_plain_json_whatever_happened(tmp_path: Path) -> None:
    base = store(tmp_path / "a", queueing_records(1))
    slow = store(tmp_path / "b", queueing_records(1, slower=2.0))
    live = played(queueing_records(1, slower=2.0), 60)
    live.baseline = BaselineFigures([Measurement.of(base)])
    for told in (
        web_tab.nothing_yet("ready"),
        web_tab.snapshot(LiveRun(meta()), "spawning"),
        web_tab.snapshot(live, "running"),
        web_tab.snapshot(live, "running", "chat"),
        web_tab.snapshot(live, "running", "no such class"),
    ):
        json.dumps(told, allow_nan=False)
    row = next(row for row in told["figures"] if row["class"] == "" and row["metric"] == "itl")
    assert row["p95"]["baseline"] == base.summary["metrics"]["itl_s"]["p95"]
    shares = [share for _, _, share in told["distribution"]["itl"]["bins"]]
    assert sum(shares) == pytest.approx(1)
    assert sum(share for *_, share in told["distribution"]["itl"]["baseline"]) == pytest.approx(1)
    live.finish(slow.summary, compare([base], [slow]))
    told = web_tab.snapshot(live, "stopped")
    assert told["verdict"]["word"] == "worse"
    assert told["run"]["over"] is True


def test_several_baseline_runs_are_pooled_never_averaged(tmp_path: Path) -> None:
    runs = [store(tmp_path / str(seed), queueing_records(seed, slower=seed)) for seed in (1, 3)]
    pooled = np.concatenate([run.columns.values("itl_s", run.columns.in_window) for run in runs])
    figures = BaselineFigures([Measurement.of(run) for run in runs])
    assert figures.quantiles[("itl", WHOLE, "p95")] == pytest.approx(float(np.quantile(pooled, 0.95)), rel=0.005)
