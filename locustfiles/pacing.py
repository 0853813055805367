"""Calls made at an instant of the wall clock, to some tens of microseconds, however busy the process is with reading.

They are made by a thread. gevent's loop gets round to a timer only when whatever runs there has ended, a millisecond
later perhaps, and then to all that fell due meanwhile at once: requests would leave in clumps. The thread needs nothing
but a core and Python's lock (the GIL), and asks for them a little ahead of time. The core it has at once where it may
ask for real-time scheduling (CAP_SYS_NICE), and otherwise when the kernel thinks it is its turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable

import gevent
from gevent.hub import Waiter
from gevent.monkey import get_original

_GIL_S = 0.00002
"""So long Python lets a thread run on that another waits for: 5 ms unless told otherwise."""
_AWAKE_NS = 80_000
"""The thread is awake so long ahead: it would be too late if it slept until the call is due."""
_LONGEST_SLEEP_S = 1.0
_TIMER_SLACK, _FINEST_NS = 29, 1  # prctl(2): the kernel lets a thread sleep 50 µs longer than asked, unless told not to

_allocate_lock = get_original("_thread", "allocate_lock")
_start_thread = get_original("_thread", "start_new_thread")
_sleep = get_original("time", "sleep")


class _Call:
    __slots__ = ("begun", "ended", "fault", "function", "waiter")

    def __init__(self, function: Callable[[], None], waiter: Waiter[None]) -> None:
        self.function = function
        self.waiter = waiter
        self.begun = self.ended = False
        self.fault: BaseException | None = None


class Pacer:
    """One process's alarm clock. What is due together is called one after the other, in the order of the times."""

    def __init__(self) -> None:
        self._hub = gevent.get_hub()
        self._order = itertools.count()
        self._lock = _allocate_lock()
        self._waiting: list[tuple[int, int, int, _Call]] = []
        self._ended: deque[_Call] = deque()
        self._news = _allocate_lock()
        self._gone = _allocate_lock()
        self._running = self._closed = False
        self._told = self._hub.loop.async_()
        self._told.start(self._wake)
        self._gil_s_before = sys.getswitchinterval()

    def call_at(self, due_ns: int, function: Callable[[], None], rank: int = 0) -> None:
        """Calls `function` at `due_ns` (epoch ns) from another thread, or at once from here where that is over; blocks
        the calling greenlet until then. A greenlet that is killed meanwhile may find that it was called all the same;
        it is never called later than that.

        Of those due at the same time the one with the lowest `rank` is called first. `function` must not touch gevent.
        """
        if due_ns <= time.time_ns():
            function()
            return
        call = _Call(function, Waiter(self._hub))
        with self._lock:
            heapq.heappush(self._waiting, (due_ns, rank, next(self._order), call))
            first = self._waiting[0][3] is call
        if first:
            self._tell()
        try:
            call.waiter.get()
        except BaseException:
            with self._lock:
                begun, call.begun = call.begun, True
            while begun and not call.ended:
                _sleep(_GIL_S)
            raise
        if call.fault is not None:
            raise call.fault

    def close(self) -> None:
        """Nobody waits any more."""
        self._closed = True
        if self._running:
            self._tell()
            self._gone.acquire()
        self._told.stop()
        self._told.close()
        sys.setswitchinterval(self._gil_s_before)

    def _tell(self) -> None:
        """There is something new for the thread to look at."""
        if not self._running:
            self._running = True
            sys.setswitchinterval(_GIL_S)
            self._news.acquire()
            self._gone.acquire()
            _start_thread(self._run, ())
        elif self._news.locked():
            self._news.release()

    def _wake(self) -> None:
        """Runs in the hub: wakes the greenlets whose calls were made."""
        while self._ended:
            self._ended.popleft().waiter.switch(None)

    # In the thread.

    def _run(self) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_TIMER_SLACK, _FINEST_NS, 0, 0, 0)
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        self._make_calls()
        self._gone.release()

    def _make_calls(self) -> None:
        untold = False
        while not self._closed:
            with self._lock:
                due_ns = self._waiting[0][0] if self._waiting else None
            ahead_ns = sys.maxsize if due_ns is None else due_ns - time.time_ns()
            if due_ns is None or ahead_ns > _AWAKE_NS:
                if untold:
                    # Not sooner: the loop would want Python's lock just when the next call is due.
                    untold = False
                    self._told.send()
                self._news.acquire(timeout=min((ahead_ns - _AWAKE_NS) / 1e9, _LONGEST_SLEEP_S))
                continue
            while time.time_ns() < due_ns:
                pass
            with self._lock:
                call = heapq.heappop(self._waiting)[3]
                if call.begun:
                    continue
                call.begun = True
            try:
                call.function()
            except BaseException as fault:
                call.fault = fault
            call.ended = True
            self._ended.append(call)
            untold = True
