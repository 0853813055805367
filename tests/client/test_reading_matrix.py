"""Every reply of the catalogue has its one right reading from its bytes alone, however they are split."""

from __future__ import annotations

import pytest

from locustfiles.client.errors import RESET, TIMEOUT_FIRST, TIMEOUT_IDLE, TIMEOUT_TOTAL, Failure
from locustfiles.client.reading import Asked, Reading, ResponseReading
from tests.support.catalogue import REPLIES, Reply
from tests.support.replies import DONE, Close, Reset, chunk, chunked, sent_bytes, words

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


@pytest.mark.parametrize("name", [name for name, reply in REPLIES.items() if 0 < reply.events < 20])
def test_a_token_event_ends_with_the_byte_that_makes_it_known(name: str) -> None:
    reply = REPLIES[name]
    raw = sent_bytes(reply.steps)
    for number, end in enumerate(read(reply, 2**30).token_ends):
        for length, events in ((end - 1, number), (end, number + 1)):
            reading = ResponseReading(reply.asked)
            reading.feed(raw[:length])
            assert len(reading.token_ends) == events


def test_an_answer_whose_response_never_ends_ended_with_done() -> None:
    raw = sent_bytes(chunked([*words(2), DONE], Close()))
    reading = ResponseReading(Asked())
    reading.feed(raw + chunk(b": and on it goes\n\n"))
    result = reading.result(Failure(TIMEOUT_TOTAL, "too late"))
    assert (result.ok, reading.answered, reading.reusable) == (True, True, False)
    assert result.end == len(raw) - len(b"\r\n")
