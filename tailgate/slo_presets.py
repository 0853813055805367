"""Objectives by name, each with where it comes from.

MLPerf's limits are those of MLCommons' inference rules (github.com/mlcommons/inference, loadgen/mlperf.conf: target
latencies of the Server and Interactive scenarios in the datacenter category; v5.0 and v5.1 of 2025, v6.0 of April
2026). They bind the 99th percentile, under Poisson arrivals, counted from the scheduled time: use `--request-rate`, and
read the figures from due time beside them.
"""

from __future__ import annotations

from typing import NamedTuple


class Preset(NamedTuple):
    """`objectives` as --slo takes them, and their `source` in a line."""

    objectives: str
    source: str


def _mlperf(scenario: str, model: str, ttft_ms: int, tpot_ms: int) -> Preset:
    return Preset(
        f"ttft_p99<{ttft_ms}ms,tpot_p99<{tpot_ms}ms",
        f"MLPerf Inference datacenter, {scenario}, {model} (mlcommons/inference, loadgen/mlperf.conf)",
    )


PRESETS: dict[str, Preset] = {
    "responsive": Preset(
        "ttft_p95<1s,itl_p95<100ms",
        "this suite's own: an answer begins within a second and flows faster than people read, 19 times of 20",
    ),
    "mlperf-server": _mlperf("Server", "Llama-2-70B", 2000, 200),
    "mlperf-interactive": _mlperf("Interactive", "Llama-2-70B", 450, 40),
    "mlperf-server-8b": _mlperf("Server", "Llama-3.1-8B", 2000, 100),
    "mlperf-interactive-8b": _mlperf("Interactive", "Llama-3.1-8B", 500, 30),
    "mlperf-server-405b": _mlperf("Server", "Llama-3.1-405B", 6000, 175),
    "mlperf-interactive-405b": _mlperf("Interactive", "Llama-3.1-405B", 4500, 80),
    "mlperf-server-mixtral": _mlperf("Server", "Mixtral-8x7B", 2000, 200),
    "mlperf-server-deepseek-r1": _mlperf("Server", "DeepSeek-R1", 2000, 80),
    "mlperf-interactive-deepseek-r1": _mlperf("Interactive", "DeepSeek-R1", 1500, 15),
}
