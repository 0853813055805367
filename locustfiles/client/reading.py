"""One response's raw bytes → what it says: token events by offset, tokens, and the one right outcome.

Pure: no sockets, no clocks, and the result does not depend on how the bytes were split. The layers below are framing
(`http_framing`), event stream (`sse`) and JSON (`deltas`); this module passes bytes down them and judges the whole.
The judgement never flatters: an answer counts only if the bytes say that it is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from locustfiles.client.deltas import Tally, error_message
from locustfiles.client.errors import API_ERROR, EMPTY, MALFORMED, TRUNCATED, Failure, groupable, http_kind
from locustfiles.client.http_framing import Framing, Span
from locustfiles.client.inflate import CODINGS, BadCoding, Inflater
from locustfiles.client.sse import Event, EventSplitter, EventTooLarge

LARGEST_DOCUMENT = 64 * 2**20
"""Bytes kept of a plain (not streamed) body; a longer one is malformed."""
_KEPT_OF_ERROR_PAGE = 64 * 2**10
_KEEP_ALIVE_EVENTS = (b"ping", b"heartbeat", b"keepalive", b"keep-alive")


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, as far as it decides how the reply is read.

    `endpoint` is the path (`/v1/responses` has a grammar of its own). Tokens are per choice; `ignore_eos` demands all
    of `max_tokens`. `keep_text` keeps the answer's text.
    """

    endpoint: str = "/v1/chat/completions"
    stream: bool = True
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    n: int = 1
    keep_text: bool = False

    @property
    def demanded_tokens(self) -> int:
        """The fewest output tokens that a reply may have, over all choices."""
        fewest = self.max_tokens if self.ignore_eos and self.max_tokens else self.min_tokens
        return fewest * self.n


@dataclass(frozen=True, slots=True)
class Reading:
    """What a response said. Offsets count raw bytes from the response's first, chunk framing included.

    An offset is just past a byte: the event with end e has arrived when e bytes have. `token_counts` are the completion
    tokens up to and with each token event, where the server reports usage on each chunk. `error` is None for a good
    reply. A failed one keeps what came before the failure. `short_output`: fewer tokens than the request demanded.
    `notes` are oddities that change no outcome.
    """

    token_ends: list[int]
    token_counts: list[int] | None
    output_tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    tokens_source: str  # "usage", "events" (counted), or "none" (a plain reply without usage)
    finish_reason: str | None
    http_status: int | None
    error: str | None
    error_message: str | None
    retry_after_s: float | None
    head_end: int
    end: int
    short_output: bool
    notes: tuple[str, ...]
    text: str | None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def events(self) -> int:
        """Number of token events."""
        return len(self.token_ends)


class ResponseReading:
    """Reads one response. Feed it all that the connection yields until `complete`, or `eof` when it closes."""

    __slots__ = (
        "_answered_end",
        "_asked",
        "_body",
        "_body_size",
        "_eof",
        "_framing",
        "_inflater",
        "_splitter",
        "_tally",
    )

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._framing = Framing()
        self._tally = Tally(responses_api=asked.endpoint.endswith("/responses"), keep_text=asked.keep_text)
        self._splitter: EventSplitter | None = None
        self._inflater: Inflater | None = None
        self._body: list[bytes] = []
        self._body_size = 0
        self._answered_end = 0
        self._eof = False

    @property
    def complete(self) -> bool:
        """Whether nothing more is to be read: the response has ended, or what came is no HTTP."""
        return self._framing.complete or self._framing.fault is not None

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request."""
        return self._framing.reusable and not self._eof

    @property
    def surplus(self) -> bytes:
        """Bytes past the response's end; a server that sends any unasked has lost count."""
        return self._framing.surplus

    @property
    def answered(self) -> bool:
        """Whether the answer is whole ([DONE], or the Responses API's last event), be the framing ended or not."""
        return self._tally.answered

    @property
    def token_ends(self) -> list[int]:
        """The offsets of the token events so far; it grows as bytes come."""
        return self._tally.token_ends

    @property
    def head_end(self) -> int:
        """Offset just past the head, 0 before it came."""
        return self._framing.head_end

    def feed(self, raw: bytes) -> None:
        """The response's next bytes, in order, split anywhere."""
        framing = self._framing
        base = framing.end
        headless = not framing.head_end
        spans = framing.feed(raw)
        if headless and framing.head_end:
            self._begin_body()
        if not spans:
            return
        self._body_size += sum([stop - start for start, stop in spans])
        try:
            if self._inflater is not None:
                for end, plain in self._inflater.feed(raw, spans):
                    self._take_body(plain, [(0, len(plain))], base + end)
            else:
                self._take_body(raw, spans, base)
        except EventTooLarge:
            self._give_up("an event too large to be one")
        except BadCoding:
            self._give_up("body is not in its content coding")

    def eof(self) -> None:
        """The server has closed the connection."""
        self._eof = True
        self._framing.eof()

    def result(self, cause: Failure | None = None) -> Reading:
        """The response's meaning. `cause` is why its caller stopped reading (a reset, a timeout), if not by its end.

        What the bytes say comes before `cause`: an answer already whole stays good, an error already told stays that
        error. May be called more than once.
        """
        framing, tally = self._framing, self._tally
        failure = self._judge(cause)
        streamed = self._splitter is not None
        counted = len(tally.token_ends)
        tokens, source = tally.output_tokens, "usage"
        # A server that reports no tokens for an answer that has some has not counted.
        if tokens is None or (counted and not tokens):
            tokens, source = (counted, "events") if streamed else (None, "none")
        notes = set(tally.notes)
        if framing.surplus:
            notes.add("bytes after the response")
        if failure is None and streamed and not tally.answered:
            notes.add("no [DONE]")
        if failure is None and not framing.complete:
            notes.add("connection ended after the answer, before the response")
        return Reading(
            token_ends=tally.token_ends,
            token_counts=tally.token_counts if counted else None,
            output_tokens=tokens,
            prompt_tokens=tally.prompt_tokens,
            cached_tokens=tally.cached_tokens,
            tokens_source=source,
            finish_reason=tally.finish_reason,
            http_status=framing.status,
            error=failure.kind if failure else None,
            error_message=failure.message if failure else None,
            retry_after_s=_retry_after_s(framing.headers),
            head_end=framing.head_end,
            end=self._answered_end if self._answered_end and not framing.complete else framing.end,
            short_output=source == "usage" and (tokens or 0) < self._asked.demanded_tokens,
            notes=tuple(sorted(notes)),
            text=self._text(),
        )

    def _begin_body(self) -> None:
        framing = self._framing
        coding = framing.headers.get("content-encoding", "identity").strip().lower()
        if coding in CODINGS:
            self._inflater = Inflater(coding)
            self._tally.notes.add(f"compressed unasked ({coding})")
        elif coding not in ("identity", ""):
            self._give_up("content coding that was not asked for")
            return
        if self._succeeded and self._asked.stream and _media_type(framing.headers) not in ("json", "html"):
            self._splitter = EventSplitter()

    @property
    def _succeeded(self) -> bool:
        status = self._framing.status
        return status is not None and 200 <= status < 300

    def _give_up(self, message: str) -> None:
        self._tally.fail(MALFORMED, message)
        self._framing.fault = message

    def _take_body(self, buffer: bytes, spans: list[Span], base: int) -> None:
        """Body bytes of which buffer[i] stands at raw offset base + i (or, once inflated, all just before `base`)."""
        splitter = self._splitter
        if splitter is None:
            limit = LARGEST_DOCUMENT if self._succeeded else _KEPT_OF_ERROR_PAGE
            for start, stop in spans:
                if self._body_size <= limit:
                    self._body.append(buffer[start:stop])
                elif self._succeeded:
                    self._give_up("a document too large to be an answer")
            return
        tally = self._tally
        take = tally.take
        inflated = self._inflater is not None
        for event in splitter.feed(buffer, spans):
            end, name, data = event
            end = base if inflated else base + end
            if name or tally.answered or not data.startswith(b"{"):
                self._take_unusual(event, end)
            else:
                take(data, end)
            if tally.answered and not self._answered_end:
                self._answered_end = end

    def _take_unusual(self, event: Event, end: int) -> None:
        """An event that is not simply an unnamed JSON object before the answer's end."""
        _, name, data = event
        tally = self._tally
        data = data.strip(b" \t\n")
        if tally.answered:
            tally.notes.add("data after the end of the answer")
        elif data == b"[DONE]":
            tally.answered = True
        elif name == b"error":
            tally.fail(API_ERROR, _message_in(data) or "event: error")
        elif not data or (name in _KEEP_ALIVE_EVENTS and not data.startswith(b"{")):
            tally.notes.add("events without content")
        else:
            tally.take(data, end)

    def _judge(self, cause: Failure | None) -> Failure | None:
        framing, tally = self._framing, self._tally
        status = framing.status
        if status is not None and not self._succeeded:
            return Failure(http_kind(status), self._http_message())
        if tally.failure is not None:
            return tally.failure
        if tally.answered and self._splitter is not None:
            return self._judge_answer()
        if framing.fault is not None:
            return Failure(MALFORMED, framing.fault)
        if cause is not None:
            return cause
        if not framing.complete:
            if framing.end == 0:
                return Failure(EMPTY, "connection closed before a reply")
            where = "the answer" if framing.head_end else "the response's head"
            return Failure(TRUNCATED, f"connection closed within {where}")
        if not self._body_size:
            return Failure(EMPTY, "no body")
        if self._inflater is not None and not self._inflater.whole:
            return Failure(TRUNCATED, "compressed body ends early")
        return self._judge_document() if self._splitter is None else self._judge_answer()

    def _judge_answer(self) -> Failure | None:
        tally, splitter = self._tally, self._splitter
        assert splitter is not None
        if tally.answered:
            if not tally.token_ends and tally.finish_reason is None:
                return Failure(EMPTY, "stream ended without an answer")
            return None
        if tally.seen and tally.seen == tally.finished and not splitter.unfinished:
            return None
        if not splitter.dispatched and splitter.strange_lines:
            return Failure(MALFORMED, "no event stream")
        if tally.seen or tally.token_ends or splitter.unfinished:
            return Failure(TRUNCATED, "stream ended without finish_reason or [DONE]")
        return Failure(EMPTY, "stream without an answer")

    def _judge_document(self) -> Failure | None:
        body = b"".join(self._body)
        media = _media_type(self._framing.headers)
        if self._asked.stream:
            message = _error_in(body)
            if message is not None:
                return Failure(API_ERROR, message)
            return Failure(MALFORMED, f"{'HTML' if media == 'html' else 'JSON'} where an event stream was asked for")
        if media == "html":
            return Failure(MALFORMED, "HTML where JSON was asked for")
        if media == "event-stream":
            return Failure(MALFORMED, "an event stream where JSON was asked for")
        if not self._tally.answered:
            self._tally.take_document(body, responses_api=self._asked.endpoint.endswith("/responses"))
        return self._tally.failure

    def _http_message(self) -> str:
        framing = self._framing
        if 300 <= (framing.status or 0) < 400:
            return groupable(f"redirect not followed (to {framing.headers.get('location', 'nowhere')})")
        text = _message_in(b"".join(self._body)) if self._inflater is None or self._inflater.whole else ""
        return text or groupable(framing.reason) or "no message"

    def _text(self) -> str | None:
        texts = self._tally.texts
        if texts is None:
            return None
        return "\n\n".join("".join(texts[index]) for index in sorted(texts))


def _media_type(headers: dict[str, str]) -> str:
    """json, html, event-stream, or whatever else the content type's last word is; empty where there is none."""
    essence = headers.get("content-type", "").partition(";")[0].strip().lower()
    return essence.rpartition("/")[2].rpartition("+")[2]


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _error_in(body: bytes) -> str | None:
    """The message of the error object that `body` is, None where it is none."""
    found = _json(body)
    if not isinstance(found, dict):
        return None
    if found.get("error"):
        return error_message(found["error"])
    if found.get("object") == "error":
        return error_message(found)
    return None


def _message_in(body: bytes) -> str:
    """The groupable message of an error page or object in any usual shape; empty where it has none."""
    if not body.strip():
        return ""
    found = _json(body)
    if isinstance(found, dict):
        inner = found.get("error") or found.get("detail") or found.get("message")
        return error_message(inner) if inner else "error object without a message"
    if isinstance(found, str):
        return groupable(found)
    if b"<html" in body[:1024].lower() or body.lstrip()[:1] == b"<":
        return "HTML page"
    return groupable(body[:2048].decode("utf-8", "replace"))


def _retry_after_s(headers: dict[str, str]) -> float | None:
    """Seconds of `Retry-After`; a date counts from the reply's own `Date`, so that no clock is needed."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.replace(".", "", 1).isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - parsedate_to_datetime(headers["date"])).total_seconds())
    except (ValueError, KeyError, TypeError):
        return None
