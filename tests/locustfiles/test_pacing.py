"""Calls at their time: none early, all in order though the loop is busy, and none for those that were killed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import gevent
import pytest

from locustfiles.pacing import Pacer


@pytest.fixture
def pacer() -> Iterator[Pacer]:
    found = Pacer()
    yield found
    found.close()


def test_calls_are_made_in_order_and_never_early(pacer: Pacer) -> None:
    called: list[tuple[int, int]] = []
    start_ns = time.time_ns()
    dues = [start_ns + offset * 1_000_000 for offset in (30, 10, 10, 20, 0, -5, 31)]

    def call(due_ns: int) -> None:
        pacer.call_at(due_ns, lambda: called.append((due_ns, time.time_ns())))

    callers = [gevent.spawn(call, due_ns) for due_ns in dues]
    killed = gevent.spawn(call, start_ns + 15_000_000)
    gevent.sleep(0)
    killed.kill()
    gevent.joinall(callers, timeout=5)
    assert [due_ns for due_ns, _ in called] == sorted(dues, key=lambda due: max(due, start_ns))
    assert all(at_ns >= due_ns for due_ns, at_ns in called)


def test_of_those_due_together_the_lowest_rank_is_first(pacer: Pacer) -> None:
    called: list[int] = []
    due_ns = time.time_ns() + 20_000_000
    callers = [
        gevent.spawn(pacer.call_at, due_ns, lambda rank=rank: called.append(rank), rank) for rank in (3, 1, 2, 0)
    ]
    gevent.joinall(callers, timeout=5)
    assert called == [0, 1, 2, 3]


def test_calls_are_made_while_the_loop_has_no_time(pacer: Pacer) -> None:
    called: list[int] = []
    start_ns = time.time_ns()
    dues = [start_ns + offset * 1_000_000 for offset in (5, 10, 15)]
    callers = [gevent.spawn(pacer.call_at, due_ns, lambda due_ns=due_ns: called.append(due_ns)) for due_ns in dues]
    gevent.sleep(0)
    while len(called) < len(dues) and time.time_ns() < start_ns + 5_000_000_000:
        pass
    assert called == dues
    assert not any(caller.ready() for caller in callers), "they are told when the loop turns"
    gevent.joinall(callers, timeout=5)
    assert all(caller.successful() for caller in callers)


def test_who_is_killed_during_its_call_learns_of_it_when_it_has_ended(pacer: Pacer) -> None:
    steps: list[str] = []

    def slow() -> None:
        steps.append("begins")
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            pass
        steps.append("ends")

    def call() -> None:
        try:
            pacer.call_at(time.time_ns() + 5_000_000, slow)
        finally:
            steps.append("killed")

    caller = gevent.spawn(call)
    gevent.sleep(0)
    while not steps:
        pass
    caller.kill()
    assert steps == ["begins", "ends", "killed"]


def test_what_a_call_raises_reaches_its_caller_and_no_other(pacer: Pacer) -> None:
    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        pacer.call_at(time.time_ns() + 5_000_000, fail)
    called: list[bool] = []
    pacer.call_at(time.time_ns() + 5_000_000, lambda: called.append(True))
    assert called == [True]
