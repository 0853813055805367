"""A run as Prometheus metrics: live on the master while it goes, or of a stored run.

Only what `summary.json` counts is counted here, requests inside the window, so that the two agree. Histograms have
exact counts at the bounds in `BOUNDS_S`; quantiles come from the log-linear histogram and are within 0.4 %, and stand
for one class, or with an empty `request_class` for all
requests together, never for an average of several. A simulated run carries `simulated="true"`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from exporters.blocks import COMPARED, LEVELS_COMPARED
from exporters.columns import ABSENT, OUTCOMES, Bools, Columns
from exporters.compare import Comparison
from exporters.facts import Facts
from exporters.histogram import LatencyHistogram
from exporters.quantiles import LEVELS, Floats
from exporters.record import RequestRecord
from exporters.run import Run
from exporters.summary import good_requests

HISTOGRAMS = ("ttft", "itl", "tpot", "e2e", "send_lag")
BOUNDS_S: tuple[float, ...] = tuple(
    round(step * 10.0**exponent, 6)
    for exponent in range(-4, 2)
    for step in (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    if not (exponent == 1 and step > 6)
)
"""Upper bounds, seconds: ten a decade, from 0.1 ms to 60 s, so that a quantile read off them is within a fifth."""
WHOLE = ""
"""The `request_class` of figures that stand for all classes together; no class can have that name."""
_MEASURED = tuple(dict.fromkeys((*HISTOGRAMS, *COMPARED)))
_ABOUT = {
    "ttft": "Request handed to the kernel to the arrival of the first token event",
    "itl": "Gap between consecutive token events of one request",
    "tpot": "(last token event - first) / (output tokens - 1), one value a request",
    "e2e": "Request handed to the kernel to the end of its stream",
    "send_lag": "Actual send after the scheduled one (open loop)",
}
# Times are whole nanoseconds, whose product with 1e-9 may lie a hair above the bound they equal.
_BOUNDS = np.array(BOUNDS_S) + 0.5e-9
Labels = dict[str, str]


class _Tally:
    """One latency of one class: counts at the bounds, and the fine histogram."""

    def __init__(self) -> None:
        self.at_bounds = np.zeros(len(BOUNDS_S) + 1, dtype=np.int64)
        self.fine = LatencyHistogram()

    def add(self, values: Floats) -> None:
        if values.size:
            # A value equal to a bound belongs below it: `le` means at most.
            slots = np.searchsorted(_BOUNDS, values, side="left")
            self.at_bounds += np.bincount(slots, minlength=self.at_bounds.size)
            self.fine.add(values)


class RunMetrics(Collector):
    """The metrics of one run. Not for several threads at once: the master's greenlets, or one program.

    `meta` is the run's `run.json`. Feed it with `observe` as records come in, and with the `set_…` methods.
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:
        facts = Facts(meta)
        self._facts = facts
        self._labels: Labels = {"workload": facts.workload or "", "label": str(meta.get("label") or "")}
        if facts.simulated:
            self._labels["simulated"] = "true"
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._good: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._gauges: dict[str, float] = {}
        self._comparison: Comparison | None = None
        self._baseline: dict[tuple[str, str], float] = {}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    @classmethod
    def of(cls, run: Run) -> RunMetrics:
        """Those of a stored run."""
        made = cls(run.meta)
        made._take(run.columns)
        made.set_state(valid=run.valid, workers=len(run.columns.workers), in_flight=0)
        return made

    def observe(self, records: Iterable[RequestRecord]) -> None:
        """Counts finished requests, each of which must come once."""
        self._take(Columns.of(records))

    def set_state(self, *, in_flight: int | None = None, workers: int | None = None, valid: bool | None = None) -> None:
        """What is known of the fleet; None leaves a figure as it is."""
        given = {"in_flight": in_flight, "workers": workers, "measurement_valid": valid}
        self._gauges |= {name: float(value) for name, value in given.items() if value is not None}

    def set_baseline(self, quantiles: Mapping[tuple[str, str], float]) -> None:
        """The baseline's figures, by metric and level, like ("ttft", "p95"): seconds."""
        self._baseline = dict(quantiles)

    def set_comparison(self, comparison: Comparison) -> None:
        """The latest comparison with the baseline; a refused one clears what was said before."""
        self._comparison = None if comparison.refused else comparison

    def exposition(self) -> tuple[bytes, str]:
        """The page in Prometheus' text format, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def wsgi_app(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        """`/metrics` as a WSGI application, for a gevent or wsgiref server of its own port."""
        if environ.get("PATH_INFO", "/") not in ("/", "/metrics"):
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"metrics are at /metrics\n"]
        page, kind = self.exposition()
        start_response("200 OK", [("Content-Type", kind), ("Content-Length", str(len(page)))])
        return [page]

    def collect(self) -> Iterator[Metric]:
        """All families, for `prometheus_client`."""
        yield from self._histograms()
        yield self._quantiles()
        yield from self._counters()
        yield from self._fleet()
        yield from self._against_baseline()

    def _take(self, columns: Columns) -> None:
        inside = columns.in_window
        good = good_requests(columns, self._facts)
        for code, name in enumerate(columns.classes):
            chosen = inside & (columns.class_code == code)
            if not chosen.any():
                continue
            for metric in _MEASURED:
                values = columns.values(f"{metric}_s", chosen)
                for request_class in (name, WHOLE):
                    self._tallies.setdefault((metric, request_class), _Tally()).add(values)
            self._count(columns, chosen, name, good)

    def _count(self, columns: Columns, chosen: Bools, name: str, good: Bools | None) -> None:
        for position in np.flatnonzero(chosen):
            outcome = OUTCOMES[columns.outcome[position]]
            error = (columns.errors[position] or "unknown") if outcome == "failed" else ""
            self._requests[(name, outcome, error)] += 1
        self._sent[name] += int(chosen.sum())
        if good is not None:
            self._good[name] += int((chosen & good).sum())
        for what in ("output", "prompt"):
            tokens = getattr(columns, f"{what}_tokens")[chosen & columns.ok]
            self._tokens[(name, what)] += int(tokens[tokens != ABSENT].sum())

    def _family(self, kind: type[Any], name: str, about: str, more: Sequence[str] = ()) -> Any:
        return kind(f"tailgate_{name}", about, labels=[*self._labels, *more])

    def _values(self, *more: str) -> list[str]:
        return [*self._labels.values(), *more]

    def _histograms(self) -> Iterator[Metric]:
        for metric in HISTOGRAMS:
            family = self._family(HistogramMetricFamily, f"{metric}_seconds", _ABOUT[metric], ["request_class"])
            for (name, request_class), tally in sorted(self._tallies.items()):
                if name == metric and request_class != WHOLE and tally.fine.count:
                    upto = np.cumsum(tally.at_bounds).tolist()
                    buckets = [(f"{bound:g}", n) for bound, n in zip(BOUNDS_S, upto, strict=False)]
                    buckets.append(("+Inf", upto[-1]))
                    family.add_metric(self._values(request_class), buckets, sum_value=tally.fine.total_s)
            yield family

    def _quantiles(self) -> Metric:
        family = self._family(
            GaugeMetricFamily,
            "quantile_seconds",
            "A latency's quantile over the whole window, where at least ten observations lie beyond it",
            ["request_class", "metric", "quantile"],
        )
        for (metric, request_class), tally in sorted(self._tallies.items()):
            found = tally.fine.statistics()
            for level, share in LEVELS.items():
                value = found[level]
                if value is not None:
                    family.add_metric(self._values(request_class, metric, f"{share:g}"), value)
        return family

    def _counters(self) -> Iterator[Metric]:
        requests = self._family(
            CounterMetricFamily,
            "requests",
            "Requests that ended, by outcome and kind of error",
            ["request_class", "outcome", "error"],
        )
        for key, count in sorted(self._requests.items()):
            requests.add_metric(self._values(*key), count)
        yield requests
        for what in ("output", "prompt"):
            tokens = self._family(
                CounterMetricFamily,
                f"{what}_tokens",
                f"{what.title()} tokens of requests that succeeded",
                ["request_class"],
            )
            for (name, kind), count in sorted(self._tokens.items()):
                if kind == what:
                    tokens.add_metric(self._values(name), count)
            yield tokens

    def _fleet(self) -> Iterator[Metric]:
        goodput = self._family(
            GaugeMetricFamily, "goodput_ratio", "Share of all requests sent that met every objective", ["request_class"]
        )
        if self._facts.slo:
            for name, sent in sorted(self._sent.items()):
                goodput.add_metric(self._values(name), self._good[name] / sent)
            if sum(self._sent.values()):
                goodput.add_metric(self._values(WHOLE), sum(self._good.values()) / sum(self._sent.values()))
        yield goodput
        about = {
            "in_flight": "Requests sent and not ended",
            "workers": "Load generators that take part",
            "measurement_valid": "1 while the client keeps up with what it measures, else 0",
        }
        for name, text in about.items():
            gauge = self._family(GaugeMetricFamily, name, text)
            if name in self._gauges:
                gauge.add_metric(self._values(), self._gauges[name])
            yield gauge

    def _against_baseline(self) -> Iterator[Metric]:
        known = dict(self._baseline)
        figures = [] if self._comparison is None else self._comparison.metrics
        for figure in figures:
            metric, _, level = figure.name.partition("_")
            if level in LEVELS_COMPARED and figure.base is not None:
                known.setdefault((metric, level), figure.base)
        quantiles = self._family(
            GaugeMetricFamily, "baseline_quantile_seconds", "The baseline's quantile", ["metric", "quantile"]
        )
        for (metric, level), value in sorted(known.items()):
            quantiles.add_metric(self._values(metric, f"{LEVELS[level]:g}"), value)
        yield quantiles
        about = {
            "baseline_ratio": ("ratio", "This run's figure divided by the baseline's"),
            "baseline_ratio_low": ("low", "Lower end of the 95 % interval of baseline_ratio"),
            "baseline_ratio_high": ("high", "Upper end of the 95 % interval of baseline_ratio"),
        }
        for name, (attribute, text) in about.items():
            gauge = self._family(GaugeMetricFamily, name, text, ["metric"])
            for figure in figures:
                value = getattr(figure, attribute)
                if value is not None and not figure.is_difference:
                    gauge.add_metric(self._values(figure.name), value)
            yield gauge
        regression = self._family(
            GaugeMetricFamily, "regression", "1 where the gate calls the figure worse than the baseline's", ["metric"]
        )
        for figure in figures:
            if figure.gated:
                regression.add_metric(self._values(figure.name), float(figure.verdict == "worse"))
        yield regression
