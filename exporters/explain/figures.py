"""The figures that rules may name: what the client saw, what the engine said meanwhile, and how it was launched.

Seconds, shares (0 to 1), counts and rates per second. A figure that a run does not tell is absent, and no rule that
needs it speaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from exporters.run import Run
from tailgate.objectives import parse_objectives

# Figure -> what it is, for the evidence's text and for whoever writes a rule.
KNOWN: Mapping[str, str] = {
    "ttft_p50_s": "TTFT p50",
    "ttft_p95_s": "TTFT p95",
    "ttft_mean_s": "mean TTFT",
    "itl_p50_s": "ITL p50",
    "itl_p99_s": "ITL p99",
    "tpot_p50_s": "TPOT p50",
    "tpot_p95_s": "TPOT p95",
    "stall_p95_s": "stall p95",
    "ttft_limit_s": "limit of TTFT p95",
    "tpot_limit_s": "limit of TPOT p95",
    "output_tokens_per_s": "output tokens/s",
    "cancelled_share": "share of requests cut off",
    "failed_share": "share of requests that failed",
    "rejected_share": "share of requests refused as too many (HTTP 429, 503)",
    "client_reasons": "reasons why the run is not valid",
    "running_mean": "requests running, mean",
    "running_max": "requests running, most",
    "waiting_mean": "requests waiting, mean",
    "waiting_share": "share of scrapes with requests waiting",
    "waiting_growth": "requests waiting, last quarter less first quarter",
    "kv_cache_max": "KV cache in use, most",
    "kv_cache_mean": "KV cache in use, mean",
    "preemptions_per_request": "preemptions a request",
    "prefix_hit_share": "share of prompt tokens found in the prefix cache",
    "queue_mean_s": "engine's own mean time in the queue",
    "prefill_mean_s": "engine's own mean prefill time",
    "queue_share_of_ttft": "queue's share of the engine's TTFT",
    "prefill_share_of_ttft": "prefill's share of the engine's TTFT",
    "engine_ttft_mean_s": "engine's own mean TTFT",
    "outside_ttft_s": "client's mean TTFT less the engine's",
    "outside_share_of_ttft": "share of the client's TTFT spent outside the engine",
    "prompt_share_of_tokens": "prompt tokens' share of all tokens computed",
    "gpu_utilisation_mean": "GPU utilisation, mean",
    "gpu_power_share_mean": "GPU power against its limit, mean",
    "max_num_seqs": "max-num-seqs in effect",
    "max_num_batched_tokens": "max-num-batched-tokens in effect",
    "seqs_share": "running requests, most, against max-num-seqs",
}
# Where a run names no objective, these separate a chat that feels quick from one that does not.
DEFAULT_LIMITS = {"ttft_limit_s": 1.0, "tpot_limit_s": 0.05}


def figures_of(run: Run) -> dict[str, float]:
    """Every figure of `KNOWN` that the run tells."""
    found: dict[str, float | None] = {**_client(run), **_limits(run), **_engine(run)}
    launch = run.facts.launch
    effective = launch.get("effective") if isinstance(launch.get("effective"), Mapping) else {}
    for flag in ("max-num-seqs", "max-num-batched-tokens"):
        value = (effective or {}).get(flag, (launch.get("args") or {}).get(flag))
        found[flag.replace("-", "_")] = float(value) if isinstance(value, int) else None
    found["seqs_share"] = _ratio(found.get("running_max"), found["max_num_seqs"])
    found["outside_ttft_s"] = _less(found.get("ttft_mean_s"), found.get("engine_ttft_mean_s"))
    found["outside_share_of_ttft"] = _ratio(found["outside_ttft_s"], found.get("ttft_mean_s"))
    return {name: float(value) for name, value in found.items() if value is not None and np.isfinite(value)}


def limit_sources(run: Run) -> dict[str, str]:
    """Where each limit comes from: the run's own SLO, or the defaults."""
    named = _named_limits(run)
    return {name: "the run's SLO" if name in named else "the default" for name in DEFAULT_LIMITS}


def _client(run: Run) -> dict[str, float | None]:
    summary = run.summary
    metrics, requests = summary["metrics"], summary["requests"]
    wanted = {"ttft_s": ("p50", "p95", "mean"), "itl_s": ("p50", "p99"), "tpot_s": ("p50", "p95"), "stall_s": ("p95",)}
    found: dict[str, float | None] = {
        f"{metric[:-2]}_{name}_s": metrics[metric][name] for metric, names in wanted.items() for name in names
    }
    sent = max(requests["sent"], 1)
    by_error = requests["by_error"]
    found["output_tokens_per_s"] = summary["throughput"]["output_tokens_per_s"]
    found["cancelled_share"] = requests["cancelled"] / sent
    found["failed_share"] = requests["failed"] / sent
    found["rejected_share"] = sum(by_error.get(kind, 0) for kind in ("http_429", "http_503")) / sent
    found["client_reasons"] = len(summary["quality"]["reasons"])
    tokens = summary["tokens"]
    found["prompt_share_of_tokens"] = _ratio(tokens["prompt"], tokens["prompt"] + tokens["output"])
    return found


def _named_limits(run: Run) -> dict[str, float]:
    named: dict[str, float] = {}
    for objective in parse_objectives(run.facts.slo, "slo in run.json") if run.facts.slo else ():
        key = {"ttft": "ttft_limit_s", "tpot": "tpot_limit_s", "itl": "tpot_limit_s"}.get(objective.metric)
        if key:
            named[key] = min(objective.limit, named.get(key, objective.limit))
    return named


def _limits(run: Run) -> dict[str, float]:
    return {**DEFAULT_LIMITS, **_named_limits(run)}


def _engine(run: Run) -> dict[str, float | None]:
    window = run.window
    inside = [s for s in run.engine if window.start_ns <= s.get("time_ns", 0) <= window.end_ns and "error" not in s]
    if len(inside) < 2:
        return {}
    running, waiting, kv = (_series(inside, key) for key in ("running", "waiting", "kv_cache_usage"))
    found: dict[str, float | None] = {
        "running_mean": _mean(running),
        "running_max": _max(running),
        "waiting_mean": _mean(waiting),
        "waiting_share": _mean(waiting > 0) if waiting.size else None,
        "waiting_growth": _growth(waiting),
        "kv_cache_mean": _mean(kv),
        "kv_cache_max": _max(kv),
        "gpu_utilisation_mean": _mean(_series(inside, "gpu_utilisation")),
        "gpu_power_share_mean": _mean(_series(inside, "gpu_power_share")),
        "preemptions_per_request": _ratio(_gain(inside, "preemptions_total"), _gain(inside, "requests_done_total")),
        "prefix_hit_share": _ratio(
            _gain(inside, "prefix_cache_hits_total"), _gain(inside, "prefix_cache_queries_total")
        ),
    }
    for name, histogram in (("queue", "queue_s"), ("prefill", "prefill_s"), ("engine_ttft", "ttft_s")):
        found[f"{name}_mean_s"] = _ratio(_gain(inside, f"{histogram}_sum"), _gain(inside, f"{histogram}_count"))
    for name in ("queue", "prefill"):
        found[f"{name}_share_of_ttft"] = _ratio(found[f"{name}_mean_s"], found["engine_ttft_mean_s"])
    return found


def _series(samples: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    return np.array([float(s[key]) for s in samples if isinstance(s.get(key), int | float)])


def _gain(samples: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = _series(samples, key)
    # A counter that fell belongs to an engine that was started anew.
    return float(values[-1] - values[0]) if values.size > 1 and values[-1] >= values[0] else None


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if values.size else None


def _max(values: np.ndarray) -> float | None:
    return float(values.max()) if values.size else None


def _growth(values: np.ndarray) -> float | None:
    quarter = values.size // 4
    return float(values[-quarter:].mean() - values[:quarter].mean()) if quarter else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _less(one: float | None, other: float | None) -> float | None:
    return one - other if one is not None and other is not None else None
