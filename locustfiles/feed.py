"""A worker's requests in order, their bodies made ahead of their time so that none is made on the sending path."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import gevent
from gevent.event import Event

from workloads import Plan, PlannedRequest

_AHEAD = 64
# Sleeping for no time would run the maker again before gevent polls the sockets.
_BREATH_S = 0.0005
_GUEST_SHIFT = 40

Deal = tuple[int, int, int]
"""From this index on, until the next deal's: the requests `slot`, `slot + slots`, … as (from index, slot, slots)."""
NOBODY = -1
"""The slot of who has no part in a deal."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request ready to be sent; `digest` is SHA-256 over its index and body, as a number."""

    planned: PlannedRequest
    digest: int


class Share:
    """Which indices are this worker's: every `slots`-th, from `slot`; from some index on by another deal, when workers
    come or go. `limit` is the number of requests of the whole run, None without one."""

    def __init__(self, slot: int, slots: int, limit: int | None) -> None:
        self._deals: list[Deal] = [(0, slot, slots)]
        self._limit = limit

    @classmethod
    def guest(cls, slot: int, limit: int | None, open_loop: bool) -> Share:
        """Of a worker that came in the middle of the run: nothing until the next deal, but for a closed loop without
        end. There its requests lie far beyond all others, so that the rest send what they would have sent."""
        share = cls(NOBODY, 1, limit)
        if limit is None and not open_loop:
            share._deals = [(0, NOBODY, 1), ((slot + 1) << _GUEST_SHIFT, 0, 1)]
        return share

    def first(self, least: int = 0) -> int | None:
        """The first index of this share that is not below `least`; None past the last."""
        for number, (start, slot, slots) in enumerate(self._deals):
            ends = [deal[0] for deal in self._deals[number + 1 : number + 2]]
            end = min([*ends, *([] if self._limit is None else [self._limit])], default=None)
            low = max(least, start)
            found = low + (slot - low) % slots
            if slot != NOBODY and (end is None or found < end):
                return found
        return None

    def deal(self, deals: Sequence[Deal]) -> None:
        """All deals of the run, the earlier ones too."""
        self._deals = list(deals)


def digest_of(index: int, body: bytes) -> int:
    """What a sent request adds to `bodies_sum`: independent of the order in which requests leave."""
    return int.from_bytes(hashlib.sha256(index.to_bytes(8, "little") + body).digest(), "little")


def due_digest_of(index: int, due_s: float | None) -> int:
    """What a sent request adds to `schedule_sum`: its index and when it was due, in whole ns after the start."""
    due_ns = 0 if due_s is None else int(due_s * 1e9)
    return digest_of(index, due_ns.to_bytes(8, "little"))


class Feed:
    """Hands out one worker's tickets, in order, each once."""

    def __init__(self, plan: Plan, share: Share) -> None:
        self._plan = plan
        self._share = share
        self._ready: deque[Ticket] = deque()
        self._taken = -1
        self._next = share.first()
        self._held_from: int | None = None
        self._wanted = Event()
        self._wanted.set()
        self._free = Event()
        self._free.set()
        self._maker = gevent.spawn(self._make_ahead)

    def peek(self) -> Ticket | None:
        """The request that `take` would hand out now; None past the last, and while the next one is held back."""
        if not self._ready:
            self._make_one()
        if not self._ready or (self._held_from is not None and self._ready[0].planned.index >= self._held_from):
            return None
        return self._ready[0]

    def take(self) -> Ticket | None:
        """The next request; None past the last. Blocks while it is held back."""
        while self.peek() is None:
            if self._free.is_set():
                return None
            self._free.wait()
        if len(self._ready) <= _AHEAD // 2:
            self._wanted.set()
        ticket = self._ready.popleft()
        self._taken = ticket.planned.index
        return ticket

    @property
    def exhausted_and_empty(self) -> bool:
        """Whether every request of the share has been handed out."""
        return self._next is None and not self._ready

    @property
    def taken(self) -> int:
        """The index of the last request handed out; -1 before the first."""
        return self._taken

    def owns(self, index: int) -> bool:
        """Whether that request is this worker's, as the deals are now."""
        return self._share.first(index) == index

    def hold(self, from_index: int) -> bool:
        """Keeps back everything from `from_index` on, for it may become another worker's; False where it is too late.

        `release` ends that.
        """
        if self._taken >= from_index:
            return False
        self._held_from = from_index
        self._free.clear()
        return True

    def deal(self, deals: Sequence[Deal]) -> None:
        """The run's requests have been dealt out anew, from an index on that was held."""
        self._share.deal(deals)
        self._ready.clear()
        self._next = self._share.first(self._taken + 1)
        self._wanted.set()

    def release(self) -> None:
        """Nothing is held back any more."""
        self._held_from = None
        self._free.set()

    def close(self) -> None:
        self._maker.kill(block=False)
        self.release()

    def _make_one(self) -> None:
        index = self._next
        if index is None:
            return
        try:
            planned = self._plan.request(index)
        except IndexError:
            self._next = None
        else:
            self._next = self._share.first(index + 1)
            self._ready.append(Ticket(planned, digest_of(planned.index, planned.body)))

    def _make_ahead(self) -> None:
        breathe_at = 0.0
        while True:
            if len(self._ready) >= _AHEAD or self._next is None:
                self._wanted.clear()
                self._wanted.wait()
            self._make_one()
            if time.perf_counter() > breathe_at:
                gevent.sleep(_BREATH_S)
                breathe_at = time.perf_counter() + _BREATH_S
