"""The Prometheus page says what the summary says, and says it in a form that Prometheus' own parser takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporters.compare import compare
from exporters.prometheus import BOUNDS_S, HISTOGRAMS, RunMetrics
from exporters.quantiles import LEVELS
from tests.support.runs import failed, meta, queueing_records, record, store

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _samples(metrics: RunMetrics) -> Samples:
    page, kind = metrics.exposition()
    assert kind.startswith("text/plain")
    found: Samples = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} stands twice"
            found[key] = sample.value
    return found


def _value(found: Samples, name: str, **labels: str) -> float:
    hits = [v for (n, held), v in found.items() if n == name and set(labels.items()) <= held]
    assert len(hits) == 1, (name, labels, hits)
    return hits[0]


def test_a_stored_run_is_shown_as_its_summary_has_it(tmp_path: Path) -> None:
    run = store(tmp_path / "r", [*queueing_records(3), *(failed(5000 + i, at_s=i) for i in range(7))], slo="ttft<300ms")
    found = _samples(RunMetrics.of(run))
    summary = run.summary
    for metric in HISTOGRAMS:
        told = summary["metrics"][f"{metric}_s"]
        assert _value(found, f"tailgate_{metric}_seconds_count", request_class="chat") == told["count"]
        assert _value(found, f"tailgate_{metric}_seconds_sum", request_class="chat") == pytest.approx(
            told["mean"] * told["count"]
        )
    for level, share in LEVELS.items():
        told = summary["metrics"]["ttft_s"][level]
        labels = {"metric": "ttft", "quantile": f"{share:g}", "request_class": "chat"}
        if told is not None:
            assert _value(found, "tailgate_quantile_seconds", **labels) == pytest.approx(told, rel=0.005)
    assert _value(found, "tailgate_requests_total", outcome="ok") == summary["requests"]["ok"]
    assert _value(found, "tailgate_requests_total", outcome="failed", error="http_500") == 7
    assert _value(found, "tailgate_output_tokens_total") == summary["tokens"]["output"]
    assert _value(found, "tailgate_prompt_tokens_total") == summary["tokens"]["prompt"]
    assert 0 < summary["goodput"]["share"] < 1
    assert _value(found, "tailgate_goodput_ratio", request_class="") == pytest.approx(summary["goodput"]["share"])
    assert _value(found, "tailgate_measurement_valid") == float(summary["valid"])


def test_buckets_hold_exactly_what_is_at_most_their_bound() -> None:
    metrics = RunMetrics(meta())
    late = (0.0005, 0.001, 0.0010001, 0.06, 59.9, 60.0, 75.0)
    metrics.observe([record(i, at_s=i, ttft_s=ttft) for i, ttft in enumerate(late)])
    found = _samples(metrics)
    for bound in BOUNDS_S:
        assert _value(found, "tailgate_ttft_seconds_bucket", le=f"{bound:g}") == sum(x <= bound for x in late)
    assert _value(found, "tailgate_ttft_seconds_bucket", le="+Inf") == len(late)


def test_bounds_resolve_a_millisecond_to_a_minute() -> None:
    bounds = np.array(BOUNDS_S)
    assert bounds[0] <= 0.001
    assert bounds[-1] == 60.0
    assert (bounds[1:] / bounds[:-1]).max() < 1.35


def test_what_comes_in_parts_counts_as_what_comes_at_once() -> None:
    records = queueing_records(4)
    parts, whole = RunMetrics(meta()), RunMetrics(meta())
    for start in range(0, len(records), 97):
        parts.observe(records[start : start + 97])
    whole.observe(records)
    one, other = _samples(parts), _samples(whole)
    assert one.keys() == other.keys()
    assert one == pytest.approx(other)


def test_what_lies_outside_the_window_is_not_counted() -> None:
    metrics = RunMetrics(meta())
    metrics.observe([record(0), record(1, in_window=False)])
    found = _samples(metrics)
    assert _value(found, "tailgate_requests_total", outcome="ok") == 1
    assert _value(found, "tailgate_ttft_seconds_count") == 1


def test_a_quantile_with_too_few_beyond_it_is_not_shown() -> None:
    metrics = RunMetrics(meta())
    metrics.observe([record(i) for i in range(100)])
    shown = {dict(held)["quantile"] for (name, held) in _samples(metrics) if name == "tailgate_quantile_seconds"}
    assert shown == {"0.5", "0.9"}


@pytest.mark.parametrize("simulated", [True, False])
def test_a_simulated_run_says_so_on_every_line(simulated: bool) -> None:
    metrics = RunMetrics(meta(simulated=simulated))
    metrics.observe([record(0), failed(1)])
    metrics.set_state(in_flight=3, workers=2, valid=True)
    found = _samples(metrics)
    assert _value(found, "tailgate_in_flight") == 3
    assert all(("simulated", "true") in held for _, held in found) is simulated
    assert any("simulated" in dict(held) for _, held in found) is simulated


def test_hostile_names_stay_inside_their_label() -> None:
    evil = 'x"} 1\ntailgate_workers 9\\'
    metrics = RunMetrics(meta(label=evil))
    metrics.observe([record(0, request_class=evil)])
    found = _samples(metrics)
    assert _value(found, "tailgate_ttft_seconds_count", request_class=evil, label=evil) == 1
    assert _value(found, "tailgate_workers") == 0


def test_the_baseline_stands_beside_it(tmp_path: Path) -> None:
    base = store(tmp_path / "a", queueing_records(1))
    slow = store(tmp_path / "b", queueing_records(1, slower=2.0))
    metrics = RunMetrics.of(slow)
    comparison = compare([base], [slow])
    metrics.set_comparison(comparison)
    found = _samples(metrics)
    figure = comparison.metric("itl_p95")
    for name, expected in (("", figure.ratio), ("_low", figure.low), ("_high", figure.high)):
        assert _value(found, f"tailgate_baseline_ratio{name}", metric="itl_p95") == pytest.approx(expected)
    assert _value(found, "tailgate_baseline_quantile_seconds", metric="itl", quantile="0.95") == pytest.approx(
        figure.base
    )
    assert _value(found, "tailgate_regression", metric="itl_p95") == 1
    assert _value(found, "tailgate_regression", metric="error_share") == 0
    other = store(tmp_path / "c", queueing_records(1), model="another")
    metrics.set_comparison(compare([base], [other]))
    assert not any(name == "tailgate_regression" for name, _ in _samples(metrics)), "a refused one says nothing"


def test_the_page_is_served_as_wsgi() -> None:
    metrics = RunMetrics(meta())
    metrics.observe([record(0)])
    answered: list[tuple[str, list[tuple[str, str]]]] = []

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
        answered.append((status, headers))

    body = b"".join(metrics.wsgi_app({"PATH_INFO": "/metrics"}, start))
    assert b"tailgate_ttft_seconds_bucket" in body
    assert answered[0][0] == "200 OK"
    assert dict(answered[0][1])["Content-Length"] == str(len(body))
    assert metrics.wsgi_app({"PATH_INFO": "/else"}, start) == [b"metrics are at /metrics\n"]
    assert answered[1][0] == "404 Not Found"
