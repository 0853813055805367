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


def check(reply: Reply, reading: Reading) -> None:
    """Everything that does not depend on time."""
    assert (reading.error, reading.error_message is None) == (reply.error, reply.error is None)
    if reply.message is not None:
        assert reading.error_message == reply.message
    if reply.events >= 0:
        assert reading.events == reply.events
        assert reading.output_tokens == reply.tokens
    assert reading.tokens_source == reply.source
    assert reading.finish_reason == reply.finish
    assert reading.http_status == reply.status
    assert reading.retry_after_s == reply.retry_after_s
    assert reading.token_counts == reply.counts
    assert reading.cached_tokens == reply.cached
    assert reading.short_output == reply.short
    assert reading.text == reply.answer or not reply.asked.keep_text
    assert reading.token_ends == sorted(reading.token_ends)
    assert all(reading.head_end < end <= reading.end for end in reading.token_ends)


@pytest.mark.parametrize("name", REPLIES)
def test_bytes_of_a_reply_have_one_reading(name: str) -> None:
    reply = REPLIES[name]
    at_once = read(reply, 2**30)
    check(reply, at_once)
    assert read(reply, 7) == at_once
    if len(sent_bytes(reply.steps)) < 100_000:
        assert read(reply, 1) == at_once
