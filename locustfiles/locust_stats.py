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
_MOST_WAITING = 1 << 16
_MIDPOINTS_MS: list[float] = [bucket_response_time(middle * 1e3) for middle in MIDPOINTS_S.tolist()]

MEASURES = frozenset({"TTFT", "ITL", "TPOT", "LAG"})
"""Types of rows that measure a part of a request that already has a row of its own."""


def install() -> None:
    """Replaces what Locust's module-level defaults get wrong for streams. Harmless when called again."""
    stats.bucket_response_time = bucket_response_time  # type: ignore[assignment]
    RequestStats.log_request = _log_request  # type: ignore[method-assign]
    StatsCSV._percentile_fields = _percentile_fields  # type: ignore[method-assign]
    StatsCSVFileWriter.stats_writer = _stats_writer  # type: ignore[method-assign]


class BulkEntry(StatsEntry):
    """A row whose values come many at a time: they are put into buckets when somebody looks at `response_times`."""

    _waiting: list[Milliseconds]
    _waiting_count: int

    @property
    def response_times(self) -> dict[Any, int]:
        if self._waiting_count:
            self._put_into_buckets()
        return self._times

    @response_times.setter
    def response_times(self, times: dict[Any, int]) -> None:
        self._times = times
        self._waiting, self._waiting_count = [], 0

    def log_many(self, values_ms: Milliseconds) -> None:
        """Enters the values as `StatsEntry.log` would one by one."""
        now = time.time()
        if (
            self.use_response_times_cache
            and self.last_request_timestamp
            and int(now) > int(self.last_request_timestamp)
        ):
            self._cache_response_times(int(now) - 1)
        count = len(values_ms)
        least, greatest = float(values_ms.min()), float(values_ms.max())
        self.num_requests += count
        self.num_reqs_per_sec[int(now)] += count
        self.last_request_timestamp = now
        self.total_response_time += float(values_ms.sum())  # type: ignore[assignment]
        self.min_response_time = least if self.min_response_time is None else min(self.min_response_time, least)  # type: ignore[assignment]
        self.max_response_time = max(self.max_response_time, greatest)  # type: ignore[assignment]
        self._waiting.append(values_ms)
        self._waiting_count += count
        if self._waiting_count > _MOST_WAITING:
            self._put_into_buckets()

    def _put_into_buckets(self) -> None:
        counts = np.bincount(bucket_of(np.concatenate(self._waiting) / 1e3))
        self._waiting, self._waiting_count = [], 0
        held = np.flatnonzero(counts)
        for bucket, number in zip(held.tolist(), counts[held].tolist(), strict=True):
            self._times[_MIDPOINTS_MS[bucket]] += number


def log_many(all_stats: RequestStats, method: str, name: str, values_ms: Milliseconds) -> None:
    """Enters many values into one row; never into Aggregated."""
    if not len(values_ms):
        return
    entry = all_stats.entries.get((name, method))
    if not isinstance(entry, BulkEntry):
        fresh = BulkEntry(all_stats, name, method, use_response_times_cache=all_stats.use_response_times_cache)
        if entry is not None:
            fresh.extend(entry)
        entry = all_stats.entries[(name, method)] = fresh
    entry.log_many(values_ms)


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
