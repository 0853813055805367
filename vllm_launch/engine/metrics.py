"""What the engine says of itself: its `/metrics` page once a second, as flat samples for `engine.jsonl`.

An engine that lacks some of the names still yields the others, and `missing` says which; a page that is neither vLLM's
nor SGLang's yields its time only. GPUs of this machine are sampled beside it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from exporters.run_store import AppendedFile
from vllm_launch.engine import api, metric_names
from vllm_launch.engine.gpus import Gpus

_CACHE_CONFIG = "vllm:cache_config_info"
_LOCAL = {"127.0.0.1", "localhost", "::1"}
_DIALECTS = {
    "vllm": (metric_names.VLLM, metric_names.VLLM_HISTOGRAMS),
    "sglang": (metric_names.SGLANG, metric_names.SGLANG_HISTOGRAMS),
}


def read_sample(page: str, time_ns: int) -> dict[str, Any]:
    """One scrape as a flat dict: `time_ns` (wall clock), gauges and counters by short name, histograms as `NAME_sum`
    and `NAME_count`, of TTFT and ITL also `NAME_buckets` (upper bound in seconds -> requests or gaps up to it), and
    `missing` (short names the page lacks) where there are any.
    """
    samples = list(_samples(page))
    prefixes = {name.partition(":")[0] for name, _, _ in samples}
    dialect = next((name for name in _DIALECTS if name in prefixes), None)
    sample: dict[str, Any] = {"time_ns": time_ns}
    if dialect is None:
        return {**sample, "missing": sorted({*metric_names.VLLM, *metric_names.VLLM_HISTOGRAMS})}
    plain, histograms = _DIALECTS[dialect]
    there = {name for name, _, _ in samples}
    wanted = _chosen({**plain, **metric_names.SIMULATED}, there)
    for short, names in histograms.items():
        if name := next((name for name in names if f"{name}_count" in there), None):
            wanted |= {f"{name}_sum": f"{short}_sum", f"{name}_count": f"{short}_count"}
            if short in metric_names.WHOLE:
                wanted[f"{name}_bucket"] = f"{short}_buckets"
    for name, labels, value in samples:
        key = wanted.get(name)
        # A gauge that nobody has set yet is NaN to some clients of Prometheus.
        if key is None or not math.isfinite(value):
            continue
        if key.endswith("_buckets"):
            if bound := labels.get("le"):
                buckets = sample.setdefault(key, {})
                buckets[bound] = buckets.get(bound, 0.0) + value
            continue
        so_far = sample.get(key, 0.0)
        sample[key] = max(value, so_far) if key in metric_names.LARGEST else so_far + value
    expected = {*plain, *(f"{short}{part}" for short in histograms for part in ("_sum", "_count"))}
    missing = sorted(expected - sample.keys())
    return {**sample, "missing": missing} if missing else sample


def _chosen(table: Mapping[str, tuple[str, ...]], there: set[str]) -> dict[str, str]:
    """The names that are read, each with its short name: of several for one thing the first that is there."""
    found = {}
    for short, names in table.items():
        if name := next((name for name in names if name in there), None):
            found[name] = short
    return found


def read_cache_config(page: str) -> dict[str, str]:
    """The labels of vLLM's cache_config_info: block size, number of blocks, cache type and so on; {} if not there."""
    return next((dict(labels) for name, labels, _ in _samples(page) if name == _CACHE_CONFIG), {})


def _samples(page: str) -> Iterable[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


class Scraper:
    """Scrapes `URL/metrics` each `interval_s` in a thread until stopped. A failed scrape becomes a sample with `error`.

    Where the engine runs on this machine, its GPUs are sampled with it (`gpus`: which, as for `Gpus`).
    Samples are appended to `path` once its folder is there (the run directory is made by the load test), earlier ones
    first.
    """

    def __init__(self, url: str, path: Path, interval_s: float = 1.0, gpus: str | None = None) -> None:
        self._url = url
        self._path = path
        self._interval_s = interval_s
        self._file: AppendedFile | None = None
        self._unwritten: list[dict[str, Any]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._scrape_on, name="engine-metrics", daemon=True)
        self._gpus = Gpus(gpus if urlsplit(url).hostname in _LOCAL else "")
        self.latest: dict[str, Any] = {}
        self.failures = 0
        self.taken = 0

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=10)
        self._write()
        if self._file is not None and not self._thread.is_alive():
            self._file.close()

    def _scrape_on(self) -> None:
        due = time.monotonic()
        with self._gpus:
            while not self._stopped.is_set():
                self._scrape()
                due = max(due + self._interval_s, time.monotonic())
                self._stopped.wait(due - time.monotonic())

    def _scrape(self) -> None:
        now_ns = time.time_ns()
        try:
            sample = read_sample(api.ask(self._url, "/metrics"), now_ns)
            self.latest = sample
        except (api.EngineUnreachable, ValueError) as error:
            sample = {"time_ns": now_ns, "error": str(error)[:200]}
            self.failures += 1
        self.taken += 1
        self._unwritten.append(sample | self._gpus.sample())
        self._write()

    def _write(self) -> None:
        if not self._unwritten or not self._path.parent.is_dir():
            return
        self._file = self._file or AppendedFile(self._path)
        self._file.write(b"".join(msgspec.json.encode(sample) + b"\n" for sample in self._unwritten))
        self._unwritten.clear()
