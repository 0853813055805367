"""Every kind of reply under test by name: the script that sends it, and the one right reading of it.

`REPLIES` is what the scripted server serves and what the matrix tests run through.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from locustfiles.client.reading import Asked, Reading
from tests.support.replies import (
    DONE,
    LAST_CHUNK,
    STREAM,
    UNFRAMED,
    Close,
    Endless,
    Hold,
    Reset,
    Send,
    Steps,
    Wait,
    chunk,
    chunked,
    delta,
    event,
    head,
    text,
    timed,
    usage,
    usage_chunk,
    whole,
    words,
)


@dataclass(frozen=True)
class Reply:
    """A script and its right reading. `limits` are the client's timeouts in seconds that the reply has to run into."""

    steps: Steps
    error: str | None = None
    events: int = 0
    tokens: int | None = 0
    source: str = "events"
    finish: str | None = None
    message: str | None = None
    status: int | None = 200
    retry_after_s: float | None = None
    counts: list[int] | None = None
    cached: int | None = None
    short: bool = False
    answer: str | None = None
    asked: Asked = field(default_factory=Asked)
    limits: dict[str, float] = field(default_factory=dict)

    def check(self, reading: Reading) -> None:
        """Everything that does not depend on time."""
        assert (reading.error, reading.error_message is None) == (self.error, self.error is None)
        if self.message is not None:
            assert reading.error_message == self.message
        if self.events >= 0:
            assert reading.events == self.events
            assert reading.output_tokens == self.tokens
        assert reading.tokens_source == self.source
        assert reading.finish_reason == self.finish
        assert reading.http_status == self.status
        assert reading.retry_after_s == self.retry_after_s
        assert reading.token_counts == self.counts
        assert reading.cached_tokens == self.cached
        assert reading.short_output == self.short
        assert reading.text == self.answer or not self.asked.keep_text
        assert reading.token_ends == sorted(reading.token_ends)
        assert all(reading.head_end < end <= reading.end for end in reading.token_ends)


REPLIES: dict[str, Reply] = {}

COMPLETIONS = Asked("/v1/completions")
RESPONSES = Asked("/v1/responses")
PLAIN = Asked(stream=False)
_USAGE5 = usage_chunk(5)


def _good(name: str, steps: Steps, events: int, tokens: int | None = None, **right: Any) -> None:
    """A good reply; its tokens are reported where they are given and counted otherwise."""
    source = "usage" if tokens is not None else "events"
    right = {"finish": "length", "source": source, **right}
    REPLIES[name] = Reply(steps, events=events, tokens=events if tokens is None else tokens, **right)


def _bad(name: str, error: str, steps: Steps, events: int = 0, **right: Any) -> None:
    REPLIES[name] = Reply(steps, error=error, events=events, **{"tokens": events, **right})


def _refused(name: str, steps: Steps, status: int, message: str | None = None, **right: Any) -> None:
    REPLIES[name] = Reply(
        steps, error=f"http_{status}", status=status, message=message, tokens=None, source="none", **right
    )


def _plain(name: str, steps: Steps, error: str | None = None, tokens: int | None = None, **right: Any) -> None:
    """A reply to a request that asked for no stream."""
    source = "usage" if tokens is not None else "none"
    REPLIES[name] = Reply(steps, error=error, tokens=tokens, source=source, **{"asked": PLAIN, **right})


# -- shapes ----------------------------------------------------------------------------------------------------------

_good("plain", chunked([*words(5), _USAGE5, DONE]), 5, 5, answer=" w0 w1 w2 w3 w4", asked=Asked(keep_text=True))
_good("role_early", (Send(STREAM), Send(chunk(words(0)[0])), *chunked([*words(5)[1:], _USAGE5, DONE])[1:]), 5, 5)
_good(
    "empty_and_null_deltas",
    chunked(
        [
            delta(role="assistant", content=None, tool_calls=None, reasoning=None),
            delta(),
            delta(content=""),
            event({"choices": [{"index": 0, "delta": None, "finish_reason": None}]}),
            event({"choices": None}),
            event({"choices": []}),
            delta(content="a", tool_calls=[]),
            delta(content=None),
            delta(content="b", finish=""),
            delta(content="", finish="stop"),
            DONE,
        ]
    ),
    2,
    finish="stop",
)
for _name in ("reasoning", "reasoning_content"):
    _good(
        _name,
        chunked(
            [*words(0), *(delta(**{_name: f" r{i}", "content": None}) for i in range(3)), *words(2)[1:], DONE],
        ),
        5,
    )
_good(
    "tool_calls_only",
    chunked(
        [
            delta(role="assistant", content=None),
            delta(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f"}}]),
            *(delta(tool_calls=[{"index": 0, "function": {"arguments": part}}]) for part in ('{"a"', ": 1}")),
            delta(finish="tool_calls"),
            DONE,
        ]
    ),
    3,
    finish="tool_calls",
)
_good(
    "function_call",
    chunked([delta(function_call={"name": "f"}), delta(finish="function_call"), DONE]),
    1,
    finish="function_call",
)
_good(
    "refusal",
    chunked([*words(0), delta(refusal="I"), delta(refusal=" will not"), delta(finish="stop"), DONE]),
    2,
    finish="stop",
)
_good(
    "content_in_parts",
    chunked([delta(content=[{"type": "text", "text": "a"}]), delta(finish="stop"), DONE]),
    1,
    finish="stop",
)
_good("finish_with_content", chunked([*words(3), DONE]), 3)
_good("finish_alone", chunked([*words(3, None), delta(finish="stop"), DONE]), 3, finish="stop")
_good(
    "two_choices",
    chunked(
        [
            delta(role="assistant", content=""),
            delta(role="assistant", content="", index=1),
            delta(content="a"),
            delta(content="b", index=1),
            delta(content="c", finish="length"),
            delta(content="d", index=1, finish="stop"),
            usage_chunk(4),
            DONE,
        ]
    ),
    4,
    4,
    finish="stop",
    asked=Asked(n=2, min_tokens=2, keep_text=True),
    answer="ac\n\nbd",
)
_good(
    "completions", chunked([text(" a"), text(""), text(" b", "length"), usage_chunk(3), DONE]), 2, 3, asked=COMPLETIONS
)
_good(
    "several_tokens_an_event",
    chunked(
        [
            delta(role="assistant", content="", usage=usage(0)),
            delta(content="abc", usage=usage(3)),
            delta(content="", usage=usage(4)),
            delta(content="de", usage=usage(6), finish="length"),
            usage_chunk(6),
            DONE,
        ]
    ),
    2,
    6,
    counts=[3, 6],
)
_good("usage_absent", chunked([*words(4), DONE]), 4)
_good(
    "usage_null",
    chunked([delta(content="a", usage=None), delta(content="b", usage=None, finish="stop"), DONE]),
    2,
    finish="stop",
)
_good(
    "usage_null_then_given",
    chunked([delta(content="a", usage=None), delta(content="b", usage=None, finish="stop"), usage_chunk(3), DONE]),
    2,
    3,
    finish="stop",
)
_good(
    "usage_with_details",
    chunked([*words(2), usage_chunk(2, prompt_tokens_details={"cached_tokens": 16}), DONE]),
    2,
    2,
    cached=16,
)
_good("usage_of_zero", chunked([*words(3), usage_chunk(0), DONE]), 3)
_good("usage_in_floats", chunked([*words(3), event({"choices": [], "usage": {"completion_tokens": 3.0}}), DONE]), 3, 3)
_good("one_token", chunked([*words(1), usage_chunk(1), DONE]), 1, 1)
_good(
    "no_token", chunked([delta(role="assistant", content="", finish="stop"), usage_chunk(0), DONE]), 0, 0, finish="stop"
)
_good(
    "unknown_fields",
    chunked(
        [event({"choices": [{"delta": {"content": "a", "mood": {"x": [1]}}, "finish_reason": "stop"}], "new": 1}), DONE]
    ),
    1,
    finish="stop",
)
_good(
    "logprobs",
    chunked(
        [
            event({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"logprob": -7.9}]}}]}),
            delta(content="b", finish="length"),
            DONE,
        ]
    ),
    2,
)
_good(
    "short_output",
    chunked([*words(3, "stop"), usage_chunk(3), DONE]),
    3,
    3,
    finish="stop",
    short=True,
    asked=Asked(max_tokens=8, ignore_eos=True),
)
_good(
    "long_enough",
    chunked([*words(3, "stop"), usage_chunk(3), DONE]),
    3,
    3,
    finish="stop",
    asked=Asked(max_tokens=8, min_tokens=3),
)

_OPENING = event({"type": "response.created", "response": {"status": "in_progress"}}, "response.created")


def _says(kind: str, **fields: Any) -> bytes:
    return event({"type": f"response.{kind}", **fields}, f"response.{kind}")


def _ends(status: str, **fields: Any) -> bytes:
    return _says(status, response={"status": status, "usage": {"input_tokens": 9, "output_tokens": 4}, **fields})


_SAID = [_OPENING, _says("output_text.delta", delta="a"), _says("output_text.delta", delta="b")]
_good(
    "responses_text",
    chunked([*_SAID, _says("output_text.done", text="ab"), _ends("completed")]),
    2,
    4,
    finish="stop",
    asked=Asked("/v1/responses", keep_text=True),
    answer="ab",
)
_good(
    "responses_reasoning_and_call",
    chunked(
        [
            _OPENING,
            _says("reasoning_text.delta", delta="hm"),
            _says("reasoning_summary_text.delta", delta="so"),
            _says("function_call_arguments.delta", delta='{"a"'),
            _says("function_call_arguments.delta", delta=""),
            _says("refusal.delta", delta="no"),
            _ends("completed"),
            DONE,
        ]
    ),
    4,
    4,
    finish="stop",
    asked=RESPONSES,
)
_good(
    "responses_incomplete",
    chunked([*_SAID, _ends("incomplete", incomplete_details={"reason": "max_output_tokens"})]),
    2,
    4,
    asked=RESPONSES,
)
_bad(
    "responses_failed",
    "api_error",
    chunked([*_SAID, _ends("failed", error={"code": "server_error", "message": "died"})]),
    2,
    tokens=4,
    source="usage",
    message="server_error: died",
    asked=RESPONSES,
)
_bad(
    "responses_error",
    "api_error",
    chunked([*_SAID, event({"type": "error", "code": "x", "message": "no more"}, "error")]),
    2,
    message="x: no more",
    asked=RESPONSES,
)
_bad("responses_cut", "truncated", chunked(_SAID), 2, asked=RESPONSES)

# -- framing ---------------------------------------------------------------------------------------------------------

_STREAM = [*words(5), _USAGE5, DONE]
_FLAT = b"".join(_STREAM)


def _rewritten(old: bytes, new: bytes) -> Steps:
    return chunked([piece.replace(old, new) for piece in _STREAM])


_good("crlf", _rewritten(b"\n", b"\r\n"), 5, 5)
_good("cr", _rewritten(b"\n", b"\r"), 5, 5)
_good(
    "mixed_line_ends",
    chunked(
        [
            piece[:-2] + ending
            for piece, ending in zip(
                _STREAM, [b"\r\n\n", b"\n\r\n", b"\r\r", b"\n\r", b"\r\n\r\n", b"\n\n", b"\r\r\n"] * 2, strict=False
            )
        ]
    ),
    5,
    5,
)
_good("no_space_after_colon", _rewritten(b"data: ", b"data:"), 5, 5)
_good("comments", chunked([b": keep-alive\n\n", *(piece + b":\n: ping\n\n" for piece in _STREAM)]), 5, 5)
_good("fields", chunked([b"id: 7\nretry: 3000\nevent: message\n" + piece for piece in _STREAM]), 5, 5)
_good(
    "several_data_lines",
    chunked([piece.replace(b'"choices":', b'\ndata: "choices"\ndata: :') for piece in _STREAM]),
    5,
    5,
)
_good("byte_order_mark", chunked([b"\xef\xbb\xbf" + _STREAM[0], *_STREAM[1:]]), 5, 5)
_good(
    "empty_data_as_keep_alive", chunked([b"data:\n\n", b"data: \n\n", b"event: ping\ndata: ping\n\n", *_STREAM]), 5, 5
)
_good("joined", (Wait(0.06), Send(STREAM + b"".join(chunk(piece) for piece in _STREAM) + LAST_CHUNK)), 5, 5)
_RAW = (
    b"".join(chunk(piece) for piece in [words(0)[0], delta(content="é漢😀"), delta(content="字", finish="stop"), DONE])
    + LAST_CHUNK
)
_good("split_anywhere", timed(STREAM, [_RAW[i : i + 61] for i in range(0, len(_RAW), 61)]), 2, finish="stop")
_at = _RAW.index("漢".encode()) + 1
_good(
    "split_in_a_character",
    timed(STREAM, [_RAW[:_at], _RAW[_at:]]),
    2,
    finish="stop",
    asked=Asked(keep_text=True),
    answer="é漢😀字",
)
_good(
    "chunks_across_events",
    timed(STREAM, [chunk(_FLAT[i : i + 333]) for i in range(0, len(_FLAT), 333)], Send(LAST_CHUNK)),
    5,
    5,
)
_good("large_event", chunked([delta(content="x" * 2**20), *words(1)[1:], usage_chunk(9), DONE]), 2, 9)
_good(
    "chunk_extensions", timed(STREAM, [chunk(piece, b';name="a\\";b";x') for piece in _STREAM], Send(LAST_CHUNK)), 5, 5
)
_good("trailers", chunked(_STREAM, Send(b"0\r\nx-checksum: 1\r\nx-more: 2\r\n\r\n")), 5, 5)
_good(
    "upper_case_sizes",
    timed(STREAM, [b"%X \r\n%s\r\n" % (len(piece), piece) for piece in _STREAM], Send(b"000\r\n\r\n")),
    5,
    5,
)
_good("http10_until_close", timed(head(version="1.0", content_type="text/event-stream"), _STREAM, Close()), 5, 5)
_good("until_close", timed(UNFRAMED, _STREAM, Close()), 5, 5)
_good("with_length", timed(head(content_type="text/event-stream", content_length=str(len(_FLAT))), _STREAM), 5, 5)
_good(
    "continue_first",
    timed(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + STREAM,
        [chunk(piece) for piece in _STREAM],
        Send(LAST_CHUNK),
    ),
    5,
    5,
)
_good(
    "no_content_type",
    timed(head(transfer_encoding="chunked"), [chunk(piece) for piece in _STREAM], Send(LAST_CHUNK)),
    5,
    5,
)


def _gzipped() -> Steps:
    squeeze = zlib.compressobj(wbits=31)
    pieces = [squeeze.compress(piece) + squeeze.flush(zlib.Z_SYNC_FLUSH) for piece in _STREAM] + [squeeze.flush()]
    opening = head(content_type="text/event-stream", transfer_encoding="chunked", content_encoding="gzip")
    return timed(opening, [chunk(piece) for piece in pieces], Send(LAST_CHUNK))


_good("gzip", _gzipped(), 5, 5)
_good("data_after_done", chunked([*_STREAM, *words(2), event({"error": "late"})]), 5, 5)
_good("no_done", chunked([*words(5), _USAGE5]), 5, 5)
_good("no_done_until_close", timed(UNFRAMED, words(5), Close()), 5)
_good("done_then_closed_without_last_chunk", chunked([*words(5), DONE], Close()), 5)
_good("done_then_reset", chunked([*words(5), DONE], Wait(0.05), Reset()), 5)
_good("done_without_finish_reason", chunked([*words(5, None), DONE]), 5, finish=None)
_good("closes_after_announcing_keep_alive", (*chunked(_STREAM), Close()), 5, 5)
_good(
    "connection_close",
    timed(
        head(content_type="text/event-stream", transfer_encoding="chunked", connection="close"),
        [chunk(piece) for piece in _STREAM],
        Send(LAST_CHUNK),
        Close(),
    ),
    5,
    5,
)

# -- failures --------------------------------------------------------------------------------------------------------

_PART = words(3, None)
_ERROR = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}
_ENGINE = "InternalServerError: EngineCore encountered an issue."

_bad("closed_before_head", "empty", (Wait(0.03), Close()), status=None, tokens=None, source="none")
_bad("closed_in_head", "truncated", (Send(STREAM[:40]), Wait(0.03), Close()), status=None, tokens=None, source="none")
_bad("reset_before_head", "reset", (Wait(0.03), Reset()), status=None, tokens=None, source="none")
_bad("reset_mid", "reset", chunked(_PART, Wait(0.03), Reset()), 3)
_bad("closed_mid", "truncated", chunked(_PART, Close()), 3)
_bad("closed_mid_chunk", "truncated", chunked(_PART, Send(b"ff\r\ndata: {"), Close()), 3)
_bad("closed_mid_event", "truncated", timed(UNFRAMED, _PART, Send(words(1)[1][:-1]), Close()), 3)
_bad("ends_without_finish", "truncated", chunked(_PART), 3, message="stream ended without finish_reason or [DONE]")
_bad("closes_without_finish", "truncated", timed(UNFRAMED, _PART, Close()), 3)
_bad(
    "one_choice_unfinished",
    "truncated",
    chunked([*words(3), delta(content="b", index=1)]),
    4,
    finish="length",
    asked=Asked(n=2),
)
_bad(
    "short_of_its_length",
    "truncated",
    timed(head(content_type="text/event-stream", content_length="9999"), _PART, Close()),
    3,
)
_bad("finished_but_cut", "truncated", chunked(words(3), Close()), 3, finish="length")
_bad(
    "garbage",
    "malformed",
    (Wait(0.03), Send(b"\x16\x03\x01 this is no HTTP\r\n\r\n"), Close()),
    status=None,
    message="not HTTP/1.x",
    tokens=None,
    source="none",
)
_bad(
    "garbage_header",
    "malformed",
    (Send(b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n"), Close()),
    status=None,
    tokens=None,
    source="none",
)
_bad("bad_chunk_size", "malformed", timed(STREAM, [chunk(piece) for piece in _PART], Send(b"xyz\r\n"), Hold()), 3)
_bad(
    "chunk_longer_than_its_size",
    "malformed",
    timed(STREAM, [chunk(piece) for piece in _PART], Send(b"1\r\nabc\r\n"), Hold()),
    3,
)
_bad(
    "brotli",
    "malformed",
    whole("200 OK", b"\x0b\x02", "text/event-stream", content_encoding="br"),
    message="content coding that was not asked for",
    tokens=None,
    source="none",
)
_bad("broken_gzip", "malformed", whole("200 OK", b"\x1f\x8b no", "text/event-stream", content_encoding="gzip"))
_bad(
    "cut_gzip",
    "truncated",
    whole("200 OK", gzip.compress(_FLAT, mtime=0)[:-40], "text/event-stream", content_encoding="gzip"),
    events=5,
    finish="length",
)

_TOO_LONG = {
    "message": "This model's maximum context length is 4096 tokens. Yours has 4097.",
    "type": "BadRequestError",
}
_refused(
    "http_400",
    whole("400 Bad Request", json.dumps({"error": _TOO_LONG}).encode()),
    400,
    "BadRequestError: This model's maximum context length is N tokens. Yours has N.",
)
_refused("http_401", whole("401 Unauthorized", b'{"error": "Unauthorized"}'), 401, "Unauthorized")
_refused("http_404", whole("404 Not Found", b'{"detail":"Not Found"}'), 404, "Not Found")
_refused("http_408_empty", whole("408 Request Timeout", b""), 408, "Request Timeout")
_refused(
    "http_429",
    whole("429 Too Many Requests", b'{"message": "slow down"}', retry_after="7"),
    429,
    "slow down",
    retry_after_s=7,
)
_refused(
    "http_503",
    whole(
        "503 Service Unavailable",
        json.dumps({"error": {"message": "The engine is currently busy.", "type": "Service Unavailable"}}).encode(),
        date="Sun, 29 Nov 2026 14:31:46 GMT",
        retry_after="Sun, 29 Nov 2026 14:31:49 GMT",
    ),
    503,
    "Service Unavailable: The engine is currently busy.",
    retry_after_s=3,
)
_refused(
    "http_500_html", whole("500 Internal Server Error", b"<html><h1>oops</h1></html>", "text/html"), 500, "HTML page"
)
_refused(
    "http_502_until_close",
    (Wait(0.03), Send(head("502 Bad Gateway", connection="close") + b"upstream 10.0.0.7:8000 is gone"), Close()),
    502,
    "upstream ADDRESS is gone",
)
_refused(
    "http_500_stream",
    timed(
        head("500 Internal Server Error", content_type="text/event-stream", transfer_encoding="chunked"),
        [chunk(event({"error": _ERROR}))],
        Send(LAST_CHUNK),
    ),
    500,
)
_refused("http_503_cut", (Send(head("503 Service Unavailable", content_length="500") + b'{"err'), Close()), 503)
_refused(
    "redirect_302",
    whole("302 Found", b"", location="http://other:8001/v1/x"),
    302,
    "redirect not followed (to http://other:N/v1/x)",
)
_refused("redirect_307", whole("307 Temporary Redirect", b"", location="/v2/"), 307)
_bad("no_content_204", "empty", (Wait(0.03), Send(head("204 No Content"))), status=204)

_bad(
    "html_200",
    "malformed",
    whole("200 OK", b"<!doctype html><p>Welcome</p>", "text/html"),
    message="HTML where an event stream was asked for",
    tokens=None,
    source="none",
)
_bad(
    "html_200_as_text",
    "malformed",
    whole("200 OK", b"<!doctype html><p>Welcome</p>", "text/plain"),
    message="no event stream",
)
_ANSWER: dict[str, Any] = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": usage(2),
}
_bad(
    "json_200",
    "malformed",
    whole("200 OK", json.dumps(_ANSWER).encode()),
    message="JSON where an event stream was asked for",
    tokens=None,
    source="none",
)
_bad(
    "json_error_200",
    "api_error",
    whole("200 OK", json.dumps({"error": _ERROR}).encode()),
    message=_ENGINE,
    tokens=None,
    source="none",
)
_bad(
    "json_old_error_200",
    "api_error",
    whole("200 OK", b'{"object":"error","message":"no such thing","type":"NotFoundError","code":404}'),
    message="NotFoundError: no such thing",
    tokens=None,
    source="none",
)
_bad("empty_200", "empty", whole("200 OK", b"", "text/event-stream"))
_bad("empty_json_200", "empty", whole("200 OK", b""), tokens=None, source="none")
_bad("empty_stream", "empty", chunked([]))
_bad("only_comments", "empty", chunked([b": hello\n\n"] * 3))
_bad("only_done", "empty", chunked([DONE]))
_bad("only_role_then_done", "empty", chunked([*words(0), DONE]))
_bad("only_usage", "empty", chunked([usage_chunk(0), DONE]), source="usage")

_bad("error_first", "api_error", chunked([event({"error": _ERROR}), DONE]), message=_ENGINE)
_bad("error_mid", "api_error", chunked([*_PART, event({"error": _ERROR}), DONE]), 3, message=_ENGINE)
_bad("error_mid_then_closed", "api_error", chunked([*_PART, event({"error": _ERROR})], Close()), 3, message=_ENGINE)
_bad(
    "error_after_finish",
    "api_error",
    chunked([*words(3), event({"error": _ERROR}), DONE]),
    3,
    finish="length",
    message=_ENGINE,
)
_bad("error_as_text", "api_error", chunked([*_PART, event({"error": "died"}), DONE]), 3, message="died")
_bad(
    "error_of_old_shape",
    "api_error",
    chunked([event({"object": "error", "message": "died", "type": "X", "code": 500}), DONE]),
    message="died",
)
_bad("error_event", "api_error", chunked([*_PART, event(_ERROR, "error")]), 3, message=_ENGINE)
_bad("error_event_of_text", "api_error", chunked([event("overloaded", "error"), DONE]), message="overloaded")
_bad("finish_reason_error", "api_error", chunked([*_PART, delta(finish="error"), DONE]), 3, finish="error")
_bad("abort", "aborted", chunked([*_PART, delta(content="", finish="abort"), DONE]), 3, finish="abort")
_bad(
    "malformed_json",
    "malformed",
    chunked([*_PART, event('{"choices":[{"delta":{"content":"a"}'), *words(2)[1:], DONE]),
    5,
    finish="length",
    message="not JSON",
)
_bad("text_for_json", "malformed", chunked([event("hello"), DONE]), message="not JSON")
_bad(
    "json_of_another_shape", "malformed", chunked([event({"choices": 5}), DONE]), message="JSON of an unexpected shape"
)
_bad(
    "invalid_utf8",
    "malformed",
    chunked([*_PART, delta(content="@").replace(b"@", b"\xe6\xbc"), DONE]),
    3,
    message="not UTF-8",
)
_bad(
    "invalid_utf8_unread",
    "malformed",
    chunked([*words(1), event({"id": "@"}).replace(b"@", b"\xff"), DONE]),
    1,
    finish="length",
    message="not UTF-8",
)
_bad("deep_json", "malformed", chunked([event('{"x":' + "[" * 50_000), DONE]))

_bad("no_first_byte", "timeout_first", (Hold(),), status=None, tokens=None, source="none", limits={"first": 0.3})
_bad("no_first_token", "timeout_first", chunked([*words(0)], Hold()), limits={"first": 0.3})
_bad(
    "only_keep_alives",
    "timeout_first",
    (Send(STREAM), Endless(chunk(b": ping\n\n"))),
    limits={"first": 0.3, "idle": 5.0},
)
_bad("stall", "timeout_idle", chunked(_PART, Hold()), 3, limits={"idle": 0.25})
_bad("never_starts", "timeout_total", (Hold(),), status=None, tokens=None, source="none", limits={"total": 0.3})
_bad(
    "endless",
    "timeout_total",
    (Send(STREAM), Endless(chunk(delta(content="x")))),
    -1,
    limits={"total": 0.5, "idle": 5.0},
)

# -- replies to requests without a stream -----------------------------------------------------------------------------

_BODY = json.dumps(_ANSWER).encode()
_plain("whole", whole("200 OK", _BODY), tokens=2, finish="stop", answer="hi", asked=Asked(stream=False, keep_text=True))
_plain(
    "whole_chunked",
    timed(
        head(content_type="application/json", transfer_encoding="chunked"),
        [chunk(_BODY[:30]), chunk(_BODY[30:])],
        Send(LAST_CHUNK),
    ),
    tokens=2,
    finish="stop",
)
_plain("whole_gzip", whole("200 OK", gzip.compress(_BODY, mtime=0), content_encoding="gzip"), tokens=2, finish="stop")
_plain(
    "whole_without_usage",
    whole("200 OK", b'{"choices":[{"text":"a","finish_reason":"length"}]}'),
    finish="length",
    asked=Asked("/v1/completions", stream=False),
)
_plain(
    "whole_responses",
    whole(
        "200 OK",
        json.dumps(
            {"status": "completed", "output": [{}], "error": None, "usage": {"input_tokens": 1, "output_tokens": 6}}
        ).encode(),
    ),
    tokens=6,
    finish="stop",
    asked=Asked("/v1/responses", stream=False),
)
_plain(
    "whole_responses_failed",
    whole("200 OK", b'{"status":"failed","output":[],"error":{"code":"x","message":"y"}}'),
    "api_error",
    asked=Asked("/v1/responses", stream=False),
)
_plain(
    "whole_abort",
    whole("200 OK", b'{"choices":[{"message":{"content":"a"},"finish_reason":"abort"}]}'),
    "aborted",
    finish="abort",
)
_plain("whole_error", whole("200 OK", json.dumps({"error": _ERROR}).encode()), "api_error", message=_ENGINE)
_plain("whole_other_json", whole("200 OK", b'{"status":"fine"}'), "malformed", message="JSON without choices")
_plain("whole_no_answer", whole("200 OK", b'{"choices":[]}'), "empty")
_plain("whole_html", whole("200 OK", b"<p>", "text/html"), "malformed", message="HTML where JSON was asked for")
_plain("whole_bad_json", whole("200 OK", b'{"choices":['), "malformed", message="not JSON")
_plain("whole_empty", whole("200 OK", b""), "empty")
_plain("whole_cut", (Send(head(content_type="application/json", content_length="900") + _BODY), Close()), "truncated")
_plain("whole_stream", chunked([*words(2), DONE]), "malformed", message="an event stream where JSON was asked for")
_plain("whole_503", whole("503 Service Unavailable", b"", retry_after="2"), "http_503", status=503, retry_after_s=2)
_plain(
    "whole_reset",
    (Send(head(content_type="application/json", content_length="900") + b"{"), Wait(0.03), Reset()),
    "reset",
)
