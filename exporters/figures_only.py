"""Runs of which only printed figures are known: results of `vllm bench serve` saved without details.

They can be read and shown. No single request is known, so that no tail can be checked and no interval be given: such a
run is not valid, says so, and is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIGURES = "figures"
"""The key of run.json that holds them."""
_METRICS = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}
_STATISTICS = {"mean": "mean", "median": "p50", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p99.9": "p999"}
_REASON = (
    "imported without its single requests: only the figures that vllm bench printed are known; save results with "
    "--save-detailed"
)


def figures(found: Mapping[str, Any]) -> dict[str, Any]:
    """What such a result holds, in our names: `requests`, `throughput`, `tokens`, `metrics` in seconds."""
    metrics: dict[str, dict[str, float]] = {}
    for theirs, ours in _METRICS.items():
        told = {
            statistic: found[f"{word}_{theirs}_ms"] / 1e3
            for word, statistic in _STATISTICS.items()
            if isinstance(found.get(f"{word}_{theirs}_ms"), int | float)
        }
        if told:
            metrics[ours] = told
    ok, failed = int(found.get("completed") or 0), int(found.get("failed") or 0)
    return {
        "requests": {
            "sent": ok + failed,
            "ok": ok,
            "failed": failed,
            "by_error": {"imported": failed} if failed else {},
        },
        "throughput": {
            "requests_per_s": found.get("request_throughput") or 0.0,
            "output_tokens_per_s": found.get("output_throughput") or 0.0,
        },
        "tokens": {"prompt": found.get("total_input_tokens") or 0, "output": found.get("total_output_tokens") or 0},
        "metrics": metrics,
    }


def with_figures(summary: dict[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """`summary` with such figures in the place of those of records, where `meta` (run.json) holds any."""
    known = meta.get(FIGURES)
    if not isinstance(known, Mapping):
        return summary
    for part in ("requests", "throughput", "tokens"):
        summary[part] = {**summary[part], **known.get(part, {})}
    for name, told in known.get("metrics", {}).items():
        count = summary["requests"]["ok"]
        summary["metrics"][name] = {**summary["metrics"][name], "count": count, **told}
    summary["quality"]["reasons"] = [_REASON]
    summary["valid"] = False
    return summary
