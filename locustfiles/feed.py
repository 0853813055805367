"""A worker's requests in order, their bodies made ahead of their time so that none is made on the sending path."""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import gevent
from gevent.event import Event

from workloads import Plan, PlannedRequest

_AHEAD = 64
# Sleeping for no time would run the maker again before gevent polls the sockets.
_BREATH_S = 0.0005
_GUEST_SHIFT = 40


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request ready to be sent; `digest` is SHA-256 over its index and body, as a number."""

    planned: PlannedRequest
    digest: int


def share(slot: int, slots: int, limit: int | None, guest: bool) -> Iterator[int]:
    """The indices of worker `slot` of `slots`, below `limit` where the run has one.

    A guest's lie far beyond all others, so that whatever number of workers the run began with sends what it would have.
    """
    if guest:
        return iter(()) if limit is not None else itertools.count((slot + 1) << _GUEST_SHIFT)
    return itertools.count(slot, slots) if limit is None else iter(range(slot, limit, slots))


def digest_of(index: int, body: bytes) -> int:
    """What a sent request adds to `bodies_sum`: independent of the order in which requests leave."""
    return int.from_bytes(hashlib.sha256(index.to_bytes(8, "little") + body).digest(), "little")


class Feed:
    """Hands out one worker's tickets, in order, each once."""

    def __init__(self, plan: Plan, indices: Iterator[int]) -> None:
        self._plan = plan
        self._indices = indices
        self._ready: deque[Ticket] = deque()
        self._wanted = Event()
        self._wanted.set()
        self.exhausted = False
        self._maker = gevent.spawn(self._make_ahead)

    def take(self) -> Ticket | None:
        """The next request; None past the last."""
        if not self._ready and not self.exhausted:
            self._make_one()
        if not self._ready:
            return None
        self._wanted.set()
        return self._ready.popleft()

    @property
    def exhausted_and_empty(self) -> bool:
        """Whether every request of the share has been handed out."""
        return self.exhausted and not self._ready

    def close(self) -> None:
        self._maker.kill(block=False)

    def _make_one(self) -> None:
        try:
            planned = self._plan.request(next(self._indices))
        except (StopIteration, IndexError):
            self.exhausted = True
        else:
            self._ready.append(Ticket(planned, digest_of(planned.index, planned.body)))

    def _make_ahead(self) -> None:
        while not self.exhausted:
            if len(self._ready) >= _AHEAD:
                self._wanted.clear()
                self._wanted.wait()
            self._make_one()
            gevent.sleep(_BREATH_S)
