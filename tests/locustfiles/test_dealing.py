"""Dealing requests anew: all must agree, who has passed the point refuses, and a lease keeps a stalled worker still."""

from __future__ import annotations

import time
from typing import Any

import gevent
import pytest

from locustfiles.dealing import Dealer
from locustfiles.feed import NOBODY, Feed, Share
from locustfiles.messages import Decision, Proposal, Reply
from workloads import ArrivalSpec, Plan, Workload, make_plan


def plan() -> Plan:
    workload = Workload.model_validate({"name": "w", "classes": {"a": {"input-tokens": 16, "output-tokens": 2}}})
    return make_plan(workload, seed=1, model="m", counter=None, arrival=ArrivalSpec(kind="constant", request_rate=10))


class Workers:
    """Answers proposals as workers would that have handed out everything up to `taken`; silent where that is None."""

    def __init__(self, **taken: int | None) -> None:
        self.taken = taken
        self.present = list(taken)
        self.proposed: dict[str, Proposal] = {}
        self.decided: list[tuple[str, bool]] = []
        self.dealer: Dealer

    def send(self, worker: str, message: Proposal | Decision) -> None:
        if isinstance(message, Decision):
            self.decided.append((worker, message.accepted))
            return
        self.proposed[worker] = message
        taken = self.taken[worker]
        if taken is None:
            self.present = [name for name in self.present if name != worker]
            return
        agreed = taken < message.from_index
        reply = Reply(run_id=message.run_id, number=message.number, agreed=agreed, taken=taken)
        self.dealer.on_reply(worker, reply)

    def deal(self, first: list[str], cut: int) -> Dealer:
        self.dealer = Dealer("run", first, lambda lead_s: cut, lambda: self.present, self.send)
        return self.dealer


def wait_until_settled(dealer: Dealer) -> None:
    deadline = time.monotonic() + 10
    while not dealer.settled:
        assert time.monotonic() < deadline
        gevent.sleep(0.05)
    dealer.close()


def test_a_lost_workers_share_goes_to_the_others() -> None:
    workers = Workers(b=50, c=51)
    dealer = workers.deal(["a", "b", "c"], cut=60)
    assert not dealer.settled
    wait_until_settled(dealer)
    assert dealer.redeals == [(60, 2)]
    assert workers.proposed["b"].deals == [(0, 1, 3), (60, 0, 2)]
    assert workers.proposed["c"].deals == [(0, 2, 3), (60, 1, 2)]
    assert not dealer.includes("a")


def test_who_has_passed_the_point_refuses_and_a_later_one_is_found() -> None:
    workers = Workers(a=10, b=90)
    dealer = workers.deal(["a"], cut=60)
    wait_until_settled(dealer)
    assert [accepted for _, accepted in workers.decided] == [False, False, True, True]
    ((from_index, count),) = dealer.redeals
    assert (from_index > 90, count) == (True, 2)
    assert workers.proposed["b"].deals[0] == (0, NOBODY, 1), "it was not there at first"


def test_one_that_goes_while_it_is_asked_is_not_waited_for() -> None:
    workers = Workers(a=10, b=None, c=10)
    dealer = workers.deal(["a", "b", "c", "d"], cut=60)
    wait_until_settled(dealer)
    assert dealer.redeals == [(60, 2)]
    assert ("a", False) in workers.decided, "what was held is released in between"


def test_what_is_held_is_handed_out_to_nobody_until_it_is_released() -> None:
    feed = Feed(plan(), Share(0, 2, None))
    taken = [ticket.planned.index for ticket in iter(lambda: feed.take() if feed.taken < 4 else None, None)]
    assert taken == [0, 2, 4]
    assert not feed.hold(4), "too late"
    assert feed.hold(7)
    assert feed.take().planned.index == 6  # type: ignore[union-attr]
    assert feed.peek() is None
    waiting = gevent.spawn(feed.take)
    gevent.sleep(0.05)
    assert not waiting.ready()
    feed.deal([(0, 0, 2), (7, 2, 3)])
    feed.release()
    assert waiting.get(timeout=5).planned.index == 8
    assert feed.take().planned.index == 11  # type: ignore[union-attr]
    feed.close()


@pytest.mark.parametrize("limit", [None, 9])
def test_a_guest_has_nothing_until_it_is_dealt_something(limit: int | None) -> None:
    feed = Feed(plan(), Share.guest(2, limit, open_loop=True))
    assert feed.take() is None
    assert feed.exhausted_and_empty
    feed.deal([(0, NOBODY, 2), (5, 2, 3)])
    assert not feed.exhausted_and_empty
    found: Any = feed.take()
    assert found.planned.index == 5
    feed.close()
