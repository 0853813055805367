"""What a worker measures of itself while it measures the server: loop lag, CPU, streams in flight, clock steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import gevent
import psutil

from exporters.histogram import LatencyHistogram
from exporters.quality import WorkerHealth

_PERIOD_S = 0.02
_LAGS_AT_ONCE = 50
_STEP_NOTICED_S = 0.0005
_SAMPLES_A_LOOK_AT_THE_MACHINE = 25


class SelfWatch:
    """Samples this process fifty times a second inside the measured window; memory does not grow with time.

    `in_flight` and `asked` are read at each sample: streams that are under way, and how many there should be (None
    where nobody asked for a number of them).
    """

    def __init__(self, in_flight: Callable[[], int], asked: Callable[[], int | None]) -> None:
        self._in_flight = in_flight
        self._asked = asked
        self._lags = LatencyHistogram()
        self._fresh_lags: list[float] = []
        self._samples = 0
        self._flying = 0
        self._wanted: int | None = None
        self._largest_step_s = 0.0
        self._cpu_s = 0.0
        self._wall_s = 0.0
        self._machine_busy: float | None = None
        self._greenlet: gevent.Greenlet | None = None

    def start(self, delay_s: float) -> None:
        """Begins sampling after `delay_s`, the rest of the warm-up."""
        self._greenlet = gevent.spawn(self._watch, max(delay_s, 0.0))

    def stop(self) -> None:
        """Ends sampling: what follows is the drain, which is not measured."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
            self._greenlet = None

    def health(self) -> WorkerHealth:
        """The measurements so far; counts of requests are the recorder's to add."""
        self._take_lags()
        median, tail = self._lags.quantiles((0.5, 0.99)) if self._samples else (None, None)
        return WorkerHealth(
            loop_lag_p50_s=_float(median),
            loop_lag_p99_s=_float(tail),
            cpu_share=self._cpu_s / self._wall_s if self._wall_s > 0.5 else None,
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            machine_busy=self._machine_busy,
            wall_clock_step_s=self._largest_step_s if self._samples else None,
            in_flight_mean=self._flying / self._samples if self._samples else None,
            in_flight_asked=self._wanted / self._samples if self._samples and self._wanted is not None else None,
        )

    def _take_lags(self) -> None:
        self._lags.add(self._fresh_lags)
        self._fresh_lags.clear()

    def _watch(self, delay_s: float) -> None:
        gevent.sleep(delay_s)
        began, cpu_began = time.perf_counter(), time.process_time()
        offset = _wall_offset_s()
        machine_began = _machine_s()
        while True:
            due = time.perf_counter() + _PERIOD_S
            gevent.sleep(_PERIOD_S)
            self._fresh_lags.append(time.perf_counter() - due)
            if len(self._fresh_lags) >= _LAGS_AT_ONCE:
                self._take_lags()
            self._samples += 1
            self._flying += self._in_flight()
            asked = self._asked()
            if asked is not None:
                self._wanted = (self._wanted or 0) + asked
            now_offset = _wall_offset_s()
            step = abs(now_offset - offset)
            if step > _STEP_NOTICED_S:
                self._largest_step_s = max(self._largest_step_s, step)
            offset = now_offset
            self._cpu_s, self._wall_s = time.process_time() - cpu_began, time.perf_counter() - began
            if self._samples % _SAMPLES_A_LOOK_AT_THE_MACHINE == 0:
                busy_s, all_s = (now - then for now, then in zip(_machine_s(), machine_began, strict=True))
                self._machine_busy = busy_s / all_s if all_s > 0 else None


def _machine_s() -> tuple[float, float]:
    """CPU seconds of all cores since the machine started: those used by anything, and all."""
    times = psutil.cpu_times()
    # Guests' time is part of users' time already.
    all_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return all_s - times.idle - getattr(times, "iowait", 0.0), all_s


def _wall_offset_s() -> float:
    """Wall clock minus monotonic clock; the least disturbed of three readings."""
    best, spread = 0.0, float("inf")
    for _ in range(3):
        before = time.perf_counter()
        wall = time.time()
        after = time.perf_counter()
        if after - before < spread:
            best, spread = wall - (before + after) / 2, after - before
    return best


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
