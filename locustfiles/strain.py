"""How near a master is to being full, and what eases it: reports that come less often.

What a report costs its master is mostly that it comes at all: Locust's rows are merged, a row a class and metric. So
reports half as often, each of twice as much, are cheaper. What a worker that dies had not reported is in its journal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import gevent

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S, LONGEST_INTERVAL_S = 1.0, 4.0
"""A worker may send for `sending.LEASE_S` after its last confirmed report: the longest must lie well below that."""
NEAR_CPU, NEAR_LAG_S = 0.7, 0.25
FULL_CPU, FULL_LAG_S = 0.9, 1.0
_LOOK_S, _PULSE_S = 5.0, 0.05


class Strain:
    """Watches this process while it gathers a run's reports; `ease` has every worker report every so many seconds."""

    def __init__(self, ease: Callable[[float], None]) -> None:
        self.interval_s = REPORT_INTERVAL_S
        self._ease = ease
        self._cpu_share = 0.0
        self._lag_s = 0.0
        self._said: list[str] = []
        self._full = False
        self._watcher = gevent.spawn(self._watch)

    def end(self) -> None:
        """The reports have been gathered."""
        self._watcher.kill(block=False)

    def facts(self) -> dict[str, Any]:
        """For run.json: CPU seconds a second and loop lag (median, s) of the busiest five seconds, the interval between
        reports at the end (s), and what was said of it."""
        return {
            "cpu_share": round(self._cpu_share, 4),
            "loop_lag_s": round(self._lag_s, 4),
            "report_interval_s": self.interval_s,
            "said": self._said,
        }

    def _watch(self) -> None:
        while True:
            began_s, cpu_began_s, lags = time.perf_counter(), time.process_time(), []
            while (took_s := time.perf_counter() - began_s) < _LOOK_S:
                due_s = time.perf_counter() + _PULSE_S
                gevent.sleep(_PULSE_S)
                lags.append(time.perf_counter() - due_s)
            self.judge((time.process_time() - cpu_began_s) / took_s, median(lags))

    def judge(self, cpu_share: float, lag_s: float) -> None:
        """Lengthens the interval, or says that this master is full, if the last seconds were like that."""
        self._cpu_share, self._lag_s = max(self._cpu_share, cpu_share), max(self._lag_s, lag_s)
        how = f"{cpu_share:.0%} of a core busy, its loop {lag_s * 1e3:.0f} ms late"
        if self.interval_s < LONGEST_INTERVAL_S:
            if cpu_share > NEAR_CPU or lag_s > NEAR_LAG_S:
                self.interval_s *= 2
                self._say(f"the master was nearly full ({how}): workers report every {self.interval_s:g} s since then")
                self._ease(self.interval_s)
        elif not self._full and (cpu_share > FULL_CPU or lag_s > FULL_LAG_S):
            self._full = True
            self._say(
                f"the master was full ({how}), so that reports came late: have fewer users or shorter answers, give it "
                "a core of its own, or start a second fleet"
            )

    def _say(self, what: str) -> None:
        self._said.append(what)
        logger.warning("%s", what)
