"""The alarm clock: nobody is woken early, everybody in order, and those that were killed not at all."""

from __future__ import annotations

import time

import gevent

from locustfiles.pacing import Pacer


def test_greenlets_are_woken_in_order_and_never_early() -> None:
    pacer = Pacer()
    woken: list[tuple[int, int]] = []
    start_ns = time.time_ns()
    dues = [start_ns + offset * 1_000_000 for offset in (30, 10, 10, 20, 0, -5, 31)]

    def sleep(due_ns: int) -> None:
        pacer.wait(due_ns)
        woken.append((due_ns, time.time_ns()))

    sleepers = [gevent.spawn(sleep, due_ns) for due_ns in dues]
    killed = gevent.spawn(sleep, start_ns + 15_000_000)
    gevent.sleep(0)
    killed.kill()
    gevent.joinall(sleepers, timeout=5)
    assert [due_ns for due_ns, _ in woken] == sorted(dues, key=lambda due: max(due, start_ns))
    assert all(at_ns >= due_ns for due_ns, at_ns in woken)
    pacer.close()


def test_of_those_due_together_the_lowest_rank_is_first() -> None:
    pacer = Pacer()
    woken: list[int] = []
    due_ns = time.time_ns() + 20_000_000

    def sleep(rank: int) -> None:
        pacer.wait(due_ns, rank)
        woken.append(rank)

    gevent.joinall([gevent.spawn(sleep, rank) for rank in (3, 1, 2, 0)], timeout=5)
    assert woken == [0, 1, 2, 3]
    pacer.close()
