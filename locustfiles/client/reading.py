"""One response's raw bytes → what it says: token events by offset, tokens, and the one right outcome.

Pure: no sockets, no clocks, and the result does not depend on how the bytes were split. The layers below are framing
(`http_framing`), event stream (`sse`) and JSON (`deltas`); this module passes bytes down them and judges the whole.
The judgement never flatters: an answer counts only if the bytes say that it is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from locustfiles.client.deltas import Tally
from locustfiles.client.error_bodies import error_in, message_in
from locustfiles.client.errors import API_ERROR, EMPTY, MALFORMED, TRUNCATED, Failure, groupable, http_kind
from locustfiles.client.headers import media_type, retry_after_s
from locustfiles.client.http_framing import Framing, Span
from locustfiles.client.inflate import CODINGS, Inflater
from locustfiles.client.sse import Event, EventSplitter
from locustfiles.client.template import EventTemplate

LARGEST_DOCUMENT = 64 * 2**20
"""Bytes kept of a plain (not streamed) body; a longer one is malformed."""
_KEPT_OF_ERROR_PAGE = 64 * 2**10
_TASTE = 2048
_WORTH_A_TEMPLATE = 4  # events in a row that show that a template is of use
_RARELY = 64  # events between two tries to find a better one
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
    tool_calls: tuple[dict[str, Any], ...] = ()
    """Those of the first choice, as OpenAI's messages repeat them; kept where the text is."""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def events(self) -> int:
        """Number of token events."""
        return len(self.token_ends)


BodyReader = Callable[["ResponseReading", bytes, list[Span], int], None]


class ResponseReading:
    """Reads one response. Feed it all that the connection yields until `complete`, or `eof` when it closes."""

    __slots__ = (
        "_asked",
        "_document",
        "_document_judged",
        "_document_size",
        "_eof",
        "_framing",
        "_inflater",
        "_learn_after",
        "_learned_at",
        "_read_body",
        "_splitter",
        "_tally",
        "_template",
    )

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._framing = Framing()
        self._tally = Tally(responses_api=asked.endpoint.endswith("/responses"), keep_text=asked.keep_text)
        # Decided by the head; not bound to this object, which nobody would free before the garbage collector came.
        self._read_body: BodyReader | None = None
        self._splitter: EventSplitter | None = None
        self._inflater: Inflater | None = None
        self._template: EventTemplate | None = None
        self._learn_after = self._learned_at = 0
        self._document: list[bytes] = []
        self._document_size = 0
        self._document_judged = False
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
        return self._tally.answered_end is not None

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
        while raw:
            template = self._template
            if template is not None:
                read = self._feed_quickly(raw, template)
            else:
                # Little at first: what comes after the first event may be like it.
                read = _TASTE if self._tally.plain and not self._learn_after else len(raw)
                self._feed_by_the_book(raw[:read])
            raw = raw[read:]

    def _feed_quickly(self, raw: bytes, template: EventTemplate) -> int:
        """Reads `raw` where it is as the template says, by the book where it is not; returns how far, which is short of
        its end where another template is better."""
        framing, tally = self._framing, self._tally
        assert self._splitter is not None
        parts = raw.split(template.separator)
        at, last, position, base = 0, len(parts) - 1, 0, framing.end
        while at < last:
            if framing.between_chunks and self._splitter.between_events and tally.answered_end is None:
                matched, end = template.take(parts, at, last, framing.end, tally)
                if matched:
                    framing.pass_over(end)
                    at, position = at + matched, end - base
                    if matched >= _WORTH_A_TEMPLATE:
                        self._learn_after = self._learned_at = 0
                    continue
            stop = position + len(parts[at]) + len(template.separator)
            self._feed_by_the_book(raw[position:stop])
            at, position = at + 1, stop
            if self._template is not template:
                return position
        if position < len(raw):
            self._feed_by_the_book(raw[position:])
        return len(raw)

    def _feed_by_the_book(self, raw: bytes) -> None:
        framing = self._framing
        base = framing.end
        spans = framing.feed(raw)
        if self._read_body is None and framing.head_end:
            self._read_body = self._begin_body()
        if spans and self._read_body is not None:
            self._read_body(self, raw, spans, base)

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
        if failure is None and streamed and tally.answered_end is None:
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
            retry_after_s=retry_after_s(framing.headers),
            head_end=framing.head_end,
            end=framing.end if framing.complete else tally.answered_end or framing.end,
            short_output=failure is None and source == "usage" and (tokens or 0) < self._asked.demanded_tokens,
            notes=tuple(sorted(notes)),
            text=self._text(),
            tool_calls=tally.tool_calls,
        )

    @property
    def _succeeded(self) -> bool:
        status = self._framing.status
        return status is not None and 200 <= status < 300

    def _begin_body(self) -> BodyReader | None:
        headers = self._framing.headers
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", "", *CODINGS):
            self._framing.abandon("content coding that was not asked for", self._framing.head_end)
            return None
        if self._succeeded and self._asked.stream and media_type(headers) not in ("json", "html"):
            self._splitter = EventSplitter()
        if coding in CODINGS:
            self._inflater = Inflater(coding)
            self._tally.notes.add(f"compressed unasked ({coding})")
            return ResponseReading._read_compressed
        return ResponseReading._read_events if self._splitter is not None else ResponseReading._read_document

    # Body bytes come as spans of `raw`, whose first byte stands at offset `base` of the response.

    def _read_events(self, raw: bytes, spans: list[Span], base: int) -> None:
        assert self._splitter is not None
        self._take_events(self._splitter.feed(raw, spans), base)

    def _read_document(self, raw: bytes, spans: list[Span], base: int) -> None:
        for start, stop in spans:
            self._keep(raw[start:stop])

    def _read_compressed(self, raw: bytes, spans: list[Span], base: int) -> None:
        assert self._inflater is not None
        for end, plain in self._inflater.feed(raw, spans):
            if self._splitter is None:
                self._keep(plain)
            else:
                events = self._splitter.feed(plain, [(0, len(plain))])
                self._take_events([(end, name, data) for _, name, data in events], base)
        if self._inflater.broken_at is not None:
            self._framing.abandon("body is not in its content coding", base + self._inflater.broken_at)

    def _keep(self, piece: bytes) -> None:
        self._document_size += len(piece)
        if self._document_size <= (LARGEST_DOCUMENT if self._succeeded else _KEPT_OF_ERROR_PAGE):
            self._document.append(piece)
        elif self._succeeded:
            self._framing.abandon("a document too large to be an answer", self._framing.end)

    def _take_events(self, events: list[Event], base: int) -> None:
        tally = self._tally
        take = tally.take
        for event in events:
            end, name, data = event
            if name or tally.answered_end is not None or data[:1] != b"{":
                self._take_unusual(event, base + end)
            else:
                take(data, base + end)
        if events and tally.plain and self._inflater is None and self._framing.chunked:
            self._learn(events[-1], len(events))
        if self._splitter is not None and self._splitter.overgrown:
            self._framing.abandon("an event too large to be one", self._framing.end)

    def _learn(self, event: Event, count: int) -> None:
        """Makes a template of the latest event, if the last one seems of no use; ever more rarely while none is."""
        self._learned_at += count
        _, name, data = event
        if self._learned_at <= self._learn_after or name or data[:1] != b"{" or not self._tally.token_ends:
            return
        if self._template is None or not self._template.fits(data):
            self._learned_at, self._learn_after = 0, min(2 * self._learn_after + 1, _RARELY)
            self._template = EventTemplate.of(data) or self._template

    def _take_unusual(self, event: Event, end: int) -> None:
        """An event that is not simply an unnamed JSON object before the answer's end."""
        _, name, data = event
        tally = self._tally
        data = data.strip(b" \t\n")
        if tally.answered_end is not None:
            tally.notes.add("data after the end of the answer")
        elif data == b"[DONE]":
            tally.answered_end = end
        elif name == b"error":
            tally.fail(API_ERROR, message_in(data) or "event: error")
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
        if self._splitter is not None and self.answered:
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
        if self._inflater is not None and not self._inflater.whole:
            return Failure(TRUNCATED, "compressed body ends early")
        return self._judge_document() if self._splitter is None else self._judge_answer()

    def _judge_answer(self) -> Failure | None:
        tally, splitter = self._tally, self._splitter
        assert splitter is not None
        if self.answered:
            if not tally.token_ends and tally.finish_reason is None:
                return Failure(EMPTY, "stream ended without an answer")
            return None
        if tally.seen and tally.seen == tally.finished and not splitter.unfinished:
            return None
        if splitter.foreign:
            return Failure(MALFORMED, "no event stream")
        if tally.seen or tally.token_ends or splitter.unfinished:
            return Failure(TRUNCATED, "stream ended without finish_reason or [DONE]")
        return Failure(EMPTY, "stream without an answer")

    def _judge_document(self) -> Failure | None:
        body = b"".join(self._document)
        if not body.strip():
            return Failure(EMPTY, "no body")
        media = media_type(self._framing.headers)
        if self._asked.stream:
            message = error_in(body)
            if message is not None:
                return Failure(API_ERROR, message)
            return Failure(MALFORMED, f"{'HTML' if media == 'html' else 'JSON'} where an event stream was asked for")
        if media == "html":
            return Failure(MALFORMED, "HTML where JSON was asked for")
        if media == "event-stream":
            return Failure(MALFORMED, "an event stream where JSON was asked for")
        if not self._document_judged:
            self._document_judged = True
            self._tally.take_document(body, responses_api=self._asked.endpoint.endswith("/responses"))
        return self._tally.failure

    def _http_message(self) -> str:
        framing = self._framing
        if 300 <= (framing.status or 0) < 400:
            return groupable(f"redirect not followed (to {framing.headers.get('location', 'nowhere')})")
        text = message_in(b"".join(self._document)) if self._inflater is None or self._inflater.whole else ""
        return text or groupable(framing.reason) or "no message"

    def _text(self) -> str | None:
        texts = self._tally.texts
        if texts is None:
            return None
        return "\n\n".join("".join(texts[index]) for index in sorted(texts))
