"""One worker's sending: its share of the plan, in closed loop as users ask for it, in open loop when it is due."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import gevent
from gevent.event import Event
from gevent.lock import Semaphore

from exporters.quality import WorkerHealth
from locustfiles.client.clock import Clock
from locustfiles.client.errors import API_ERROR, CONNECT, EMPTY, RESET, TIMEOUT_CONNECT
from locustfiles.client.reading import Asked
from locustfiles.client.stream import Cancelled, Outcome, StreamingClient
from locustfiles.feed import Feed, Ticket
from locustfiles.recording import Recorder, crashed
from locustfiles.self_watch import SelfWatch
from workloads import Plan

logger = logging.getLogger(__name__)

# After these the same request may well succeed: a busy server, a lost connection.
_AGAIN = frozenset(
    {CONNECT, TIMEOUT_CONNECT, RESET, EMPTY, *(f"http_{status}" for status in (408, 429, 500, 502, 503, 504))}
)
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_LONGEST_ASKED_S = 120.0
_KILL_S = 5.0


class Sender:
    """Sends one worker's requests, each in the greenlet that calls `perform`, and hands what became of them on.

    `on_done` is called once, when the share is used up and nothing is in flight any more.
    """

    def __init__(
        self,
        plan: Plan,
        feed: Feed,
        client: StreamingClient,
        clock: Clock,
        recorder: Recorder,
        *,
        retries: int,
        stream: bool,
        keep_text: bool,
        most_in_flight: int | None,
        spacing_s: float,
        on_done: Callable[[], None],
    ) -> None:
        self.open_loop = plan.arrival.open
        self.recorder = recorder
        self.active_users = 0
        self.started = Event()
        self.over = Event()
        self._plan = plan
        self._feed = feed
        self._client = client
        self._clock = clock
        self._retries = retries
        self._stream = stream
        self._keep_text = keep_text
        self._room = Semaphore(most_in_flight) if most_in_flight else None
        self._spacing_s = spacing_s
        self._next_first_send = 0.0
        self._on_done = on_done
        self._told_done = False
        self._unfinished = 0
        self._start_ns = 0
        self._flights: set[gevent.Greenlet] = set()
        self._landed = Event()
        self._landed.set()
        self._hurried = Event()
        self._dispatcher: gevent.Greenlet | None = None
        self._watch = SelfWatch(lambda: len(self._flights), self._asked_in_flight)

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def done(self) -> bool:
        """Whether this worker has nothing left to send and nothing to wait for."""
        return self._told_done

    def start(self, start_ns: int, warmup_s: float) -> None:
        """Sending may begin; offsets count from `start_ns` (epoch ns), which may lie a little ahead."""
        self._start_ns = start_ns
        self.recorder.window_start_ns = start_ns + int(warmup_s * 1e9)
        self._watch.start((self.recorder.window_start_ns - time.time_ns()) / 1e9)
        if self.open_loop:
            self._dispatcher = gevent.spawn(self._send_when_due)
        self.started.set()

    def take_turn(self) -> None:
        """Holds a new user back so that the users of one worker do not all connect in the same instant."""
        now = time.monotonic()
        at = max(now, self._next_first_send)
        self._next_first_send = at + self._spacing_s
        if at > now:
            self.over.wait(at - now)

    def take(self) -> Ticket | None:
        """The next request for a user of the closed loop; None when there is nothing more to send."""
        return None if self.over.is_set() else self._next()

    def perform(self, ticket: Ticket) -> None:
        """Sends one request, again where it was refused and `retries` allow; returns at its end."""
        wait_s = _FIRST_WAIT_S
        try:
            for attempt in range(1 + self._retries):
                outcome = self._send(ticket, attempt)
                if not _may_succeed_later(outcome) or attempt == self._retries:
                    return
                asked_s = outcome.reading.retry_after_s if outcome.reading else None
                # Coming back earlier than the server asked is no retry it would want; waiting for hours is no load.
                if (asked_s or 0.0) > _LONGEST_ASKED_S or self.over.wait(wait_s if asked_s is None else asked_s):
                    return
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        finally:
            self._unfinished -= 1
            self._tell_if_done()

    def stop(self, drain_s: float) -> None:
        """Sends nothing more, follows what is in flight for `drain_s`, then cancels it; returns when all ended."""
        self.over.set()
        self._watch.stop()
        if self._dispatcher is not None:
            self._dispatcher.kill()
            # Those that it has just set off are in flight once they have run.
            gevent.sleep(0)
        self._feed.close()
        gevent.get_hub().loop.update_now()  # its timers count from there
        gevent.wait([self._landed, self._hurried], timeout=drain_s, count=1)
        if self._flights:
            logger.info("cancelling %d requests still in flight after %g s", len(self._flights), drain_s)
            gevent.killall(list(self._flights), block=True, timeout=_KILL_S)
            self._landed.wait(_KILL_S)

    def hurry(self) -> None:
        """Ends the drain at once."""
        self._hurried.set()

    def close(self) -> None:
        self._client.close()
        self._clock.close()
        self.recorder.close()

    def health(self) -> WorkerHealth:
        """This worker's measurements of itself, its counts included."""
        health = self._watch.health()
        self.recorder.add_counts(health)
        return health

    def _asked_in_flight(self) -> int | None:
        return None if self.open_loop else self.active_users

    def _send(self, ticket: Ticket, attempt: int) -> Outcome:
        planned = ticket.planned
        asked = Asked(
            endpoint=planned.endpoint,
            stream=self._stream,
            min_tokens=planned.demanded_tokens,
            max_tokens=planned.output_tokens,
            keep_text=self._keep_text,
        )
        scheduled_ns = None
        if planned.scheduled_s is not None and attempt == 0:
            scheduled_ns = self._start_ns + int(planned.scheduled_s * 1e9)
        me = gevent.getcurrent()
        self._flights.add(me)
        self._landed.clear()
        self.recorder.leaves(ticket.digest if attempt == 0 else None)
        try:
            outcome = self._client.perform(planned.endpoint, planned.body, asked)
        except Cancelled as cancelled:
            self.recorder.ends(planned, cancelled.outcome, scheduled_ns, attempt)
            raise
        except Exception as fault:
            logger.exception("request %d failed inside this program", planned.index)
            outcome = crashed(self._clock.name, fault)
            self.recorder.ends(planned, outcome, scheduled_ns, attempt)
        else:
            self.recorder.ends(planned, outcome, scheduled_ns, attempt)
        finally:
            self._flights.discard(me)
            if not self._flights:
                self._landed.set()
        return outcome

    def _next(self) -> Ticket | None:
        ticket = self._feed.take()
        if ticket is None:
            self._tell_if_done()
        else:
            self._unfinished += 1
        return ticket

    def _tell_if_done(self) -> None:
        if self._feed.exhausted_and_empty and not self._unfinished and not self._told_done:
            self._told_done = True
            self._on_done()

    def _send_when_due(self) -> None:
        """The open loop: each request leaves at its time in a greenlet of its own, however many are in flight."""
        while (ticket := self._next()) is not None:
            due_s = ticket.planned.scheduled_s or 0.0
            ahead_s = self._start_ns / 1e9 + due_s - time.time()
            if ahead_s > 0:
                gevent.sleep(ahead_s)
            if self._room is None:
                gevent.spawn(self.perform, ticket)
            else:
                self._room.acquire()
                gevent.spawn(self._perform_and_make_room, ticket)

    def _perform_and_make_room(self, ticket: Ticket) -> None:
        assert self._room is not None, "only called where the flights are limited"
        try:
            self.perform(ticket)
        finally:
            self._room.release()


def _may_succeed_later(outcome: Outcome) -> bool:
    """Whether to send it again; an error inside a stream counts where it came first: vLLM tells a full queue so."""
    return outcome.error in _AGAIN or (outcome.error == API_ERROR and not len(outcome.arrivals_ns))
