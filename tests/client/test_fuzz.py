"""Streams made by chance: splits change nothing, damage never crashes or flatters, independent parsers agree."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import httptools
import sseclient
from hypothesis import given, settings
from hypothesis import strategies as st

from locustfiles.client.errors import LONGEST_MESSAGE, groupable
from locustfiles.client.http_framing import Framing
from locustfiles.client.reading import Asked, Reading, ResponseReading
from locustfiles.client.sse import EventSplitter
from tests.support.catalogue import REPLIES
from tests.support.replies import DONE, LAST_CHUNK, STREAM, chunk, delta, sent_bytes, usage_chunk, words

FUZZ = settings(max_examples=150, deadline=None)
SMALL = sorted(name for name, reply in REPLIES.items() if len(sent_bytes(reply.steps)) < 20_000)

cuts = st.lists(st.integers(0, 3000), max_size=12)


def split(raw: bytes, at: list[int]) -> list[bytes]:
    borders = [0, *sorted({cut % (len(raw) + 1) for cut in at}), len(raw)]
    return [raw[a:b] for a, b in pairwise(borders)]


def read(pieces: list[bytes], asked: Asked, closed: bool = True) -> Reading:
    reading = ResponseReading(asked)
    for piece in pieces:
        reading.feed(piece)
    if closed:
        reading.eof()
    return reading.result()


@FUZZ
@given(st.sampled_from(SMALL), cuts, st.booleans())
def test_splitting_and_joining_never_change_a_reading(name: str, at: list[int], closed: bool) -> None:
    asked, raw = REPLIES[name].asked, sent_bytes(REPLIES[name].steps)
    assert read(split(raw, at), asked, closed) == read([raw], asked, closed)


damage = st.lists(
    st.one_of(
        st.tuples(st.just("cut"), st.integers(0, 5000), st.integers(0, 400)),
        st.tuples(st.just("put"), st.integers(0, 5000), st.binary(min_size=1, max_size=8)),
        st.tuples(st.just("copy"), st.integers(0, 5000), st.integers(0, 400)),
        st.tuples(st.just("end"), st.integers(0, 5000), st.just(0)),
    ),
    min_size=1,
    max_size=4,
)


def damaged(raw: bytes, harms: list[tuple[str, int, Any]]) -> bytes:
    for kind, where, what in harms:
        place = where % (len(raw) + 1)
        if kind == "cut":
            raw = raw[:place] + raw[place + what :]
        elif kind == "put":
            raw = raw[:place] + what + raw[place + len(what) :]
        elif kind == "copy":
            raw = raw[: place + what] + raw[place:]
        else:
            raw = raw[:place]
    return raw


@FUZZ
@given(st.sampled_from(SMALL), damage, cuts)
def test_damaged_bytes_never_crash_and_still_have_one_reading(name: str, harms: Any, at: list[int]) -> None:
    asked, raw = REPLIES[name].asked, damaged(sent_bytes(REPLIES[name].steps), harms)
    reading = read([raw], asked)
    assert read(split(raw, at), asked) == reading
    assert len(reading.token_ends) <= raw.count(b"data") or "gzip" in name
    assert all(0 < a <= b <= len(raw) for a, b in pairwise(reading.token_ends))
    if reading.ok:
        # What a good answer cannot do without, whatever else is in the bytes.
        assert 200 <= (reading.http_status or 0) < 300
        if asked.stream:
            assert reading.events or reading.finish_reason
            assert b"[DONE]" in raw or b"finish_reason" in raw or b"response." in raw or "gzip" in name
        assert reading.finish_reason not in ("abort", "error")


@FUZZ
@given(st.integers(1, 9), st.integers(0, 2000), st.booleans())
def test_a_stream_cut_anywhere_before_its_end_is_no_success(tokens: int, at: int, usage: bool) -> None:
    events = [*words(tokens), *([usage_chunk(tokens)] if usage else []), DONE]
    raw = STREAM + b"".join(chunk(piece) for piece in events)
    place = at % raw.index(b"[DONE]\n\n")
    reading = read([raw[:place]], Asked())
    assert reading.error in ("truncated", "empty")
    assert reading.events <= tokens
    assert read([raw + LAST_CHUNK], Asked(), closed=False).ok


line_end = st.sampled_from([b"\n", b"\r\n", b"\r"])
line = st.one_of(
    st.builds(
        lambda text: b"data: " + text.encode(),
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20),
    ),
    st.builds(lambda text: b"data:" + text.encode(), st.text("ab: {", max_size=5)),
    st.builds(lambda text: b":" + text.encode(), st.text("ab :", max_size=5)),
    st.sampled_from([b"data", b"event: x", b"event:error", b"id: 1", b"retry: 5", b"unknown: z", b"data : y"]),
)
blocks = st.lists(st.lists(line, min_size=1, max_size=4), max_size=6)


@FUZZ
@given(blocks, line_end, cuts)
def test_events_equal_those_of_an_independent_parser(lines: list[list[bytes]], end: bytes, at: list[int]) -> None:
    """sseclient-py; one kind of line end a stream, and no cut within one, as it reads no mixtures."""
    raw = b"".join(end.join(block) + end + end for block in lines)
    splitter = EventSplitter()
    ours = [found for piece in split(raw, at) for found in splitter.feed(piece, [(0, len(piece))])]
    theirs = list(sseclient.SSEClient(iter([raw])).events())
    assert [data.decode() for _, _, data in ours] == [found.data for found in theirs]
    assert [name.decode() or "message" for _, name, _ in ours] == [found.event for found in theirs]


@FUZZ
@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), cuts, st.sampled_from([b"", b";a=b", b';q="x"']))
def test_chunks_equal_those_of_an_independent_parser(bodies: list[bytes], at: list[int], extension: bytes) -> None:
    """llhttp, through httptools."""

    class Sink:
        def __init__(self) -> None:
            self.body = b""
            self.whole = False

        def on_body(self, body: bytes) -> None:
            self.body += body

        def on_message_complete(self) -> None:
            self.whole = True

    raw = STREAM + b"".join(chunk(body, extension) for body in bodies) + LAST_CHUNK
    sink, framing, ours = Sink(), Framing(), b""
    parser = httptools.HttpResponseParser(sink)
    for piece in split(raw, at):
        parser.feed_data(piece)
        before = framing.end
        for start, stop in framing.feed(piece):
            ours += piece[start:stop]
            assert raw[before + start : before + stop] == piece[start:stop]
    assert ours == sink.body == b"".join(bodies)
    assert framing.complete == sink.whole is True
    assert (framing.end, framing.reusable, framing.surplus) == (len(raw), True, b"")


@FUZZ
@given(damage, cuts)
def test_framing_never_takes_what_an_independent_parser_refuses(harms: Any, at: list[int]) -> None:
    raw = damaged(STREAM + b"".join(chunk(piece) for piece in words(4)) + LAST_CHUNK, harms)
    framing = Framing()
    for piece in split(raw, at):
        framing.feed(piece)
    if not framing.complete:
        return
    refused = None
    try:
        httptools.HttpResponseParser(object()).feed_data(raw[: framing.end])
    except httptools.HttpParserError as error:
        refused = error
    assert refused is None


def test_a_large_event_in_small_pieces_costs_time_in_proportion() -> None:
    """Quadratic reading of it would take minutes."""
    raw = (
        STREAM + chunk(delta(content="x" * 4_000_000)) + b"".join(chunk(p) for p in [*words(1)[1:], DONE]) + LAST_CHUNK
    )
    assert read([raw[i : i + 100] for i in range(0, len(raw), 100)], Asked(), closed=False).events == 2


@FUZZ
@given(st.text(max_size=400), st.integers(0, 10**12), st.uuids(), st.ip_addresses(v=4))
def test_messages_group(text: str, number: int, ident: Any, address: Any) -> None:
    cause = f"request {ident} from {address}:{number % 65536} failed after {number} ms"
    assert (
        groupable(f"{cause} (chatcmpl-{ident.hex}), input: {text}")
        == "request ID from ADDRESS failed after N ms (ID), input: …"
    )
    once = groupable(text)
    assert groupable(once) == once
    assert len(once) <= LONGEST_MESSAGE
    assert "\n" not in once
