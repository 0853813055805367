"""What the web UI's *Tail latency* tab shows, as plain data; `tab/` holds the page that draws it.

Times are seconds; the page shows ms with four significant digits, which is also the precision a figure is given with.
Names of classes, models and errors come from users and servers: the page sets them as text, never as markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from exporters import wording
from exporters.histogram import BUCKETS, EDGES_S, LatencyHistogram
from exporters.live import CHARTED, WHOLE, LiveRun
from exporters.tables import TITLES

LEVELS_SHOWN = ("p50", "p95", "p99")
_PER_BIN = 8
_METRICS_SHOWN = ("ttft", "itl", "tpot", "e2e", "stall")

Json = dict[str, Any]


def nothing_yet(state: str) -> Json:
    """Before the first run."""
    return {"state": state, "run": None}


def snapshot(live: LiveRun, state: str, cls: str = WHOLE) -> Json:
    """Everything the tab shows of one class ("" for all together); `state` is Locust's own word."""
    cls = cls if cls in live.sent else WHOLE
    facts = live.facts
    return {
        "state": state,
        "run": {
            "label": facts.label,
            "workload": facts.workload,
            "model": facts.model,
            "engine": " ".join(filter(None, (facts.engine, facts.engine_version))) or None,
            "simulated": facts.simulated,
            "open_loop": facts.open_loop,
            "started_utc": facts.meta.get("started_utc"),
            "seconds": live.seconds,
            "over": live.summary is not None,
            "clock": facts.clock,
        },
        "validity": _validity(live),
        "requests": _requests(live),
        "rates": _rates(live),
        "goodput": {"slo": facts.slo, "share": live.goodput_share(WHOLE)},
        "baseline": None if live.baseline is None else {"label": live.baseline.label},
        "verdict": _verdict(live),
        "classes": live.classes,
        "class": cls,
        "figures": [row for name in (WHOLE, *live.classes) for row in _figures(live, name)],
        "over_time": {metric: live.over_time(metric, cls) for metric in CHARTED},
        "distribution": {metric: _distribution(live, metric, cls) for metric in CHARTED},
        "workers": _workers(live),
    }


def _validity(live: LiveRun) -> Json:
    reasons = live.reasons()
    if live.summary is not None:
        word = "not valid" if reasons else "valid"
    else:
        word = "not valid" if reasons else "valid so far"
    return {"word": word, "reasons": reasons}


def _requests(live: LiveRun) -> Json:
    by_outcome = dict.fromkeys(("ok", "failed", "cancelled"), 0)
    by_error: dict[str, int] = {}
    for (_, outcome, error), count in live.requests.items():
        by_outcome[outcome] += count
        if error:
            by_error[error] = by_error.get(error, 0) + count
    return {**by_outcome, "in_flight": live.in_flight, "by_error": dict(sorted(by_error.items()))}


def _rates(live: LiveRun) -> Json:
    """Requests and output tokens a second: of the summary, or of what has ended so far."""
    baseline = live.baseline.output_tokens_per_s if live.baseline else None
    if live.summary is not None:
        throughput = live.summary["throughput"]
        return {
            "requests_per_s": throughput["requests_per_s"],
            "output_tokens_per_s": throughput["output_tokens_per_s"],
            "baseline_output_tokens_per_s": baseline,
        }
    seconds = max(live.seconds, 1e-9)
    ok = sum(count for (_, outcome, _), count in live.requests.items() if outcome == "ok")
    tokens = sum(count for (_, what), count in live.tokens.items() if what == "output")
    return {
        "requests_per_s": ok / seconds,
        "output_tokens_per_s": tokens / seconds,
        "baseline_output_tokens_per_s": baseline,
    }


def _verdict(live: LiveRun) -> Json | None:
    comparison = live.comparison
    if comparison is None:
        return None
    return {"word": comparison.verdict, "sentence": wording.sentence(comparison)}


def _figures(live: LiveRun, cls: str) -> Iterable[Json]:
    for metric in _METRICS_SHOWN:
        found = live.statistics(metric, cls)
        if not found["count"]:
            continue
        row: Json = {"class": cls, "metric": metric, "title": TITLES[f"{metric}_s"], "count": found["count"]}
        for level in LEVELS_SHOWN:
            base = live.baseline.quantiles.get((metric, cls, level)) if live.baseline else None
            row[level] = {"value": found[level], "baseline": base}
        yield row


def _distribution(live: LiveRun, metric: str, cls: str) -> Json:
    """Shares of the observations by latency: `bins` of `[from_s, to_s, share]`; the baseline's, of all classes."""
    tally = live.tallies.get((metric, cls))
    base = live.baseline.histograms.get(metric) if live.baseline and cls == WHOLE else None
    return {"bins": _bins(tally.fine if tally else None), "baseline": _bins(base)}


def _bins(histogram: LatencyHistogram | None) -> list[tuple[float, float, float]]:
    if histogram is None or not histogram.count:
        return []
    starts = np.arange(1, BUCKETS - 1, _PER_BIN)
    counts = np.add.reduceat(histogram.counts[: BUCKETS - 1], starts)
    shares = counts / histogram.count
    ends = np.minimum(starts + _PER_BIN, BUCKETS - 1)
    return [
        (float(EDGES_S[starts[i]]), float(EDGES_S[ends[i]]), float(shares[i])) for i in np.flatnonzero(counts).tolist()
    ]


def _workers(live: LiveRun) -> list[Json]:
    lost: Mapping[str, str] = live.lost() if live.summary is None else {}
    return [
        {
            "name": name,
            "host": worker.host,
            "clock": worker.clock,
            "in_flight": worker.in_flight,
            "cpu": _finite(worker.health.cpu_share),
            "loop_lag_p99_s": _finite(worker.health.loop_lag_p99_s),
            "sent": worker.health.sent,
            "ring_drops": worker.health.ring_drops,
            "lost": lost.get(name) or worker.health.lost,
        }
        for name, worker in sorted(live.workers.items())
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
