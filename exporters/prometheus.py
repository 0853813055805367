"""A run as Prometheus metrics: live on the master while it goes, or of a stored run.

Counts and quantiles are those of `exporters.live`. Histograms have exact counts at the bounds in `BOUNDS_S`; quantiles
stand for one class, or with an empty `request_class` for all requests together, never for an average of several. A
simulated run carries `simulated="true"`.

Native histograms are not among them: prometheus-client (0.26) writes those in OpenMetrics 2.0 text alone, and
Prometheus servers take them in protobuf alone. A server of 3.x makes them of these buckets by its own setting
`convert_classic_histograms_to_nhcb`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from exporters.blocks import LEVELS_COMPARED
from exporters.compare import Comparison, Measurement
from exporters.counted import BOUNDS_S, HISTOGRAMS
from exporters.live import WHOLE, BaselineFigures, LiveRun
from exporters.quantiles import LEVELS
from exporters.record import RequestRecord
from exporters.run import Run

__all__ = ["BOUNDS_S", "HISTOGRAMS", "RunMetrics"]

_ABOUT = {
    "ttft": "Request handed to the kernel to the arrival of the first token event",
    "itl": "Gap between consecutive token events of one request",
    "tpot": "(last token event - first) / (output tokens - 1), one value a request",
    "e2e": "Request handed to the kernel to the end of its stream",
    "send_lag": "Actual send after the scheduled one (open loop)",
}
Labels = dict[str, str]


class RunMetrics(Collector):
    """The metrics of one run. Not for several threads at once: the master's greenlets, or one program."""

    def __init__(self, live: LiveRun | Mapping[str, Any]) -> None:
        """Of a run that goes, or of one of which only `run.json` is known yet."""
        self.live = live if isinstance(live, LiveRun) else LiveRun(live)
        facts = self.live.facts
        self._labels: Labels = {"workload": facts.workload or "", "label": str(facts.meta.get("label") or "")}
        if facts.simulated:
            self._labels["simulated"] = "true"
        self._gauges: dict[str, float] = {}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    @classmethod
    def of(cls, run: Run) -> RunMetrics:
        """Those of a stored run."""
        made = cls(run.meta)
        made.live.take(run.columns)
        made.live.finish(run.summary)
        made.set_state(workers=len(run.columns.workers))
        return made

    def observe(self, records: Iterable[RequestRecord]) -> None:
        """Counts finished requests, each of which must come once."""
        self.live.observe(records)

    def set_state(self, *, in_flight: int | None = None, workers: int | None = None, valid: bool | None = None) -> None:
        """What is known better than the live run knows it; None leaves a figure as it is."""
        given = {"in_flight": in_flight, "workers": workers, "measurement_valid": valid}
        self._gauges |= {name: float(value) for name, value in given.items() if value is not None}

    def set_baseline(self, runs: Sequence[Measurement]) -> None:
        """The runs it is held against."""
        self.live.baseline = BaselineFigures(runs)

    def set_comparison(self, comparison: Comparison) -> None:
        """The latest comparison with the baseline; a refused one clears what was said before."""
        self.live.comparison = comparison

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
        yield from self._workers()
        yield from self._against_baseline()

    def _family(self, kind: type[Any], name: str, about: str, more: Sequence[str] = ()) -> Any:
        return kind(f"tailgate_{name}", about, labels=[*self._labels, *more])

    def _values(self, *more: str) -> list[str]:
        return [*self._labels.values(), *more]

    def _histograms(self) -> Iterator[Metric]:
        for metric in HISTOGRAMS:
            family = self._family(HistogramMetricFamily, f"{metric}_seconds", _ABOUT[metric], ["request_class"])
            for (name, request_class), tally in sorted(self.live.tallies.items()):
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
        for metric, request_class in sorted(self.live.tallies):
            found = self.live.statistics(metric, request_class)
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
        for key, count in sorted(self.live.requests.items()):
            requests.add_metric(self._values(*key), count)
        yield requests
        for what in ("output", "prompt"):
            tokens = self._family(
                CounterMetricFamily,
                f"{what}_tokens",
                f"{what.title()} tokens of requests that succeeded",
                ["request_class"],
            )
            for (name, kind), count in sorted(self.live.tokens.items()):
                if kind == what:
                    tokens.add_metric(self._values(name), count)
            yield tokens

    def _fleet(self) -> Iterator[Metric]:
        live = self.live
        goodput = self._family(
            GaugeMetricFamily, "goodput_ratio", "Share of all requests sent that met every objective", ["request_class"]
        )
        for name in (*live.classes, WHOLE):
            if (share := live.goodput_share(name)) is not None:
                goodput.add_metric(self._values(name), share)
        yield goodput
        gauges = {
            "in_flight": ("Requests sent and not ended", live.in_flight),
            "workers": ("Load generators that take part", len(live.workers) - len(live.lost())),
            "measurement_valid": ("1 while the client keeps up with what it measures, else 0", not live.reasons()),
        }
        for name, (text, value) in gauges.items():
            gauge = self._family(GaugeMetricFamily, name, text)
            gauge.add_metric(self._values(), self._gauges.get(name, float(value)))
            yield gauge

    def _workers(self) -> Iterator[Metric]:
        """What each load generator measured of itself."""
        about = {
            "worker_cpu_ratio": ("CPU seconds a second of a load generator; 1 is a whole core", "cpu_share"),
            "worker_loop_lag_seconds": ("p99 of how late a load generator's event loop woke", "loop_lag_p99_s"),
            "worker_ring_drops": ("Events whose packets a load generator's ring lost", "ring_drops"),
        }
        for name, (text, attribute) in about.items():
            gauge = self._family(GaugeMetricFamily, name, text, ["worker"])
            for worker, state in sorted(self.live.workers.items()):
                value = getattr(state.health, attribute)
                if value is not None:
                    gauge.add_metric(self._values(worker), float(value))
            yield gauge

    def _against_baseline(self) -> Iterator[Metric]:
        live = self.live
        compared = live.comparison
        figures = [] if compared is None or compared.refused else compared.metrics
        baseline = live.baseline
        known: dict[tuple[str, str], float] = {}
        if baseline is not None:
            known = {(metric, level): v for (metric, cls, level), v in baseline.quantiles.items() if cls == WHOLE}
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
        rate = self._family(
            GaugeMetricFamily, "baseline_output_tokens_per_second", "Output tokens a second of the baseline"
        )
        if baseline is not None:
            rate.add_metric(self._values(), baseline.output_tokens_per_s)
        yield rate
        about = {
            "baseline_ratio": (
                "ratio",
                "This run's figure divided by the baseline's; without an interval until its end",
            ),
            "baseline_ratio_low": ("low", "Lower end of the 95 % interval of baseline_ratio"),
            "baseline_ratio_high": ("high", "Upper end of the 95 % interval of baseline_ratio"),
        }
        for name, (attribute, text) in about.items():
            gauge = self._family(GaugeMetricFamily, name, text, ["metric"])
            for figure in figures:
                value = getattr(figure, attribute)
                if value is not None and not figure.is_difference:
                    gauge.add_metric(self._values(figure.name), value)
            if attribute == "ratio" and not figures and compared is None:
                for (metric, level), base in sorted(known.items()):
                    mine = live.statistics(metric, WHOLE)[level]
                    if mine is not None and base:
                        gauge.add_metric(self._values(f"{metric}_{level}"), mine / base)
            yield gauge
        regression = self._family(
            GaugeMetricFamily,
            "regression",
            "1 where the gate calls the figure worse than the baseline's, or one of its bounds is broken",
            ["metric"],
        )
        for figure in figures:
            if figure.gated:
                regression.add_metric(self._values(figure.name), float(figure.verdict == "worse"))
        for bound in compared.held if compared is not None else ():
            if bound.met is not None:
                regression.add_metric(self._values(bound.text), float(not bound.met))
        yield regression
