"""Tailgate's own metrics for Prometheus, as a collector fed with live histograms and counts.

Whoever holds the live state (the master) implements `LiveState`; `TailgateCollector` turns it into metric families at
each scrape, so that nothing is counted twice and no update path costs anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from exporters.compare import Comparison
from exporters.histogram import EDGES_S, LatencyHistogram
from exporters.quantiles import LEVELS, enough

HISTOGRAMS = ("ttft", "itl", "tpot", "e2e", "send_lag")
# A Prometheus quantile is no finer than these buckets; each is below 26 % wide from 1 ms to 60 s.
BOUNDS_S = tuple(float(f"{1e-3 * 10 ** (i / 10):.3g}") for i in range(-10, 49))


@dataclass
class ClassCounts:
    """One request class so far: `latencies` by metric (`ttft`, `itl`, …), requests by (outcome, error kind), tokens."""

    latencies: Mapping[str, LatencyHistogram] = field(default_factory=dict)
    requests: Mapping[tuple[str, str], int] = field(default_factory=dict)
    output_tokens: int = 0
    prompt_tokens: int = 0


class LiveState(Protocol):
    """What is read at each scrape. `classes` by name; `comparison` only where there is a baseline."""

    workload: str
    label: str
    simulated: bool
    classes: Mapping[str, ClassCounts]
    in_flight: int
    workers: int
    valid: bool
    goodput_ratio: float | None
    comparison: Comparison | None


class TailgateCollector(Collector):
    """Yields the families. A quantile that rests on fewer than ten observations beyond it is left out."""

    def __init__(self, state: LiveState) -> None:
        self._state = state

    def describe(self) -> Sequence[Metric]:
        """Nothing: registering must not scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families as they stand now."""
        state = self._state
        run = {"workload": state.workload, "label": state.label}
        if state.simulated:
            run["simulated"] = "true"
        classes = {name: (run | {"request_class": name}, counts) for name, counts in sorted(state.classes.items())}
        yield from self._latencies(classes)
        yield self._quantiles(classes)
        yield from self._counters(classes)
        for name, about, value in (
            ("in_flight", "Requests being answered now", float(state.in_flight)),
            ("workers", "Load generating workers", float(state.workers)),
            (
                "measurement_valid",
                "1 while the client's own measurements allow trust in these figures",
                float(state.valid),
            ),
            ("goodput_ratio", "Share of requests that met every objective", state.goodput_ratio),
        ):
            if value is not None:
                yield _gauge(name, about, run, [({}, value)])
        if state.comparison is not None:
            yield from self._against_baseline(run, state.comparison)

    def _latencies(self, classes: Mapping[str, tuple[dict[str, str], ClassCounts]]) -> Iterator[Metric]:
        for metric in HISTOGRAMS:
            held = [
                (labels, counts.latencies[metric]) for labels, counts in classes.values() if metric in counts.latencies
            ]
            if not held:
                continue
            names = list(held[0][0])
            family = HistogramMetricFamily(
                f"tailgate_{metric}_seconds", f"{metric} as the client measured it", labels=names
            )
            for labels, histogram in held:
                family.add_metric([labels[n] for n in names], _buckets(histogram), histogram.total_s)
            yield family

    def _quantiles(self, classes: Mapping[str, tuple[dict[str, str], ClassCounts]]) -> Metric:
        rows = []
        base: dict[str, str] = {}
        for labels, counts in classes.values():
            base = base or {k: v for k, v in labels.items() if k != "request_class"}
            for metric, histogram in counts.latencies.items():
                told = {name: level for name, level in LEVELS.items() if enough(histogram.count, level)}
                for level, value in zip(told.values(), histogram.quantiles(told.values()), strict=True):
                    extra = {"request_class": labels["request_class"], "metric": metric, "quantile": f"{level:g}"}
                    rows.append((extra, float(value)))
        return _gauge("quantile_seconds", "Latency quantiles, at most 0.4 % off", base, rows)

    def _counters(self, classes: Mapping[str, tuple[dict[str, str], ClassCounts]]) -> Iterator[Metric]:
        names = list(next(iter(classes.values()))[0]) if classes else []
        requests = CounterMetricFamily(
            "tailgate_requests", "Requests by how they ended", labels=[*names, "outcome", "error"]
        )
        output = CounterMetricFamily("tailgate_output_tokens", "Tokens received", labels=names)
        prompt = CounterMetricFamily("tailgate_prompt_tokens", "Tokens sent", labels=names)
        for labels, counts in classes.values():
            values = [labels[n] for n in names]
            for (outcome, error), count in sorted(counts.requests.items()):
                requests.add_metric([*values, outcome, error], count)
            output.add_metric(values, counts.output_tokens)
            prompt.add_metric(values, counts.prompt_tokens)
        yield from (requests, output, prompt)

    def _against_baseline(self, run: dict[str, str], comparison: Comparison) -> Iterator[Metric]:
        quantiles = [m for m in comparison.metrics if m.unit == "s" and m.effect is not None and m.base is not None]
        split = [
            (m, dict(zip(("metric", "quantile"), m.name.rsplit("_p", 1), strict=True)))
            for m in quantiles
            if "adjusted" not in m.name
        ]
        named = [
            (m, {"metric": labels["metric"], "quantile": f"{float('0.' + labels['quantile']):g}"})
            for m, labels in split
        ]
        yield _gauge(
            "baseline_quantile_seconds",
            "The baseline's quantiles",
            run,
            [(extra, m.base) for m, extra in named if m.base],
        )
        for name, about, pick in (
            ("baseline_ratio", "This run's quantile over the baseline's", "ratio"),
            ("baseline_ratio_low", "Lower end of the ratio's 95 % interval", "low"),
            ("baseline_ratio_high", "Upper end of the ratio's 95 % interval", "high"),
        ):
            yield _gauge(name, about, run, [(extra, getattr(m, pick)) for m, extra in named])
        worse = [({"metric": m.name}, float(m.verdict == "worse")) for m in comparison.gated]
        yield _gauge("regression", "1 where a gated metric is worse than the baseline's", run, worse)


def _gauge(name: str, about: str, run: Mapping[str, str], rows: Sequence[tuple[Mapping[str, str], float]]) -> Metric:
    extra = list(rows[0][0]) if rows else []
    family = GaugeMetricFamily(f"tailgate_{name}", about, labels=[*run, *extra])
    for labels, value in rows:
        family.add_metric([*run.values(), *(labels[n] for n in extra)], value)
    return family


def _buckets(histogram: LatencyHistogram) -> list[tuple[str, float]]:
    """Cumulated counts up to each bound; a bucket of ours that straddles a bound counts above it."""
    cumulated = np.concatenate(([0], np.cumsum(histogram.counts)))
    upto = np.searchsorted(EDGES_S, BOUNDS_S, side="right") - 1
    rows = [(f"{bound:g}", float(cumulated[at])) for bound, at in zip(BOUNDS_S, upto, strict=True)]
    return [*rows, ("+Inf", float(cumulated[-1]))]
