"""Callbacks at a monotonic time, to some ten microseconds where event loops round to a millisecond."""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = 0o2000000 | 0o4000
_ABSOLUTE = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Alarm:
    """A queue of (time, callback) on one Linux timer that wakes the loop as a readable file.

    Elsewhere than on Linux it falls back to the loop's own timers. Times are `time.monotonic()` seconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._armed = float("inf")
        self._libc = None
        self._fd = -1
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        except (OSError, AttributeError):
            self._libc = None
        if self._fd >= 0:
            loop.add_reader(self._fd, self._wake)

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Calls back once, at `when` or as soon as the loop can after it; never from within this call."""
        self._count += 1
        heapq.heappush(self._due, (when, self._count, callback))
        if when < self._armed:
            self._arm(when)

    def _arm(self, when: float) -> None:
        self._armed = when
        if self._fd < 0 or self._libc is None:
            self._loop.call_later(max(0.0, when - time.monotonic()), self._run)
            return
        # A time of zero would disarm the timer; a time in the past fires at once, as wanted.
        nanoseconds = max(1, int(when * 1e9))
        spec = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(*divmod(nanoseconds, 1_000_000_000)))
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None)

    def _wake(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._run()

    def _run(self) -> None:
        self._armed = float("inf")
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        if self._due:
            self._arm(self._due[0][0])

    def close(self) -> None:
        self._due.clear()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
