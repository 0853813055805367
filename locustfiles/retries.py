"""Which failures are worth another sending, and how long to wait before it."""

from __future__ import annotations

from locustfiles.client.errors import API_ERROR, CONNECT, EMPTY, RESET, TIMEOUT_CONNECT
from locustfiles.client.stream import Outcome

# After these the same request may well succeed: a busy server, a lost connection.
_AGAIN = frozenset(
    {CONNECT, TIMEOUT_CONNECT, RESET, EMPTY, *(f"http_{status}" for status in (408, 429, 500, 502, 503, 504))}
)
_FIRST_S, _LONGEST_S = 0.5, 30.0
_LONGEST_ASKED_S = 120.0


def pause_s(outcome: Outcome, attempt: int) -> float | None:
    """How long to wait after the sending number `attempt`, from 0, in seconds; None where it was the last."""
    # An error inside a stream counts where it came first: vLLM tells a full queue so.
    if outcome.error not in _AGAIN and (outcome.error != API_ERROR or len(outcome.arrivals_ns)):
        return None
    asked_s = outcome.reading.retry_after_s if outcome.reading else None
    if asked_s is None:
        return float(min(_FIRST_S * 2 ** min(attempt, 10), _LONGEST_S))
    # Coming back earlier than the server asked is no retry it would want; waiting for hours is no load.
    return asked_s if asked_s <= _LONGEST_ASKED_S else None
