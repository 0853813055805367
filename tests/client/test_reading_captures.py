"""Replies of a real vLLM 0.32 (CPU), as curl kept them: chunk framing undone, so it is put back, an event a chunk."""

from __future__ import annotations

from pathlib import Path

import pytest

from locustfiles.client.reading import Asked, Reading, ResponseReading
from tests.support.replies import LAST_CHUNK, chunk

CAPTURES = Path(__file__).parent / "captures"


def read(name: str, asked: Asked, whole: bool = True) -> Reading:
    head, _, body = (CAPTURES / f"{name}.txt").read_bytes().partition(b"\r\n\r\n")
    if b"chunked" in head:
        events = [event.lstrip(b"\n") + b"\n\n" for event in body.split(b"\n\n") if event.strip()]
        body = b"".join(chunk(event) for event in events) + (LAST_CHUNK if whole else b"")
    reading = ResponseReading(asked)
    reading.feed(head + b"\r\n\r\n" + body)
    if not whole:
        reading.eof()
    assert reading.complete or not whole
    return reading.result()


@pytest.mark.parametrize(
    ("name", "events", "tokens", "source", "finish"),
    [
        ("chat_stream_contusage", 8, 8, "usage", "length"),
        ("chat_stream_usage", 8, 8, "usage", "length"),
        ("chat_stream_mintok", 12, 12, "usage", "length"),
        ("chat_stream_tokenids", 4, 4, "events", "length"),
        ("chat_stream_logprobs", 4, 4, "events", "length"),
        ("n2_stream", 6, 6, "usage", "length"),
        ("comp_stream", 8, 8, "usage", "length"),
        # Three chunks held back for a stop string, then one event with all of the text: counted events say too little.
        ("stop_stream", 1, 1, "events", "length"),
    ],
)
def test_streams(name: str, events: int, tokens: int, source: str, finish: str) -> None:
    reading = read(name, Asked())
    assert reading.ok
    assert (reading.events, reading.output_tokens, reading.tokens_source) == (events, tokens, source)
    assert (reading.finish_reason, reading.notes) == (finish, ())


def test_a_responses_stream_that_calls_its_end_completed_and_means_incomplete() -> None:
    reading = read("responses_stream", Asked("/v1/responses", max_tokens=6, ignore_eos=True, keep_text=True))
    assert (reading.error, reading.events, reading.output_tokens, reading.prompt_tokens) == (None, 2, 6, 10)
    assert (reading.finish_reason, reading.short_output, reading.notes) == ("length", False, ())
    assert reading.text == "Frame stdinrange patchSP wait"


def test_usage_on_each_chunk_counts_the_tokens_of_each_event() -> None:
    reading = read("chat_stream_contusage", Asked(max_tokens=8, ignore_eos=True))
    assert reading.token_counts == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (reading.prompt_tokens, reading.short_output) == (17, False)


@pytest.mark.parametrize(("name", "tokens"), [("chat_nonstream", 8), ("comp_nonstream", 8)])
def test_plain_replies(name: str, tokens: int) -> None:
    reading = read(name, Asked(stream=False, keep_text=True))
    assert (reading.error, reading.events, reading.output_tokens) == (None, 0, tokens)
    assert reading.text


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "err_toolong",
            "http_400",
            (
                "BadRequestError: This model's maximum context length is N tokens. However, your prompt contains at"
                " least N input tokens, which exceeds this limit even without …"
            ),
        ),
        ("err_badmodel", "http_404", "NotFoundError: The model `nope` does not exist. Valid aliases: tiny."),
        (
            "err_badjson",
            "http_400",
            "Bad Request: N validation error: {'type': 'json_invalid', 'loc': 'body.9', 'msg': '…', 'input': …",
        ),
        ("err_mintok", "http_400", "BadRequestError: min_tokens must be less than or equal to max_tokens=N, got N."),
        (
            "queue_full",
            "http_503",
            (
                "Service Unavailable: The engine is currently busy and cannot accept new requests. Please try again"
                " later or on a different instance."
            ),
        ),
    ],
)
def test_refusals(name: str, error: str, message: str) -> None:
    reading = read(name, Asked())
    assert (reading.error, reading.error_message, reading.events) == (error, message, 0)


def test_engine_killed_in_mid_stream() -> None:
    reading = read("engine_killed_midstream", Asked())
    assert reading.error == "api_error"
    assert (reading.error_message or "").startswith("InternalServerError: EngineCore encountered an issue.")
    assert reading.events == 3


def test_server_told_to_stop_in_mid_stream() -> None:
    reading = read("sigterm_midstream_done", Asked())
    assert (reading.error, reading.finish_reason, reading.events) == ("aborted", "abort", 1)


def test_server_killed_while_it_hung_on_stopping() -> None:
    reading = read("sigterm_midstream_hang_then_killed", Asked(), whole=False)
    assert (reading.error, reading.events) == ("truncated", 2)
