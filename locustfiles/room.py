"""Places for requests in flight: `--max-in-flight` on one worker."""

from __future__ import annotations

import gevent
from gevent.event import Event


class Room:
    """Places for requests in flight."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken = 0
        self._freed = Event()

    def enter(self, interrupt: Event) -> bool:
        """Takes a place, waiting for one; False where `interrupt` was set before there was one."""
        while self._taken >= self._places:
            self._freed.clear()
            gevent.wait([self._freed, interrupt], count=1)
            if interrupt.is_set():
                return False
        self._taken += 1
        return True

    def squeeze_in(self) -> None:
        """Takes a place where there may be none, for who gives it up at once."""
        self._taken += 1

    def leave(self) -> None:
        self._taken -= 1
        self._freed.set()

    def resize(self, places: int) -> None:
        self._places = places
        self._freed.set()
