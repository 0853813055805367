"""Waking greenlets at an instant of the wall clock, to some tens of microseconds, however busy the process is.

gevent's own timers round up to whole milliseconds, which is what epoll counts in. Linux has timers that are read from
like sockets (timerfd_create(2)) and know nanoseconds; elsewhere gevent's serve.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import os
import time
from typing import Any

import gevent
from gevent.hub import Waiter

_CLOCK_MONOTONIC = 1
_READ = 1
_SPIN_NS = 60_000
"""Sooner than this it is not worth going back to the loop: by then the instant would be over."""


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: an interval (unused) and a first expiry, each as seconds and ns."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Pacer:
    """One process's alarm clock. Those due together are woken one after the other, in the order of their times."""

    def __init__(self) -> None:
        self._hub = gevent.get_hub()
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, int, Waiter]] = []
        self._gone: set[int] = set()
        self._armed_ns: int | None = None
        self._fd = _make_timer()
        self._spec = _TimerSpec(0, 0, 0, 0)
        self._watcher: Any = None
        if self._fd is not None:
            self._watcher = self._hub.loop.io(self._fd, _READ)
            self._watcher.start(self._ring)

    def wait(self, due_ns: int, rank: int = 0) -> None:
        """Blocks the calling greenlet until `due_ns` (epoch ns); returns at once where that is over.

        Of those due at the same time the lowest `rank` is woken first.
        """
        if due_ns <= time.time_ns():
            return
        number, waiter = next(self._order), Waiter(self._hub)
        heapq.heappush(self._waiting, (due_ns, rank, number, waiter))
        self._arm()
        try:
            waiter.get()
        except BaseException:
            self._gone.add(number)
            raise

    def close(self) -> None:
        """Nobody waits any more."""
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _arm(self) -> None:
        if not self._waiting or self._waiting[0][0] == self._armed_ns:
            return
        self._armed_ns = self._waiting[0][0]
        ahead_ns = max(self._armed_ns - time.time_ns(), 1)
        if self._fd is None:
            if self._watcher is not None:
                self._watcher.stop()
                self._watcher.close()
            self._watcher = self._hub.loop.timer(ahead_ns / 1e9)
            self._watcher.start(self._ring)
            return
        self._spec.value_s, self._spec.value_ns = divmod(ahead_ns, 1_000_000_000)
        _libc().timerfd_settime(self._fd, 0, ctypes.byref(self._spec), None)

    def _ring(self) -> None:
        """Runs in the hub."""
        if self._fd is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 8)
        self._armed_ns = None
        waiting = self._waiting
        while waiting:
            due_ns, _, number, waiter = waiting[0]
            if number in self._gone:
                self._gone.remove(number)
                heapq.heappop(waiting)
                continue
            if due_ns - time.time_ns() > _SPIN_NS:
                break
            while time.time_ns() < due_ns:
                pass
            heapq.heappop(waiting)
            waiter.switch(None)
        self._arm()


def _make_timer() -> int | None:
    """A timer's file descriptor, non-blocking and not inherited; None where the system has none."""
    try:
        found = _libc().timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    except (AttributeError, OSError):
        return None
    return int(found) if found >= 0 else None


_loaded: Any = None


def _libc() -> Any:
    global _loaded
    if _loaded is None:
        _loaded = ctypes.CDLL(None, use_errno=True)
    return _loaded
