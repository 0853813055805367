"""The engine's own `/metrics` page once a second, for runs whose engine nobody else watches.

Only the lines wanted are read: parsing vLLM's whole page would stall a process that times streams. Names are vLLM V1's.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any

import gevent

from locustfiles.discovery import Api
from tailgate.exits import BadInput

logger = logging.getLogger(__name__)

_PERIOD_S = 1.0
_WANTED = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
    "vllm:num_preemptions_total": "preemptions_total",
    "vllm:prefix_cache_queries_total": "prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total": "prefix_cache_hits_total",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
    "vllm:generation_tokens_total": "generation_tokens_total",
    "vllm:iteration_tokens_total_count": "step_tokens_count",
    "vllm:time_to_first_token_seconds_sum": "ttft_s_sum",
    "vllm:time_to_first_token_seconds_count": "ttft_s_count",
    "vllm:inter_token_latency_seconds_sum": "itl_s_sum",
    "vllm:inter_token_latency_seconds_count": "itl_s_count",
    "tailgate_simulated_behind_steps_total": "simulated_behind_steps_total",
}
# Shares of each engine's own cache do not add up over data-parallel engines; everything else does.
_LARGEST = frozenset({"kv_cache_usage"})
_LINE = re.compile(rf"^({'|'.join(map(re.escape, _WANTED))})(?:\{{[^\n]*\}})? (\S+)", re.MULTILINE)


def read_page(page: str, time_ns: int) -> dict[str, Any]:
    """One page as a line of `engine.jsonl`; only `time_ns` where it is not vLLM's."""
    sample: dict[str, Any] = {"time_ns": time_ns}
    for name, text in _LINE.findall(page):
        key, value = _WANTED[name], float(text)
        before = sample.get(key, 0.0)
        sample[key] = max(before, value) if key in _LARGEST else before + value
    return sample


def read_now(api: Api) -> dict[str, Any]:
    """The page as it stands; only `time_ns` where it cannot be had."""
    try:
        status, content = api.get("/metrics")
    except BadInput:
        status, content = 0, b""
    return read_page(content.decode("utf-8", "replace") if status == 200 else "", time.time_ns())


def watch(api: Api, keep: Callable[[dict[str, Any]], None]) -> gevent.Greenlet:
    """Hands `keep` a sample a second until the greenlet returned is killed. A page that cannot be had is skipped."""

    def run() -> None:
        told = False
        while True:
            began = time.monotonic()
            try:
                status, content = api.get("/metrics")
                if status == 200:
                    keep(read_page(content.decode("utf-8", "replace"), time.time_ns()))
            except BadInput as error:
                if not told:
                    logger.warning("the engine's metrics cannot be read: %s", error)
                told = True
            gevent.sleep(max(_PERIOD_S - (time.monotonic() - began), 0.1))

    return gevent.spawn(run)
