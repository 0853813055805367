"""Streams that break off, stall or never end, and bytes that are no HTTP."""

from __future__ import annotations

import gzip

from locustfiles.client.reading import Asked
from tests.support.catalogue.reply import EVENTS, bad
from tests.support.replies import (
    STREAM,
    UNFRAMED,
    Close,
    Endless,
    Hold,
    Reset,
    Send,
    Wait,
    chunk,
    chunked,
    delta,
    head,
    timed,
    whole,
    words,
)

_PART = words(3, None)

bad("closed_before_head", "empty", (Wait(0.03), Close()), status=None, tokens=None, source="none")
bad("closed_in_head", "truncated", (Send(STREAM[:40]), Wait(0.03), Close()), status=None, tokens=None, source="none")
bad("reset_before_head", "reset", (Wait(0.03), Reset()), status=None, tokens=None, source="none")
bad("reset_mid", "reset", chunked(_PART, Wait(0.03), Reset()), 3)
bad("closed_mid", "truncated", chunked(_PART, Close()), 3)
bad("closed_mid_chunk", "truncated", chunked(_PART, Send(b"ff\r\ndata: {"), Close()), 3)
bad("closed_mid_event", "truncated", timed(UNFRAMED, _PART, Send(words(1)[1][:-1]), Close()), 3)
bad("ends_without_finish", "truncated", chunked(_PART), 3, message="stream ended without finish_reason or [DONE]")
bad("closes_without_finish", "truncated", timed(UNFRAMED, _PART, Close()), 3)
bad(
    "one_choice_unfinished",
    "truncated",
    chunked([*words(3), delta(content="b", index=1)]),
    4,
    finish="length",
    asked=Asked(n=2),
)
bad(
    "short_of_its_length",
    "truncated",
    timed(head(content_type="text/event-stream", content_length="9999"), _PART, Close()),
    3,
)
bad("finished_but_cut", "truncated", chunked(words(3), Close()), 3, finish="length")
bad(
    "garbage",
    "malformed",
    (Wait(0.03), Send(b"\x16\x03\x01 this is no HTTP\r\n\r\n"), Close()),
    status=None,
    message="not HTTP/1.x",
    tokens=None,
    source="none",
)
bad(
    "garbage_header",
    "malformed",
    (Send(b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n"), Close()),
    status=None,
    tokens=None,
    source="none",
)
bad("bad_chunk_size", "malformed", timed(STREAM, [chunk(piece) for piece in _PART], Send(b"xyz\r\n"), Hold()), 3)
bad(
    "chunk_longer_than_its_size",
    "malformed",
    timed(STREAM, [chunk(piece) for piece in _PART], Send(b"1\r\nabc\r\n"), Hold()),
    3,
)
bad(
    "brotli",
    "malformed",
    whole("200 OK", b"\x0b\x02", "text/event-stream", content_encoding="br"),
    message="content coding that was not asked for",
    tokens=None,
    source="none",
)
bad("broken_gzip", "malformed", whole("200 OK", b"\x1f\x8b no", "text/event-stream", content_encoding="gzip"))
bad(
    "cut_gzip",
    "truncated",
    whole("200 OK", gzip.compress(b"".join(EVENTS), mtime=0)[:-40], "text/event-stream", content_encoding="gzip"),
    events=5,
    finish="length",
)


bad("no_first_byte", "timeout_first", (Hold(),), status=None, tokens=None, source="none", limits={"first": 0.3})
bad("no_first_token", "timeout_first", chunked([*words(0)], Hold()), limits={"first": 0.3})
bad(
    "only_keep_alives",
    "timeout_first",
    (Send(STREAM), Endless(chunk(b": ping\n\n"))),
    limits={"first": 0.3, "idle": 5.0},
)
bad("stall", "timeout_idle", chunked(_PART, Hold()), 3, limits={"idle": 0.25})
bad("never_starts", "timeout_total", (Hold(),), status=None, tokens=None, source="none", limits={"total": 0.3})
bad(
    "endless",
    "timeout_total",
    (Send(STREAM), Endless(chunk(delta(content="x")))),
    -1,
    limits={"total": 0.5, "idle": 5.0},
)
