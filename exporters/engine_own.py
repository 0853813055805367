"""The engine's own TTFT and ITL beside the client's, and what lies between: network, gateway, API server.

vLLM's `time_to_first_token_seconds` begins when its API server has taken a request in and ends when it hands out the
first token: what the client sees beyond that was spent on the way, in a gateway, or in the server's HTTP layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exporters.facts import Window

_LEVELS = {"p50": 0.5, "p95": 0.95}
# Beyond this the engine served others too, and its figures are not of this load.
_OTHERS = 1.2


def engine_own(
    samples: Sequence[Mapping[str, Any]],
    window: Window,
    metrics: Mapping[str, Mapping[str, Any]],
    network_s: float | None = None,
) -> dict[str, Any] | None:
    """`ttft_s` and `itl_s` of the engine (`count`, `mean`; `p50` and `p95` interpolated in its buckets) inside the
    window, `ttft_outside_s` (the client's mean less the engine's), `network_s` (as given: the run's
    quickest TCP handshake, once there and back), and `scrapes_failed`. None where the engine told nothing of it.

    `metrics` are the client's, as in a summary.
    """
    told = [s for s in samples if "ttft_s_count" in s and window.start_ns <= s.get("time_ns", 0) <= window.end_ns]
    if len(told) < 2 or told[-1]["time_ns"] - told[0]["time_ns"] < 0.5 * (window.end_ns - window.start_ns):
        return None
    found: dict[str, Any] = {}
    for name in ("ttft_s", "itl_s"):
        if own := _between(told[0], told[-1], name):
            found[name] = own
    if "ttft_s" not in found:
        return None
    client = metrics["ttft_s"]
    mean = client.get("mean")
    return {
        **found,
        "ttft_outside_s": None if mean is None else mean - found["ttft_s"]["mean"],
        "network_s": network_s,
        "others": bool(client["count"] and found["ttft_s"]["count"] > _OTHERS * client["count"] + 10),
        "scrapes_failed": sum("error" in sample for sample in samples),
    }


def _between(first: Mapping[str, Any], last: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """One histogram's growth from one sample to another; None where it did not grow, or began anew."""
    count = last.get(f"{name}_count", 0.0) - first.get(f"{name}_count", 0.0)
    if count <= 0:
        return None
    own: dict[str, Any] = {"count": int(count), "mean": (last[f"{name}_sum"] - first[f"{name}_sum"]) / count}
    before, after = first.get(f"{name}_buckets"), last.get(f"{name}_buckets")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        grown = sorted((float(bound), value - before.get(bound, 0.0)) for bound, value in after.items())
        own |= {level: _quantile(grown, share) for level, share in _LEVELS.items()}
    return own


def _quantile(cumulative: Sequence[tuple[float, float]], share: float) -> float | None:
    """Interpolated inside its bucket, as Prometheus does; the last finite bound for what lies beyond it."""
    wanted = share * cumulative[-1][1]
    low, below = 0.0, 0.0
    for bound, count in cumulative:
        if count >= wanted and count > below:
            return low if bound == float("inf") else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return None
