"""Answers that are none: statuses, redirects, pages, empty replies, errors inside a good reply."""

from __future__ import annotations

import json

from tests.support.catalogue.reply import ANSWER, ERROR, ERROR_SAID, bad, refused
from tests.support.replies import (
    DONE,
    LAST_CHUNK,
    UNIQUE,
    Close,
    Send,
    Wait,
    chunk,
    chunked,
    delta,
    event,
    head,
    timed,
    usage_chunk,
    whole,
    words,
)

_PART = words(3, None)
_TOO_LONG = {
    "message": "This model's maximum context length is 4096 tokens. Yours has 4097.",
    "type": "BadRequestError",
}
refused(
    "http_400",
    whole("400 Bad Request", json.dumps({"error": _TOO_LONG}).encode()),
    400,
    "BadRequestError: This model's maximum context length is N tokens. Yours has N.",
)
refused("http_401", whole("401 Unauthorized", b'{"error": "Unauthorized"}'), 401, "Unauthorized")
refused("http_404", whole("404 Not Found", b'{"detail":"Not Found"}'), 404, "Not Found")
refused("http_408_empty", whole("408 Request Timeout", b""), 408, "Request Timeout")
refused(
    "http_429",
    whole("429 Too Many Requests", b'{"message": "slow down"}', retry_after="7"),
    429,
    "slow down",
    retry_after_s=7,
)
refused(
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
refused(
    "http_500_html", whole("500 Internal Server Error", b"<html><h1>oops</h1></html>", "text/html"), 500, "HTML page"
)
refused(
    "http_502_until_close",
    (Wait(0.03), Send(head("502 Bad Gateway", connection="close") + b"upstream 10.0.0.7:8000 is gone"), Close()),
    502,
    "upstream ADDRESS is gone",
)
refused(
    "http_500_stream",
    timed(
        head("500 Internal Server Error", content_type="text/event-stream", transfer_encoding="chunked"),
        [chunk(event({"error": ERROR}))],
        Send(LAST_CHUNK),
    ),
    500,
)
refused(
    "http_503_soon",
    whole("503 Service Unavailable", b'{"error": {"message": "full"}}', retry_after="1"),
    503,
    "full",
    retry_after_s=1,
)
refused(
    "http_503_in_an_hour",
    whole("503 Service Unavailable", b"", retry_after="3600"),
    503,
    "Service Unavailable",
    retry_after_s=3600,
)
_OF_ONE_REQUEST = f"request chatcmpl-{UNIQUE.decode()} at 2026-11-29T17:01:02Z from 10.0.0.7:41234 died after 1.25 s"
refused("http_500_with_id", whole("500 Oops", json.dumps({"error": {"message": _OF_ONE_REQUEST}}).encode()), 500)
bad("error_mid_with_id", "api_error", chunked([*_PART, event({"error": {"message": _OF_ONE_REQUEST}}), DONE]), 3)
refused("http_503_cut", (Send(head("503 Service Unavailable", content_length="500") + b'{"err'), Close()), 503)
refused(
    "redirect_302",
    whole("302 Found", b"", location="http://other:8001/v1/x"),
    302,
    "redirect not followed (to http://other:N/v1/x)",
)
refused("redirect_307", whole("307 Temporary Redirect", b"", location="/v2/"), 307)
bad("no_content_204", "empty", (Wait(0.03), Send(head("204 No Content"))), status=204)

bad(
    "html_200",
    "malformed",
    whole("200 OK", b"<!doctype html><p>Welcome</p>", "text/html"),
    message="HTML where an event stream was asked for",
    tokens=None,
    source="none",
)
bad(
    "html_200_as_text",
    "malformed",
    whole("200 OK", b"<!doctype html><p>Welcome</p>", "text/plain"),
    message="no event stream",
)
bad(
    "json_200",
    "malformed",
    whole("200 OK", json.dumps(ANSWER).encode()),
    message="JSON where an event stream was asked for",
    tokens=None,
    source="none",
)
bad(
    "json_error_200",
    "api_error",
    whole("200 OK", json.dumps({"error": ERROR}).encode()),
    message=ERROR_SAID,
    tokens=None,
    source="none",
)
bad(
    "json_old_error_200",
    "api_error",
    whole("200 OK", b'{"object":"error","message":"no such thing","type":"NotFoundError","code":404}'),
    message="NotFoundError: no such thing",
    tokens=None,
    source="none",
)
bad("empty_200", "empty", whole("200 OK", b"", "text/event-stream"))
bad("empty_json_200", "empty", whole("200 OK", b""), tokens=None, source="none")
bad("empty_stream", "empty", chunked([]))
bad("only_comments", "empty", chunked([b": hello\n\n"] * 3))
bad("only_done", "empty", chunked([DONE]))
bad("only_role_then_done", "empty", chunked([*words(0), DONE]))
bad("only_usage", "empty", chunked([usage_chunk(0), DONE]), source="usage")

bad("error_first", "api_error", chunked([event({"error": ERROR}), DONE]), message=ERROR_SAID)
bad("error_mid", "api_error", chunked([*_PART, event({"error": ERROR}), DONE]), 3, message=ERROR_SAID)
bad(
    "error_mid_then_closed",
    "api_error",
    chunked([*_PART, event({"error": ERROR})], Close()),
    3,
    message=ERROR_SAID,
)
bad(
    "error_after_finish",
    "api_error",
    chunked([*words(3), event({"error": ERROR}), DONE]),
    3,
    finish="length",
    message=ERROR_SAID,
)
bad("error_as_text", "api_error", chunked([*_PART, event({"error": "died"}), DONE]), 3, message="died")
bad(
    "error_of_old_shape",
    "api_error",
    chunked([event({"object": "error", "message": "died", "type": "X", "code": 500}), DONE]),
    message="died",
)
bad("error_event", "api_error", chunked([*_PART, event(ERROR, "error")]), 3, message=ERROR_SAID)
bad("error_event_of_text", "api_error", chunked([event("overloaded", "error"), DONE]), message="overloaded")
bad("finish_reason_error", "api_error", chunked([*_PART, delta(finish="error"), DONE]), 3, finish="error")
bad("abort", "aborted", chunked([*_PART, delta(content="", finish="abort"), DONE]), 3, finish="abort")
bad(
    "malformed_json",
    "malformed",
    chunked([*_PART, event('{"choices":[{"delta":{"content":"a"}'), *words(2)[1:], DONE]),
    5,
    finish="length",
    message="not JSON",
)
bad("text_for_json", "malformed", chunked([event("hello"), DONE]), message="not JSON")
bad("json_of_another_shape", "malformed", chunked([event({"choices": 5}), DONE]), message="JSON of an unexpected shape")
bad(
    "invalid_utf8",
    "malformed",
    chunked([*_PART, delta(content="@").replace(b"@", b"\xe6\xbc"), DONE]),
    3,
    message="not UTF-8",
)
bad(
    "invalid_utf8_unread",
    "malformed",
    chunked([*words(1), event({"id": "@"}).replace(b"@", b"\xff"), DONE]),
    1,
    finish="length",
    message="not UTF-8",
)
bad("deep_json", "malformed", chunked([event('{"x":' + "[" * 50_000), DONE]))
