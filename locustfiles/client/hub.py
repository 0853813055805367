"""What runs inside gevent's hub: readiness of many sockets in batches, and long work cut into slices."""

from __future__ import annotations

import math
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import gevent
import gevent.monkey

READ, WRITE = 1, 2
_MOST_READY_AT_ONCE = 256
_SLICE_S = 0.0005


class BatchedReadiness:
    """Calls a function for each socket with something to read, many sockets for each turn of gevent's loop.

    One epoll of our own nested in gevent's costs a system call a batch; a watcher a socket costs a trip through the
    event loop each. Sockets stay registered between requests, so that a closed idle connection is noticed too.
    Without a loop nothing happens but when `poll` is called.
    """

    def __init__(self, loop: Any | None) -> None:
        self._epoll = gevent.monkey.get_original("select", "epoll")()
        self._calls: dict[int, Callable[[], object]] = {}
        self._watcher = loop.io(self._epoll.fileno(), READ, ref=False) if loop else None
        if self._watcher:
            self._watcher.start(self.poll)

    def add(self, fd: int, call: Callable[[], object]) -> None:
        self._calls[fd] = call
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> bool:
        """Whether `fd` was watched until now."""
        if not self._calls.pop(fd, None):
            return False
        self._epoll.unregister(fd)
        return True

    def poll(self) -> None:
        """Serves what is ready now, without waiting."""
        calls = self._calls
        for fd, _ in self._epoll.poll(0, _MOST_READY_AT_ONCE):
            # An earlier call of this batch may have closed a later one's socket.
            if call := calls.get(fd):
                call()

    def close(self) -> None:
        if self._watcher:
            self._watcher.stop()
            self._watcher.close()
        self._epoll.close()
        self._calls.clear()


class WatchedReadiness:
    """The same through one gevent watcher a socket, for systems that have no epoll."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._watchers: dict[int, Any] = {}

    def add(self, fd: int, call: Callable[[], object]) -> None:
        watcher = self._watchers[fd] = self._loop.io(fd, READ, ref=False)
        watcher.start(call)

    def remove(self, fd: int) -> bool:
        watcher = self._watchers.pop(fd, None)
        if watcher:
            watcher.stop()
            watcher.close()
        return bool(watcher)

    def poll(self) -> None:
        """Nothing to do: the loop polls each socket itself."""

    def close(self) -> None:
        for fd in list(self._watchers):
            self.remove(fd)


Readiness = BatchedReadiness | WatchedReadiness


def readiness(loop: Any) -> Readiness:
    """The cheapest way this system has of watching many sockets from `loop`."""
    try:
        gevent.monkey.get_original("select", "epoll")
    except AttributeError:
        return WatchedReadiness(loop)
    return BatchedReadiness(loop)


class Task(Protocol):
    def step(self) -> bool:
        """Does a bounded piece of work (well under a millisecond); whether more is left."""
        ...


class WorkQueue:
    """Work that may wait (parsing), done in slices of half a millisecond between which the loop polls its sockets.

    Urgent tasks (a stream that seems to have ended: a user waits for it) go before the rest.
    """

    def __init__(self, loop: Any) -> None:
        self._urgent: deque[Task] = deque()
        self._patient: deque[Task] = deque()
        # A timer of no delay fires once for each turn of the loop, after its sockets were polled; gevent's run_callback
        # would call us again and again before polling.
        self._timer = loop.timer(0.0)

    def add(self, task: Task, urgent: bool = False) -> None:
        (self._urgent if urgent else self._patient).append(task)
        if not self._timer.active:
            self._timer.start(self._run)

    def _run(self) -> None:
        end = time.perf_counter() + _SLICE_S
        urgent, patient = self._urgent, self._patient
        try:
            while urgent or patient:
                queue = urgent or patient
                task = queue.popleft()
                if task.step():
                    queue.append(task)
                if time.perf_counter() >= end:
                    break
        finally:
            if urgent or patient:
                self._timer.start(self._run)

    def close(self) -> None:
        self._timer.stop()
        self._timer.close()


def wait_writable(hub: Any, fd: int, timeout_s: float = math.inf) -> bool:
    """Blocks the calling greenlet until `fd` can be written to; False if that took longer than `timeout_s`."""
    watcher = hub.loop.io(fd, WRITE)
    try:
        with gevent.Timeout(None if timeout_s == math.inf else max(0.0, timeout_s), False):
            hub.wait(watcher)
            return True
        return False
    finally:
        watcher.close()
