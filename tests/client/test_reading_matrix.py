"""Every reply of the catalogue has its one right reading from its bytes alone, however they are split."""

from __future__ import annotations

import pytest

from locustfiles.client.errors import RESET, TIMEOUT_FIRST, TIMEOUT_IDLE, TIMEOUT_TOTAL, Failure
from locustfiles.client.reading import Reading, ResponseReading
from tests.support.catalogue import REPLIES, Reply
from tests.support.replies import Close, Reset, sent_bytes

_TIMEOUTS = {"total": TIMEOUT_TOTAL, "first": TIMEOUT_FIRST, "idle": TIMEOUT_IDLE}


def read(reply: Reply, piece: int) -> Reading:
    """The reply's bytes, read in pieces of that many, and then its end."""
    reading = ResponseReading(reply.asked)
    raw = sent_bytes(reply.steps)
    for start in range(0, len(raw), piece):
        reading.feed(raw[start : start + piece])
    last = reply.steps[-1]
    if isinstance(last, Reset):
        return reading.result(Failure(RESET, "connection reset by the server"))
    if isinstance(last, Close):
        reading.eof()
    if reply.limits:
        return reading.result(Failure(_TIMEOUTS[next(iter(reply.limits))], "too late"))
    if not isinstance(last, Close):
        assert reading.complete
    return reading.result()


@pytest.mark.parametrize("name", REPLIES)
def test_bytes_of_a_reply_have_one_reading(name: str) -> None:
    reply = REPLIES[name]
    at_once = read(reply, 2**30)
    reply.check(at_once)
    assert read(reply, 7) == at_once
    if len(sent_bytes(reply.steps)) < 100_000:
        assert read(reply, 1) == at_once
