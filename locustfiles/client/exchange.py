"""One request on one connection: bytes received in the hub, read in slices, the greenlet woken at the end."""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import gevent
from gevent.hub import Waiter

from locustfiles.client.connection import Connection
from locustfiles.client.errors import TIMEOUT_FIRST, TIMEOUT_IDLE, TIMEOUT_TOTAL, Failure, from_exception
from locustfiles.client.hub import WorkQueue
from locustfiles.client.reading import Asked, Reading, ResponseReading

_LAST_CHUNK = b"0\r\n\r\n"
_LOOK_AGAIN_S = 600.0
_TOO_LONG = Failure(TIMEOUT_TOTAL, "the answer took too long")
_NO_FIRST = Failure(TIMEOUT_FIRST, "no first token in time")
_STALLED = Failure(TIMEOUT_IDLE, "the answer stalled")
_PIECE = 16 * 1024  # bytes read in one step: some 60 events, a quarter of a millisecond even by the book


Departure = Callable[[Callable[[], None]], None]
"""Calls what it is given when the request's time has come, once, perhaps in another thread, and returns after that. It
may raise instead: the request is not to be sent."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds allowed, None for no limit.

    `first` runs from the send to the first token event, `idle` from any byte to the next once tokens have come (once
    anything has, where the answer is not streamed), `total` from the send to the end. `connect` includes TLS.
    """

    connect: float | None = 10.0
    first: float | None = None
    idle: float | None = None
    total: float | None = 600.0


class Exchange:
    """From `run` to `release`. It is the connection's receiver and a task of the work queue meanwhile."""

    __slots__ = (
        "_acknowledged_before",
        "_asked",
        "_closed",
        "_closed_in_order",
        "_failure",
        "_fault",
        "_last_read",
        "_over",
        "_pending",
        "_queued",
        "_raw",
        "_reading",
        "_started",
        "_timeouts",
        "_timer",
        "_unsent",
        "_waiter",
        "_work",
        "answered",
        "bytes_read",
        "connection",
        "departed",
        "ended_ns",
        "sent_ns",
    )

    def __init__(
        self, work: WorkQueue, connection: Connection, asked: Asked, timeouts: Timeouts, *, reused: bool = False
    ) -> None:
        hub = gevent.get_hub()
        self.connection = connection
        self.bytes_read = 0
        self.departed = False
        self.answered = False  # any byte of a response; what was read may have been TLS's own
        self.sent_ns = self.ended_ns = time.time_ns()
        self._work = work
        self._asked = asked
        self._timeouts = timeouts
        self._reading = ResponseReading(asked)
        self._pending: deque[bytes] = deque()
        self._queued = self._over = self._closed = self._closed_in_order = self._unsent = False
        self._acknowledged_before = connection.acknowledged() if reused else None
        self._failure: Failure | None = None
        self._raw = b""
        self._fault: OSError | None = None
        self._started = self._last_read = time.monotonic()
        self._waiter = Waiter(hub)
        self._timer = hub.loop.timer(0.0)

    @property
    def went_stale(self) -> bool:
        """Whether the server had closed a reused connection before the request reached it; only that is no failure.

        It has if it closed in order and its kernel confirmed no byte of the request: a request that arrives at a closed
        socket is never confirmed, and a FIN confirms all that came before it. A reset tells nothing, because the kernel
        does not look at what a RST confirms: a server that dropped the request may be behind it.
        """
        if not self._closed or self.answered:
            return False
        before = self._acknowledged_before
        return self._unsent or (
            self._closed_in_order and before is not None and self.connection.acknowledged_at_end == before
        )

    def run(self, request: bytes, departure: Departure | None = None) -> None:
        """Sends `request` and blocks the calling greenlet until its response has ended, one way or another.

        All that can be done ahead is done when `departure` is called.
        """
        connection = self.connection
        connection.begin(self)
        self._raw = connection.codec.encode(request)
        connection.clock.sending(connection, whole_at_once=not self._asked.stream)
        given = connection.given
        try:
            with connection.kept():
                if departure:
                    departure(self._depart)
                else:
                    self._depart()
                self._set_timer()
                if self._fault:
                    raise self._fault
                if rest := self._raw[connection.given - given :]:
                    connection.send(rest, self._timeouts.total)
        except TimeoutError:
            self._end(Failure(TIMEOUT_TOTAL, "the request could not be sent in time"))
        except OSError as error:
            # A server may refuse in mid-request: what it said before it closed counts.
            self._unsent = connection.given == given
            connection.read()
            self._read_all()
            self._closed = True
            self._end(from_exception(error, connecting=False))
        self._raw = b""
        if not self._over:
            self._waiter.get()

    def _depart(self) -> None:
        """Hands to the kernel what it takes at once; may be called in another thread than all the rest."""
        self.departed = True
        self._started = time.monotonic()
        self.sent_ns = time.time_ns()
        try:
            self.connection.send_some(self._raw)
        except OSError as error:
            self._fault = error

    def result(self) -> Reading:
        """The response's meaning, as far as it came."""
        self._read_all()
        return self._reading.result(self._failure)

    def release(self) -> bool:
        """Lets go of the connection; whether it may carry another request. It is closed otherwise."""
        connection = self.connection
        self._over = True
        self._timer.stop()
        self._timer.close()
        connection.receiver = None
        if connection.open and (self._failure or not self._reading.reusable or self._pending):
            connection.close()
        return connection.open

    # Called by the connection, in the hub: as little as can be.

    def received(self, raw: bytes) -> None:
        if not self.departed:
            self.connection.take_unasked(raw)
            return
        self._last_read = time.monotonic()
        self.bytes_read += len(raw)
        self._pending.append(raw)
        # The end of a stream looks like this; the reading, soon, knows.
        ends = raw.endswith(_LAST_CHUNK)
        if ends or not self._queued:
            self._queued = True
            self._work.add(self, urgent=ends)

    def closed(self, failure: Failure | None) -> None:
        self._closed, self._closed_in_order, self._failure = True, failure is None, failure
        self._work.add(self, urgent=True)

    # Called by the work queue, in the hub.

    def step(self) -> bool:
        if self._over:
            return False
        if self._pending:
            self._read_piece()
        if self._pending and not self._over:
            return True
        self._queued = False
        if self._closed and not self._over:
            if not self._failure:
                self._reading.eof()
            self._end(self._failure)
        if self._over:
            self._waiter.switch(None)
        return False

    def _read_piece(self) -> None:
        raw = self._pending.popleft()
        if len(raw) > _PIECE:
            self._pending.appendleft(raw[_PIECE:])
            raw = raw[:_PIECE]
        try:
            plain = self.connection.codec.decode(raw)
        except ssl.SSLError as error:
            self._end(from_exception(error, connecting=False))
            return
        if plain:
            self.answered = True
            self._reading.feed(plain)
        if self._reading.complete:
            self._end(None)

    def _read_all(self) -> None:
        while self._pending and not self._reading.complete:
            self._read_piece()

    def _end(self, failure: Failure | None) -> None:
        self._over = True
        self._failure = failure
        self.ended_ns = time.time_ns()

    # Time limits: one timer, set to the nearest limit and set anew when it fires, so that reads need not touch it.

    def _set_timer(self) -> None:
        # The running timer also tells gevent's loop that someone waits: sockets alone do not keep it from ending.
        self._timer.close()
        self._timer = gevent.get_hub().loop.timer(max(0.001, self._next_limit()[0] - time.monotonic()))
        self._timer.start(self._check_time)

    def _next_limit(self) -> tuple[float, Failure | None]:
        """When the next limit runs out (monotonic seconds) and what that means; None: only that it is time to look."""
        limits, streamed = self._timeouts, self._asked.stream
        begun = bool(self._reading.token_ends) if streamed else self.bytes_read > 0
        due, failure = time.monotonic() + _LOOK_AGAIN_S, None
        if limits.total is not None and self._started + limits.total < due:
            due, failure = self._started + limits.total, _TOO_LONG
        if limits.first is not None and streamed and not begun and self._started + limits.first < due:
            due, failure = self._started + limits.first, _NO_FIRST
        if limits.idle is not None:
            # Before the answer has begun its last read may be long ago: look again each `idle` seconds from now.
            silent = (self._last_read if begun else time.monotonic()) + limits.idle
            if silent < due:
                due, failure = silent, _STALLED if begun else None
        return due, failure

    def _check_time(self) -> None:
        if self._over:
            return
        # What lies unread or unparsed because this program was late is no fault of the server's.
        self.connection.read()
        due, failure = self._next_limit()
        if failure and due <= time.monotonic() and not self._pending:
            self._end(failure)
            self._waiter.switch(None)
        else:
            self._set_timer()
