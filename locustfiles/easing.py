"""What users of the closed loop do about a server that takes no connections: they wait before they try again.

There is nothing to measure at a server that is down, and thousands of attempts a minute hinder its start. A refusal
among connections that succeed changes nothing: holding that user back would thin the load just when it is heavy.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

BORNE = 20
"""Refusals in a row before anyone waits, if there are no more users than that."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0


class Easing:
    """Counts the refusals in a row of one worker's users."""

    def __init__(self) -> None:
        self._refused = 0
        self._told = False

    def connected(self) -> None:
        """A request got a connection."""
        if self._told:
            logger.warning("the server takes connections again")
        self._refused, self._told = 0, False

    def refused(self, users: int) -> float:
        """A request got none; how long its user shall wait, in seconds, `users` being how many there are."""
        self._refused += 1
        rounds = self._refused // max(users, BORNE)
        if not rounds:
            return 0.0
        if not self._told:
            self._told = True
            logger.warning(
                "no connection %d times in a row: each user waits longer and longer before it tries again, up to %g s",
                self._refused,
                LONGEST_PAUSE_S,
            )
        return float(min(FIRST_PAUSE_S * 2 ** min(rounds - 1, 10), LONGEST_PAUSE_S))
