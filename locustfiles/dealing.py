"""The leader's end of dealing a run's requests out anew when workers are lost or join.

All that are there must agree first: each keeps back the requests in question, or says that it has passed them already.
So none is sent twice. A worker that was given up sends nothing meanwhile: its lease, which the leader renews with each
report, ends before its leader gives it up (`sending.LEASE_S`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import gevent
from gevent.event import Event

from locustfiles.feed import NOBODY, Deal
from locustfiles.messages import Decision, Proposal, Reply
from workloads import Plan

logger = logging.getLogger(__name__)

_PERIOD_S = 0.25
_PATIENCE_S = 5.0
_LEADS_S = (1.0, 2.0, 4.0)
_MARGIN = 16

Cut = Callable[[float], int]
"""Which index is the first that is due later than so many seconds from now; 0 where nothing is ever due."""
Send = Callable[[str, Proposal | Decision], None]


def cut_of(plan: Plan, limit: int | None, start_ns: int) -> Cut | None:
    """Where a run that began at `start_ns` (epoch ns) may be dealt anew; None where no request would be missing that
    is not sent: the users of an endless closed loop just draw others."""
    schedule = plan.schedule
    if schedule is not None:
        return lambda lead_s: schedule.due_before((time.time_ns() - start_ns) / 1e9 + lead_s)
    return None if limit is None else lambda lead_s: 0


class Dealer:
    """Keeps the requests of one run dealt to those who are there; `present` lists them."""

    def __init__(
        self, run_id: str, first: Sequence[str], cut: Cut, present: Callable[[], Sequence[str]], send: Send
    ) -> None:
        self.redeals: list[tuple[int, int]] = []
        """(from index, number of workers) of each new deal."""
        self._run_id = run_id
        self._deals: list[tuple[int, tuple[str, ...]]] = [(0, tuple(first))]
        self._cut = cut
        self._present = present
        self._send = send
        self._number = 0
        self._least = 0
        self._replies: dict[str, Reply] = {}
        self._replied = Event()
        self._greenlet = gevent.spawn(self._watch)

    @property
    def settled(self) -> bool:
        """Whether everything is dealt to somebody who is there."""
        return set(self._present()) == set(self._deals[-1][1])

    def includes(self, worker: str) -> bool:
        """Whether the worker has a part in the deal that holds."""
        return worker in self._deals[-1][1]

    def on_reply(self, worker: str, reply: Reply) -> None:
        if reply.run_id == self._run_id and reply.number == self._number:
            self._replies[worker] = reply
            self._replied.set()

    def close(self) -> None:
        """The run ends: nothing is dealt any more."""
        self._greenlet.kill(block=False)

    def _watch(self) -> None:
        while True:
            gevent.sleep(_PERIOD_S)
            here = tuple(self._present())
            if here and set(here) != set(self._deals[-1][1]):
                self._deal(here)

    def _deal(self, here: tuple[str, ...]) -> None:
        for lead_s in _LEADS_S:
            self._number += 1
            self._replies.clear()
            from_index = max(self._cut(lead_s), self._least)
            proposed = [*(deal for deal in self._deals if deal[0] < from_index), (from_index, here)]
            for worker in here:
                message = Proposal(
                    run_id=self._run_id,
                    number=self._number,
                    from_index=from_index,
                    deals=[_of(worker, deal) for deal in proposed],
                )
                self._send(worker, message)
            accepted = self._all_agree(here)
            for worker in here:
                self._send(worker, Decision(run_id=self._run_id, number=self._number, accepted=accepted))
            if accepted:
                self._deals = proposed
                self.redeals.append((from_index, len(here)))
                logger.info("requests from #%d on are dealt to %d workers", from_index, len(here))
                return
            # Users of a closed loop draw as fast as they are answered: leave room for what they do meanwhile.
            passed = max((reply.taken for reply in self._replies.values()), default=0)
            self._least = max(self._least, passed + 1 + _MARGIN * len(here))

    def _all_agree(self, here: Sequence[str]) -> bool:
        deadline = time.monotonic() + _PATIENCE_S
        while len(self._replies) < len(here):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not set(here) <= set(self._present()):
                return False
            self._replied.clear()
            self._replied.wait(min(left_s, _PERIOD_S))
        return all(reply.agreed for reply in self._replies.values())


def _of(worker: str, deal: tuple[int, tuple[str, ...]]) -> Deal:
    from_index, workers = deal
    return from_index, workers.index(worker) if worker in workers else NOBODY, len(workers)
