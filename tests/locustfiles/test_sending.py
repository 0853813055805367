"""When a worker may send: not before a request's time, not without leave, not what was due after the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from locustfiles import sending
from locustfiles.client.exchange import Departure
from locustfiles.client.stream import Outcome
from locustfiles.feed import Feed, Share
from locustfiles.recording import crashed
from locustfiles.sending import Sender
from workloads import ArrivalSpec, Workload, make_plan

RATE = 100


class Desk:
    """A sender without sockets; `left` holds (index, when it left, when it was due) in epoch ns, and all are refused
    at once by a server that nobody has."""

    def __init__(self) -> None:
        workload = Workload.model_validate({"name": "w", "classes": {"a": {"input-tokens": 16, "output-tokens": 2}}})
        arrival = ArrivalSpec(kind="constant", request_rate=RATE)
        plan = make_plan(workload, seed=1, model="m", counter=None, arrival=arrival)
        self.left: list[tuple[int, int, int]] = []
        self.delay_s = 0.0

        def ends(planned: Any, outcome: Outcome, scheduled_ns: int, attempt: int) -> None:
            self.left.append((planned.index, outcome.sent_ns, scheduled_ns))

        recorder: Any = SimpleNamespace(leaves=lambda *_: None, ends=ends, window_start_ns=0, close=lambda: None)
        client: Any = SimpleNamespace(perform=self._perform, close=lambda: None)
        clock: Any = SimpleNamespace(name="user", close=lambda: None)
        self.sender = Sender(
            plan,
            Feed(plan, Share(0, 1, None)),
            client,
            clock,
            recorder,
            retries=0,
            stream=True,
            keep_text=False,
            most_in_flight=None,
            spacing_s=0.0,
            on_done=lambda: None,
        )

    def _perform(self, endpoint: str, body: bytes, asked: Any, departure: Departure) -> Outcome:
        outcome = crashed("user", RuntimeError("no server"))

        def depart() -> None:
            outcome.sent_ns = time.time_ns()

        departure(depart)
        gevent.sleep(self.delay_s)
        return outcome


@pytest.fixture
def desk() -> Iterator[Desk]:
    found = Desk()
    yield found
    found.sender.stop(0)
    found.sender.close()


def test_requests_leave_in_order_at_their_times(desk: Desk) -> None:
    start_ns = time.time_ns() + 50_000_000
    desk.sender.start(start_ns, 0)
    gevent.sleep(0.4)
    indices = [index for index, _, _ in desk.left]
    assert indices == list(range(len(indices)))
    assert len(indices) > 20
    for index, at_ns, due_ns in desk.left:
        assert abs(due_ns - start_ns - index * 10**9 // RATE) <= 2
        assert at_ns >= due_ns


def test_nothing_leaves_without_a_lease_and_what_became_anothers_never_does(desk: Desk) -> None:
    desk.sender.lease(time.time_ns() + 100_000_000)
    desk.sender.start(time.time_ns(), 0)
    gevent.sleep(0.4)
    lapsed_after = len(desk.left)
    assert 0 < lapsed_after < 20
    # The leader had given it up: from some index on another worker sends, and was told so while this one stood still.
    cut = lapsed_after + 5
    desk.sender.release([(0, 0, 1), (cut, 1, 2)])
    assert len(desk.left) == lapsed_after
    desk.sender.lease(time.time_ns() + 10_000_000_000)
    gevent.sleep(0.3)
    later = [index for index, _, _ in desk.left[lapsed_after:]]
    assert later[:5] == list(range(lapsed_after, cut)), "late, but not lost"
    assert all(index % 2 == 1 for index in later[5:])
    assert len(later) > 10


def test_what_was_due_before_the_end_leaves_and_nothing_after(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_AHEAD_S", 2.0)
    start_ns = time.time_ns()
    desk.sender.start(start_ns, 0)
    gevent.sleep(0.3)
    stop_ns = time.time_ns()
    # As on a worker that hears of the end a little later. What it set off 2 s ahead must not leave any more.
    gevent.sleep(0.05)
    heard_ns = time.time_ns()
    desk.sender.stop(5, stop_ns=stop_ns)
    indices = [index for index, _, _ in desk.left]
    assert indices == list(range(len(indices)))
    assert len(indices) >= int((stop_ns - start_ns) / 1e9 * RATE) + 1
    assert max(due_ns for _, _, due_ns in desk.left) < heard_ns + 1_000_000_000


def test_a_change_of_rate_moves_what_is_yet_to_come(desk: Desk) -> None:
    start_ns = time.time_ns()
    desk.sender.start(start_ns, 0)
    desk.sender.change_rate(0.3, 20)
    gevent.sleep(0.8)
    dues = [(due_ns - start_ns) / 1e9 for _, _, due_ns in desk.left]
    assert sum(due < 0.3 for due in dues) == pytest.approx(30, abs=1)
    assert sum(0.3 <= due < 0.75 for due in dues) == pytest.approx(9, abs=1)
