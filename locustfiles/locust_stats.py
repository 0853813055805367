"""Locust's statistics made fit for streams: fine buckets, a clean Aggregated row, and many values entered at once.

Locust documents `bucket_response_time` as made to be replaced. That custom rows stay out of Aggregated has no hook, so
`RequestStats.log_request` is replaced too; both must be so in master and workers alike, hence `install`.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
from locust import stats
from locust.stats import RequestStats, StatsCSV, StatsCSVFileWriter, StatsEntry

from exporters.histogram import MIDPOINTS_S, bucket_of, bucket_response_time

Milliseconds = npt.NDArray[np.float64]

MEASURES = frozenset({"TTFT", "ITL", "TPOT", "LAG"})
"""Types of rows that measure a part of a request that already has a row of its own."""


def install() -> None:
    """Replaces what Locust's module-level defaults get wrong for streams. Harmless when called again."""
    stats.bucket_response_time = bucket_response_time  # type: ignore[assignment]
    RequestStats.log_request = _log_request  # type: ignore[method-assign]
    StatsCSV._percentile_fields = _percentile_fields  # type: ignore[method-assign]
    StatsCSVFileWriter.stats_writer = _stats_writer  # type: ignore[method-assign]


def log_many(all_stats: RequestStats, method: str, name: str, values_ms: Milliseconds) -> None:
    """Enters many values into one row, as `StatsEntry.log` would one by one; never into Aggregated."""
    if not len(values_ms):
        return
    entry = all_stats.entries[(name, method)]
    now = time.time()
    if entry.use_response_times_cache and entry.last_request_timestamp and int(now) > int(entry.last_request_timestamp):
        entry._cache_response_times(int(now) - 1)
    count = len(values_ms)
    least, greatest = float(values_ms.min()), float(values_ms.max())
    entry.num_requests += count
    entry.num_reqs_per_sec[int(now)] += count
    entry.last_request_timestamp = now
    entry.total_response_time += float(values_ms.sum())  # type: ignore[assignment]
    entry.min_response_time = least if entry.min_response_time is None else min(entry.min_response_time, least)  # type: ignore[assignment]
    entry.max_response_time = max(entry.max_response_time, greatest)  # type: ignore[assignment]
    times: Any = entry.response_times
    for bucket, number in zip(*np.unique(bucket_of(values_ms / 1e3), return_counts=True), strict=True):
        times[bucket_response_time(MIDPOINTS_S[bucket] * 1e3)] += int(number)


_locusts_stats_writer = StatsCSVFileWriter.stats_writer


def _stats_writer(self: StatsCSVFileWriter) -> None:
    """Locust closes the CSV files at exit while this still runs, and prints a traceback if it runs once more."""
    try:
        _locusts_stats_writer(self)
    except ValueError:
        if not self.requests_csv_filehandle.closed:
            raise


def _log_request(self: RequestStats, method: str, name: str, response_time: Any, content_length: int) -> None:
    if method not in MEASURES:
        self.total.log(response_time, content_length)
    self.entries[(name, method)].log(response_time, content_length)


def _percentile_fields(self: StatsCSV, stats_entry: StatsEntry, use_current: bool = False) -> list[Any]:
    """Percentiles in ms to the µs; Locust's own cuts them to whole ms, which an ITL of 8.9 ms does not survive."""
    if not stats_entry.num_requests:
        return self.percentiles_na
    current = use_current and stats_entry.use_response_times_cache
    read = stats_entry.get_current_response_time_percentile if current else stats_entry.get_response_time_percentile
    return [round(float(read(level) or 0), 3) for level in self.percentiles_to_report]
