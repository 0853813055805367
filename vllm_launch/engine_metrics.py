"""What the engine says of itself: its `/metrics` page once a second, as flat samples for `engine.jsonl`.

The names are vLLM V1's (0.32); an engine that lacks some still yields the others, and `missing` says which.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from vllm_launch import engine_api

GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_cache_usage": "vllm:kv_cache_usage_perc",
}
COUNTERS = {
    "preemptions_total": "vllm:num_preemptions_total",
    "prefix_cache_queries_total": "vllm:prefix_cache_queries_total",
    "prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
    "prompt_tokens_total": "vllm:prompt_tokens_total",
    "generation_tokens_total": "vllm:generation_tokens_total",
    "requests_done_total": "vllm:request_success_total",
}
HISTOGRAMS = {
    "ttft_s": "vllm:time_to_first_token_seconds",
    "itl_s": "vllm:inter_token_latency_seconds",
    "e2e_s": "vllm:e2e_request_latency_seconds",
    "queue_s": "vllm:request_queue_time_seconds",
    "prefill_s": "vllm:request_prefill_time_seconds",
    "step_tokens": "vllm:iteration_tokens_total",
}
# The embedded engine's alone: steps that came late, which no real engine has to tell.
SIMULATED = {"simulated_behind_steps_total": "tailgate_simulated_behind_steps_total"}
# KV usage is a share of each engine's own cache; everything else adds up over data-parallel engines.
_LARGEST = {"kv_cache_usage"}
_CACHE_CONFIG = "vllm:cache_config_info"


def read_sample(page: str, time_ns: int) -> dict[str, Any]:
    """One scrape as a flat dict: `time_ns` (wall clock), gauges and counters by short name, histograms as
    `NAME_sum` and `NAME_count`, and `missing` (short names the page lacks) where there are any.
    """
    wanted = {name: short for names in (GAUGES, COUNTERS, SIMULATED) for short, name in names.items()}
    for short, name in HISTOGRAMS.items():
        wanted |= {f"{name}_sum": f"{short}_sum", f"{name}_count": f"{short}_count"}
    sample: dict[str, Any] = {"time_ns": time_ns}
    for name, _, value in _samples(page):
        if name not in wanted:
            continue
        key = wanted[name]
        so_far = sample.get(key, 0.0)
        sample[key] = max(value, so_far) if key in _LARGEST else so_far + value
    missing = sorted(set(wanted.values()) - sample.keys() - SIMULATED.keys())
    return {**sample, "missing": missing} if missing else sample


def read_cache_config(page: str) -> dict[str, str]:
    """The labels of vLLM's cache_config_info: block size, number of blocks, cache type and so on; {} if not there."""
    return next((dict(labels) for name, labels, _ in _samples(page) if name == _CACHE_CONFIG), {})


def _samples(page: str) -> Iterable[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


class Scraper:
    """Scrapes `URL/metrics` each `interval_s` in a thread until stopped. A failed scrape becomes a sample with `error`.

    Samples are appended to `path` once its folder is there (the run directory is made by the load test), earlier ones
    first.
    """

    def __init__(self, url: str, path: Path, interval_s: float = 1.0) -> None:
        self._url = url
        self._path = path
        self._interval_s = interval_s
        self._unwritten: list[dict[str, Any]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._scrape_on, name="engine-metrics", daemon=True)
        self.latest: dict[str, Any] = {}
        self.failures = 0

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=10)
        self._write()

    def _scrape_on(self) -> None:
        due = time.monotonic()
        while not self._stopped.is_set():
            self._scrape()
            due = max(due + self._interval_s, time.monotonic())
            self._stopped.wait(due - time.monotonic())

    def _scrape(self) -> None:
        now_ns = time.time_ns()
        try:
            sample = read_sample(engine_api.ask(self._url, "/metrics"), now_ns)
            self.latest = sample
        except (engine_api.EngineUnreachable, ValueError) as error:
            sample = {"time_ns": now_ns, "error": str(error)[:200]}
            self.failures += 1
        self._unwritten.append(sample)
        self._write()

    def _write(self) -> None:
        if not self._unwritten or not self._path.parent.is_dir():
            return
        with self._path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(sample) + b"\n" for sample in self._unwritten))
        self._unwritten.clear()
