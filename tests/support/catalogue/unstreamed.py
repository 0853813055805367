"""Replies to requests that asked for no stream."""

from __future__ import annotations

import gzip
import json

from locustfiles.client.reading import Asked
from tests.support.catalogue.reply import ANSWER, ERROR, ERROR_SAID, plain
from tests.support.replies import (
    DONE,
    LAST_CHUNK,
    Close,
    Reset,
    Send,
    Wait,
    chunk,
    chunked,
    head,
    timed,
    whole,
    words,
)

_BODY = json.dumps(ANSWER).encode()
plain("whole", whole("200 OK", _BODY), tokens=2, finish="stop", answer="hi", asked=Asked(stream=False, keep_text=True))
plain(
    "whole_chunked",
    timed(
        head(content_type="application/json", transfer_encoding="chunked"),
        [chunk(_BODY[:30]), chunk(_BODY[30:])],
        Send(LAST_CHUNK),
    ),
    tokens=2,
    finish="stop",
)
plain("whole_gzip", whole("200 OK", gzip.compress(_BODY, mtime=0), content_encoding="gzip"), tokens=2, finish="stop")
plain(
    "whole_gzip_cut",
    whole("200 OK", gzip.compress(_BODY, mtime=0)[:-4], content_encoding="gzip"),
    "truncated",
    message="compressed body ends early",
)
plain(
    "whole_without_usage",
    whole("200 OK", b'{"choices":[{"text":"a","finish_reason":"length"}]}'),
    finish="length",
    asked=Asked("/v1/completions", stream=False),
)
plain(
    "whole_responses",
    whole(
        "200 OK",
        json.dumps(
            {
                "status": "completed",
                "output": [{}, {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}],
                "error": None,
                "usage": {"input_tokens": 1, "output_tokens": 6},
            }
        ).encode(),
    ),
    tokens=6,
    finish="stop",
    answer="hi",
    asked=Asked("/v1/responses", stream=False, keep_text=True),
)
plain(
    "whole_responses_failed",
    whole("200 OK", b'{"status":"failed","output":[],"error":{"code":"x","message":"y"}}'),
    "api_error",
    asked=Asked("/v1/responses", stream=False),
)
plain(
    "whole_abort",
    whole("200 OK", b'{"choices":[{"message":{"content":"a"},"finish_reason":"abort"}]}'),
    "aborted",
    finish="abort",
)
plain("whole_error", whole("200 OK", json.dumps({"error": ERROR}).encode()), "api_error", message=ERROR_SAID)
plain("whole_other_json", whole("200 OK", b'{"status":"fine"}'), "malformed", message="JSON without choices")
plain("whole_no_answer", whole("200 OK", b'{"choices":[]}'), "empty")
plain("whole_html", whole("200 OK", b"<p>", "text/html"), "malformed", message="HTML where JSON was asked for")
plain("whole_bad_json", whole("200 OK", b'{"choices":['), "malformed", message="not JSON")
plain("whole_empty", whole("200 OK", b""), "empty")
plain("whole_cut", (Send(head(content_type="application/json", content_length="900") + _BODY), Close()), "truncated")
plain("whole_stream", chunked([*words(2), DONE]), "malformed", message="an event stream where JSON was asked for")
plain("whole_503", whole("503 Service Unavailable", b"", retry_after="2"), "http_503", status=503, retry_after_s=2)
plain(
    "whole_reset",
    (Send(head(content_type="application/json", content_length="900") + b"{"), Wait(0.03), Reset()),
    "reset",
)
