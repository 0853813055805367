"""Changing an open loop's rate while it runs: by hand, or as Locust's number of users goes up and down."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import gevent

from tailgate.exits import BadInput
from workloads.arrivals import ArrivalSpec
from workloads.schedule import Schedule

logger = logging.getLogger(__name__)

# A change holds from so far ahead that every worker has heard of it by then.
_LEAD_S = 0.5
_PERIOD_S = 0.25
_HIGHEST = 1e6


def no_rate(why: str) -> dict[str, Any]:
    """`RateControl.state` where there is no rate to be changed."""
    return {"open": False, "text": why, "rate": None, "unit": "requests/s"}


class RateControl:
    """The rate of one run; `tell` passes each change on to those who send."""

    def __init__(self, schedule: Schedule, arrival: ArrivalSpec, tell: Callable[[float, float], None]) -> None:
        self.changes: list[tuple[float, float]] = []
        """(seconds after the start, rate from then on)."""
        self._schedule = schedule
        self._arrival = arrival
        self._tell = tell
        self._start_ns = 0
        self._follower: gevent.Greenlet | None = None

    def begin(self, start_ns: int) -> None:
        """Sending begins at `start_ns` (epoch ns)."""
        self._start_ns = start_ns

    def change(self, rate: float) -> None:
        """Another rate in a moment: requests/s, of a trace its pace; 0 pauses. Raises `BadInput`."""
        if self._arrival.rate_per_user:
            raise BadInput("the rate of this run follows its users", "change their number instead")
        if not 0 <= rate <= _HIGHEST:
            raise BadInput(f"{rate:g} is not a rate", "give requests per second, 0 for a pause")
        at_s = self._set(rate, _LEAD_S)
        unit = " times the trace's own pace" if self._arrival.kind == "trace" else " requests/s"
        logger.info("%g%s from %.1f s on", rate, unit, at_s)

    def state(self) -> dict[str, Any]:
        """`open` (may it be changed by hand), `text`, `rate` (None where it varies by itself) and its `unit`."""
        arrival = self._arrival
        planned = None if arrival.stages or arrival.wave else arrival.request_rate
        trace = arrival.kind == "trace"
        return {
            "open": not arrival.rate_per_user,
            "text": f"As planned: {arrival.text()}",
            "rate": self.changes[-1][1] if self.changes else planned,
            "unit": "times the trace's pace" if trace else "requests/s",
        }

    def follow(self, users: Callable[[], int]) -> None:
        """From now on the rate is that of `users`, each of whom stands for `rate-per-user`."""
        self._follower = gevent.spawn(self._follow, users)

    def end(self) -> None:
        """Nothing changes any more."""
        if self._follower is not None:
            self._follower.kill(block=False)

    def _follow(self, users: Callable[[], int]) -> None:
        before = 0
        while True:
            now = users()
            if now != before:
                before = now
                self._set(now * (self._arrival.rate_per_user or 0.0), _LEAD_S)
            gevent.sleep(_PERIOD_S)

    def _set(self, rate: float, lead_s: float) -> float:
        at_s = max((time.time_ns() - self._start_ns) / 1e9 + lead_s, 0.0)
        self.changes.append((at_s, rate))
        self._schedule.change_rate(at_s, rate)
        self._tell(at_s, rate)
        return at_s
