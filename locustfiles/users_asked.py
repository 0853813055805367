"""How many users a closed loop has: what was asked for at its start, and every change while it runs.

By hand in the web UI or by a LoadTestShape; a run whose load changed is no run of the load it began with.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent
from locust.runners import Runner

_PERIOD_S = 0.25


def watch(
    runner: Runner, asked: int, start_ns: int, tell: Callable[[list[tuple[float, int]]], None]
) -> gevent.Greenlet:
    """Until it is killed, `tell` hears all changes so far, (seconds after `start_ns`, users), whenever there is one."""
    return gevent.spawn(_watch, runner, asked, start_ns, tell)


def _watch(runner: Runner, asked: int, start_ns: int, tell: Callable[[list[tuple[float, int]]], None]) -> None:
    changes: list[tuple[float, int]] = []
    while True:
        now = runner.target_user_count
        if now and now != asked:
            asked = now
            changes.append((round(max(time.time_ns() - start_ns, 0) / 1e9, 3), now))
            tell(changes)
        gevent.sleep(_PERIOD_S)
