"""One request from send to the end of its stream, on a connection from the pool; blocking only the calling greenlet."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass

import gevent
import numpy as np

from locustfiles.client.clock import Clock, Nanoseconds
from locustfiles.client.connection import CannotConnect, Connection, connect
from locustfiles.client.errors import Failure
from locustfiles.client.exchange import Departure, Exchange, Timeouts
from locustfiles.client.hub import WorkQueue
from locustfiles.client.reading import Asked, Reading
from locustfiles.client.target import Target
from locustfiles.client.tls import TlsOptions
from tailgate.exits import BadInput

__all__ = ["Cancelled", "Outcome", "StreamingClient", "Timeouts"]


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times are CLOCK_REALTIME ns by the clock named.

    TTFT (`arrivals_ns[0] - sent_ns`) never includes connection set-up, which is `connect_ns` (None where the connection
    was reused). `arrivals_ns` are the token events'. `late_events` of them had to be given a time later than their
    arrival (reads that held several events; lost stamps). `reading` is None where nothing was sent. An idle connection
    that the server had closed before the request reached it was replaced where `replaced_stale`; `sent_ns` is then that
    of the second sending.
    """

    sent_ns: int
    end_ns: int
    arrivals_ns: Nanoseconds
    reading: Reading | None
    connect_ns: int | None
    error: str | None
    error_message: str | None
    late_events: int
    clock: str
    cancelled: bool = False
    replaced_stale: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None and not self.cancelled

    @property
    def first_ns(self) -> int | None:
        """Arrival of the first token event."""
        return int(self.arrivals_ns[0]) if len(self.arrivals_ns) else None

    @property
    def gaps_ns(self) -> Nanoseconds:
        """The ITLs, in order."""
        return self.arrivals_ns[1:] - self.arrivals_ns[:-1]


class Cancelled(gevent.GreenletExit):
    """The calling greenlet was killed in mid-request; `outcome` tells how far it got. Record it and re-raise."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__("cancelled")


_NO_TIMES: Nanoseconds = np.empty(0, np.int64)


class StreamingClient:
    """Sends requests to one target and times their streams. One for all users of a process; use it from one thread."""

    def __init__(
        self,
        target: Target,
        clock: Clock,
        *,
        timeouts: Timeouts | None = None,
        tls: TlsOptions | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.target = target
        self.clock = clock
        self.timeouts = timeouts or Timeouts()
        self.in_flight = 0
        self.connections_opened = 0
        self.stale_replaced = 0
        self._work = WorkQueue(gevent.get_hub().loop)
        self._context: ssl.SSLContext | None = (tls or TlsOptions()).context() if target.scheme == "https" else None
        self._idle: list[Connection] = []
        self._head = _head(target, headers or {})

    def perform(
        self,
        endpoint: str,
        body: bytes,
        asked: Asked,
        headers: Mapping[str, str] | None = None,
        departure: Departure | None = None,
    ) -> Outcome:
        """POSTs `body` (JSON) to `endpoint` and reads its answer to the end; never raises for what the server does.

        `departure` is called when the connection stands and nothing is left but to send, once for each sending: it
        may wait for the request's time, and what it raises is passed on. Raises `Cancelled` where the calling greenlet
        is killed meanwhile.
        """
        request = b"POST %s%s%s%s\r\nContent-Length: %d\r\n\r\n%s" % (
            self.target.base_path.encode(),
            endpoint.encode(),
            self._head,
            _header_lines(headers) if headers else b"",
            len(body),
            body,
        )
        self.in_flight += 1
        try:
            idle = self._take_idle()
            if idle:
                outcome = self._attempt(idle, request, asked, None, departure)
                if outcome is not None:
                    return outcome
                self.stale_replaced += 1
            return self._perform_fresh(request, asked, departure, replaced_stale=idle is not None)
        finally:
            self.in_flight -= 1

    def close(self) -> None:
        """Closes the idle connections; call it when no request is under way. The clock is its owner's to close."""
        while self._idle:
            self._idle.pop().close()
        self._work.close()

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                # That the server has closed it may be waiting unread.
                connection.read()
            if connection.open:
                return connection
        return None

    def _perform_fresh(
        self, request: bytes, asked: Asked, departure: Departure | None, replaced_stale: bool
    ) -> Outcome:
        start_ns = time.time_ns()
        try:
            connection, connect_ns = connect(self.target, self.clock, self._context, self.timeouts.connect)
        except CannotConnect as error:
            return self._unsent(start_ns, error.failure)
        except gevent.GreenletExit:
            outcome = self._unsent(start_ns, None)
            outcome.cancelled = True
            raise Cancelled(outcome) from None
        self.connections_opened += 1
        attempted = self._attempt(connection, request, asked, connect_ns, departure)
        assert attempted is not None
        attempted.replaced_stale = replaced_stale
        return attempted

    def _unsent(self, start_ns: int, failure: Failure | None) -> Outcome:
        return Outcome(
            sent_ns=start_ns,
            end_ns=time.time_ns(),
            arrivals_ns=_NO_TIMES,
            reading=None,
            connect_ns=None,
            error=failure.kind if failure else None,
            error_message=failure.message if failure else None,
            late_events=0,
            clock=self.clock.name,
        )

    def _attempt(
        self,
        connection: Connection,
        request: bytes,
        asked: Asked,
        connect_ns: int | None,
        departure: Departure | None,
    ) -> Outcome | None:
        """One sending; None where a reused connection turned out to have been closed before the request reached it."""
        exchange = Exchange(self._work, connection, asked, self.timeouts, reused=connect_ns is None)
        try:
            exchange.run(request, departure)
            if connect_ns is None and exchange.went_stale:
                return None
            return self._outcome(exchange, connect_ns)
        except gevent.GreenletExit:
            # What had arrived by now counts, read or not.
            connection.read()
            outcome = self._outcome(exchange, connect_ns)
            outcome.cancelled, outcome.error, outcome.error_message = True, None, None
            raise Cancelled(outcome) from None
        finally:
            if exchange.release():
                self._idle.append(connection)

    def _outcome(self, exchange: Exchange, connect_ns: int | None) -> Outcome:
        reading = exchange.result()
        connection, clock = exchange.connection, self.clock
        end_ns, arrivals, late = exchange.ended_ns, _NO_TIMES, 0
        if exchange.answered:
            offsets = np.array([*reading.token_ends, reading.end], np.int64)
            times, late = clock.arrivals(connection, connection.codec.raw_offsets(offsets))
            arrivals = times[:-1]
            if reading.error is None:
                end_ns = int(times[-1])
        return Outcome(
            sent_ns=clock.departure(connection, exchange.sent_ns),
            end_ns=end_ns,
            arrivals_ns=arrivals,
            reading=reading,
            connect_ns=connect_ns,
            error=reading.error,
            error_message=reading.error_message,
            late_events=late,
            clock=clock.name,
        )


def _head(target: Target, headers: Mapping[str, str]) -> bytes:
    """What follows the path in every request's head, up to the header lines of a single request."""
    fixed = {
        "Host": target.authority,
        "User-Agent": "tailgate",
        "Accept": "text/event-stream, application/json",
        "Content-Type": "application/json",
    }
    given = {name.lower() for name in headers}
    mine = {name: value for name, value in fixed.items() if name.lower() not in given}
    return b" HTTP/1.1" + _header_lines({**mine, **headers})


def _header_lines(headers: Mapping[str, str]) -> bytes:
    for name, value in headers.items():
        if not name.isascii() or not name or any(c in "\r\n\0" for c in name + value) or ":" in name:
            # Not the value: it may be a key.
            raise BadInput(f"the request header {name!r} holds a line break or is no header", "mend that header")
    return b"".join(b"\r\n%s: %s" % (name.encode(), value.encode()) for name, value in headers.items())
