"""One worker's sending: its share of the plan, in closed loop as users ask for it, in open loop when it is due."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import gevent
from gevent.event import Event

from exporters.quality import WorkerHealth
from locustfiles.client.clock import Clock
from locustfiles.client.errors import CONNECT
from locustfiles.client.reading import Asked
from locustfiles.client.stream import Cancelled, Outcome, StreamingClient
from locustfiles.conversation import next_turn
from locustfiles.easing import Easing
from locustfiles.feed import Deal, Feed, Ticket, due_digest_of
from locustfiles.pacing import Pacer
from locustfiles.recording import Recorder, crashed
from locustfiles.retries import pause_s
from locustfiles.room import Room
from locustfiles.self_watch import SelfWatch
from workloads import Plan

logger = logging.getLogger(__name__)

_KILL_S = 5.0
_AHEAD_S = 0.1
_LONGEST_SLEEP_S = 3600.0
LEASE_S = 8.0
"""So long after a report that its leader has confirmed a worker sends on; its leader gives it up later than that."""


class NotOurs(Exception):
    """The request is not to be sent: another worker's by now, or due after the end."""


class Sender:
    """Sends one worker's requests, each in the greenlet that calls `perform`, and hands what became of them on.

    `on_done` is called whenever the share is used up and nothing is in flight any more.
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
        self.more = Event()
        """Set when a new deal brought requests to a share that may have been used up."""
        self._plan = plan
        self._feed = feed
        self._client = client
        self._clock = clock
        self._retries = retries
        self._stream = stream
        self._keep_text = keep_text
        self._room = Room(most_in_flight) if most_in_flight else None
        self._spacing_s = spacing_s
        self._next_first_send = 0.0
        self._on_done = on_done
        self._told_done = False
        self._unfinished = 0
        self._thinking = 0
        self._start_ns = 0
        self._stop_ns: int | None = None
        self._aloft: set[gevent.Greenlet] = set()
        self._held: dict[gevent.Greenlet, int] = {}
        self._in_flight = 0
        self._landed = Event()
        self._landed.set()
        self._hurried = Event()
        self._changed = Event()
        self._lease_ns: int | None = None
        self._renewed = Event()
        self._pacer = Pacer()
        self._easing = Easing()
        self._dispatcher: gevent.Greenlet | None = None
        self._watch = SelfWatch(lambda: self._in_flight, self._asked_in_flight)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def done(self) -> bool:
        """Whether this worker has nothing left to send and nothing to wait for."""
        return self._feed.exhausted_and_empty and not self._unfinished

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
        """The next request for a user of the closed loop; None when there is nothing more to send, until `more`."""
        self.more.clear()
        ticket = None if self.over.is_set() else self._feed.take()
        if ticket is not None and not self.over.is_set():
            self._unfinished += 1
            return ticket
        self._tell_if_done()
        return None

    def perform(self, ticket: Ticket, due_s: float | None = None) -> None:
        """Sends one request, again where it was refused and `retries` allow, and the turns that follow it; returns at
        the end of the last.

        `due_s` is when it shall leave, in seconds after the start; None for at once. Later turns leave when their user
        has thought, in open loop too.
        """
        try:
            outcome = self._send_until_done(ticket, due_s)
            while (follows := next_turn(self._plan, ticket, outcome)) is not None:
                think_s, ticket = follows
                if not self._think(think_s):
                    return
                outcome = self._send_until_done(ticket, None)
        finally:
            self._unfinished -= 1
            self._tell_if_done()

    def lease(self, until_ns: int) -> None:
        """Requests may leave until then (epoch ns). Whoever was never given a lease needs none."""
        self._lease_ns = until_ns
        self._renewed.set()

    def hold(self, from_index: int) -> bool:
        """Keeps back the requests from `from_index` on, which may soon be another worker's; False if it is too late."""
        return self._feed.hold(from_index)

    @property
    def taken(self) -> int:
        """The last index that has been handed out."""
        return self._feed.taken

    def release(self, deals: Sequence[Deal] = (), most_in_flight: int | None = None) -> None:
        """Keeps nothing back any more; `deals` are the run's, where they have changed."""
        if deals:
            self._feed.deal(deals)
            self._told_done = False
            if self._room is not None and most_in_flight is not None:
                self._room.resize(most_in_flight)
        self._feed.release()
        self._changed.set()
        self.more.set()
        self._tell_if_done()

    def change_rate(self, at_s: float, rate: float) -> None:
        """Another rate from `at_s` after the start on; the requests due later move."""
        if self._plan.schedule is not None:
            self._plan.schedule.change_rate(at_s, rate)
            self._changed.set()

    def stop(self, drain_s: float, stop_ns: int | None = None) -> None:
        """Sends nothing more that was due after `stop_ns` (epoch ns; None for now), follows what is in flight for
        `drain_s`, then cancels it; returns when all ended."""
        self._stop_ns = stop_ns = time.time_ns() if stop_ns is None else stop_ns
        self.over.set()
        self.more.set()
        self._watch.stop()
        if self._dispatcher is not None:
            self._dispatcher.kill()
            # Those that it has just set off are on their way once they have run.
            gevent.sleep(0)
        self._feed.close()
        for flight, due_ns in list(self._held.items()):
            if due_ns > stop_ns:
                flight.kill(block=False)
        gevent.get_hub().loop.update_now()  # its timers count from there
        gevent.wait([self._landed, self._hurried], timeout=drain_s, count=1)
        if self._aloft:
            logger.info("cancelling %d requests still in flight after %g s", len(self._aloft), drain_s)
            gevent.killall(list(self._aloft), block=True, timeout=_KILL_S)
            self._landed.wait(_KILL_S)

    def hurry(self) -> None:
        """Ends the drain at once."""
        self._hurried.set()

    def close(self) -> None:
        self._client.close()
        self._clock.close()
        self._pacer.close()
        self.recorder.close()

    def health(self) -> WorkerHealth:
        """This worker's measurements of itself, its counts included."""
        health = self._watch.health()
        self.recorder.add_counts(health)
        return health

    def _asked_in_flight(self) -> int | None:
        return None if self.open_loop else self.active_users - self._thinking

    def _send_until_done(self, ticket: Ticket, due_s: float | None) -> Outcome | None:
        """The last sending's outcome; None where it did not come to one."""
        for attempt in range(1 + self._retries):
            outcome = self._send(ticket, attempt, due_s)
            if outcome is None:
                break
            if not self.open_loop:
                self._ease_off(outcome)
            wait_s = pause_s(outcome, attempt) if attempt < self._retries else None
            if wait_s is None or self.over.wait(wait_s):
                break
        return outcome

    def _ease_off(self, outcome: Outcome) -> None:
        if outcome.error != CONNECT:
            self._easing.connected()
            return
        pause_s = self._easing.refused(self.active_users)
        if pause_s and not self._feed.exhausted_and_empty:
            self.over.wait(pause_s)

    def _think(self, seconds: float) -> bool:
        """Waits as a user does who reads an answer, in nobody's place; False where sending ended meanwhile."""
        self._thinking += 1
        if self._room is not None:
            self._room.leave()
        try:
            if self.over.wait(seconds):
                return False
        finally:
            self._thinking -= 1
            if self._room is not None and not self._room.enter(self.over):
                self._room.squeeze_in()
        return not self.over.is_set()

    def _send(self, ticket: Ticket, attempt: int, due_s: float | None) -> Outcome | None:
        """One sending; None where it did not come to that."""
        planned = ticket.planned
        asked = Asked(
            endpoint=planned.endpoint,
            stream=self._stream,
            min_tokens=planned.demanded_tokens,
            max_tokens=planned.output_tokens,
            keep_text=self._keep_text or not planned.ends,
        )
        scheduled_ns = None
        if due_s is not None and attempt == 0:
            scheduled_ns = self._start_ns + int(due_s * 1e9)
        due_digest = due_digest_of(planned.index, due_s)
        left = False
        me = gevent.getcurrent()

        def leave(depart: Callable[[], None]) -> None:
            if not left:
                if scheduled_ns is not None:
                    if leave_on_time(scheduled_ns, depart):
                        return
                    self._wait_for_lease(planned.index)
                    if self._stop_ns is not None and scheduled_ns > self._stop_ns:
                        raise NotOurs
                elif not self._may_send:
                    self._wait_for_lease(planned.index)
                note_left()
            depart()

        def leave_on_time(due_ns: int, depart: Callable[[], None]) -> bool:
            gone = False

            def depart_if_allowed() -> None:
                nonlocal gone
                gone = self._may_send and (self._stop_ns is None or due_ns <= self._stop_ns)
                if gone:
                    self._held.pop(me, None)
                    depart()

            try:
                self._pacer.call_at(due_ns, depart_if_allowed, planned.index)
            finally:
                # Also where this greenlet was killed meanwhile.
                if gone:
                    note_left()
            return gone

        def note_left() -> None:
            nonlocal left
            left = True
            self._held.pop(me, None)
            self._in_flight += 1
            self.recorder.leaves(ticket.digest if attempt == 0 else None, due_digest)

        self._aloft.add(me)
        self._landed.clear()
        try:
            outcome = self._client.perform(planned.endpoint, planned.body, asked, departure=leave)
            if not left:
                # There was no connection: that it could not be had is its sending.
                leave(lambda: None)
        except NotOurs:
            return None
        except Cancelled as cancelled:
            if left:
                self.recorder.ends(planned, cancelled.outcome, scheduled_ns, attempt)
            raise
        except Exception as fault:
            logger.exception("request %d failed inside this program", planned.index)
            if not left:
                self.recorder.leaves(ticket.digest if attempt == 0 else None)
                left, self._in_flight = True, self._in_flight + 1
            outcome = crashed(self._clock.name, fault)
            self.recorder.ends(planned, outcome, scheduled_ns, attempt)
        else:
            self.recorder.ends(planned, outcome, scheduled_ns, attempt)
        finally:
            self._in_flight -= left
            self._aloft.discard(me)
            self._held.pop(me, None)
            if not self._aloft:
                self._landed.set()
        return outcome

    @property
    def _may_send(self) -> bool:
        return self._lease_ns is None or time.time_ns() <= self._lease_ns

    def _wait_for_lease(self, index: int) -> None:
        """This process stood still, or its leader did: whether the request still is its to send, it does not know."""
        while not self._may_send:
            self._renewed.clear()
            self._renewed.wait()
        if not self._feed.owns(index):
            raise NotOurs

    def _tell_if_done(self) -> None:
        if self.done and not self._told_done:
            self._told_done = True
            self._on_done()

    def _send_when_due(self) -> None:
        """The open loop: each request leaves at its time in a greenlet of its own, however many are in flight.

        Its greenlet starts some time ahead, so that its connection stands when its time has come; not so under a limit,
        where a place must not be taken before that.
        """
        ahead_s = 0.0 if self._room else _AHEAD_S
        while True:
            self._changed.clear()
            if not self._may_send:
                logger.warning("no report was confirmed for %g s: nothing is sent until the leader answers", LEASE_S)
                self._renewed.clear()
                self._renewed.wait()
            ticket = self._feed.peek()
            if ticket is None:
                self._tell_if_done()
                self._changed.wait()
                continue
            due_s = self._plan.arrival_s(ticket.planned.index)
            assert due_s is not None, "this is no closed loop"
            wait_s = self._start_ns / 1e9 + due_s - time.time() - ahead_s
            if wait_s > 0 and self._changed.wait(min(wait_s, _LONGEST_SLEEP_S)):
                continue
            if wait_s > _LONGEST_SLEEP_S or (self._room and not self._room.enter(self._changed)):
                continue
            taken = self._feed.take()
            assert taken is ticket, "nobody else takes from it"
            self._unfinished += 1
            flight = gevent.spawn(self._perform_and_make_room if self._room else self.perform, ticket, due_s)
            self._aloft.add(flight)
            self._held[flight] = self._start_ns + int(due_s * 1e9)

    def _perform_and_make_room(self, ticket: Ticket, due_s: float) -> None:
        assert self._room is not None, "only called where the flights are limited"
        try:
            self.perform(ticket, due_s)
        finally:
            self._room.leave()
