"""Streams read by template and streams read by the book say the same, whatever stands in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locustfiles.client import template
from locustfiles.client.reading import Asked, Reading, ResponseReading
from locustfiles.client.template import EventTemplate
from tests.client.test_fuzz import cuts, damage, damaged, split
from tests.support.catalogue import REPLIES
from tests.support.replies import DONE, LAST_CHUNK, STREAM, chunk, sent_bytes

CAPTURES = Path(__file__).parent / "captures"
MANY = settings(max_examples=60, deadline=None)


def read(pieces: list[bytes], asked: Asked = Asked(), by_the_book: bool = False) -> Reading:  # noqa: B008
    reading = ResponseReading(asked)
    if by_the_book:
        reading._tally.plain = False
    for piece in pieces:
        reading.feed(piece)
    reading.eof()
    return reading.result()


def event(
    text: str | None, kind: str = "content", usage: int | None = None, ascii_only: bool = True, **more: Any
) -> bytes:
    choice: dict[str, Any] = {"index": 0, "delta": {kind: text}, "logprobs": None, "finish_reason": None, **more}
    if kind == "text":
        choice = {"index": 0, "text": text, "finish_reason": None, **more}
    data: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}
    if usage is not None:
        data["usage"] = {"prompt_tokens": 17, "total_tokens": 17 + usage, "completion_tokens": usage}
    return b"data: %s\n\n" % json.dumps(data, ensure_ascii=ascii_only).encode()


texts = st.one_of(
    st.sampled_from([" word", "a", "", '"', "\\", "\n", '},"', "\x7f", "é", "漢字", "\U0001f600", " x" * 300]),
    st.text(max_size=6),
)
kinds = st.sampled_from(["content", "content", "content", "reasoning_content", "reasoning", "text", "refusal"])
events = st.builds(
    lambda text, kind, usage, ascii_only, more: event(text, kind, usage, ascii_only, **more),
    texts,
    kinds,
    st.one_of(st.none(), st.integers(0, 12), st.just(10**12)),
    st.booleans(),
    st.sampled_from([{}, {}, {}, {"finish_reason": "stop"}, {"index": 1}, {"token_ids": None}]),
)
odd_chunks = st.sampled_from(
    [b": ping\n\n", b"event: x\ndata: {}\n\n", b"data: {\n\n", b"\n", b"data:{}\n\n", DONE, b'data: {"error": "x"}\n\n']
)
runs = st.lists(
    st.one_of(
        events.flatmap(lambda one: st.integers(1, 12).map(lambda times: [one] * times)),
        st.builds(lambda n, kind: [event(f" w{i}", kind, i) for i in range(n)], st.integers(2, 12), kinds),
        st.builds(lambda n: [event(f" w{i % 3}") for i in range(n)], st.integers(2, 12)),
        odd_chunks.map(lambda one: [one]),
    ),
    max_size=8,
)


@MANY
@given(runs, cuts, st.one_of(st.just([]), damage), st.booleans())
def test_template_and_book_agree_on_streams_made_by_chance(made: Any, at: list[int], harms: Any, done: bool) -> None:
    body = b"".join(chunk(one) for run in made for one in run)
    raw = damaged(STREAM + body + (chunk(DONE) + LAST_CHUNK if done else b""), harms)
    assert read(split(raw, at)) == read([raw], by_the_book=True)


@MANY
@given(st.sampled_from(sorted(REPLIES)), st.one_of(st.just([]), damage), cuts)
def test_template_and_book_agree_on_the_catalogue(name: str, harms: Any, at: list[int]) -> None:
    asked, raw = REPLIES[name].asked, damaged(sent_bytes(REPLIES[name].steps), harms)
    assert read(split(raw, at), asked) == read([raw], asked, by_the_book=True)


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.txt")), ids=lambda path: path.stem)
def test_template_and_book_agree_on_what_a_real_vllm_sent(path: Path) -> None:
    head, _, body = path.read_bytes().partition(b"\r\n\r\n")
    pieces = [chunk(one + b"\n\n") for one in body.split(b"\n\n") if one]
    if b"chunked" not in head:
        pieces = [body]
    # Each event several times: a template must be of use.
    for times in (1, 5):
        raw = head + b"\r\n\r\n" + b"".join(piece * times for piece in pieces) + LAST_CHUNK
        assert read([raw]) == read([raw], by_the_book=True)


@pytest.mark.parametrize("name", ["chat_stream_usage", "chat_stream_contusage", "chat_stream_mintok", "comp_stream"])
def test_what_vllm_sends_is_read_by_template(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    take = EventTemplate.take

    def counting(self: EventTemplate, *arguments: Any) -> tuple[int, int]:
        nonlocal taken
        found = take(self, *arguments)
        taken += found[0]
        return found

    monkeypatch.setattr(template.EventTemplate, "take", counting)
    head, _, body = (CAPTURES / f"{name}.txt").read_bytes().partition(b"\r\n\r\n")
    middle = [one + b"\n\n" for one in body.split(b"\n\n") if b'"finish_reason":null' in one]
    reading = ResponseReading(Asked())
    for one in [head + b"\r\n\r\n", *map(chunk, middle)]:
        reading.feed(one)
    assert taken >= len(middle) - 3
    assert len(reading.token_ends) == sum(b'"content":""' not in one for one in middle)


def test_half_a_character_in_one_event_and_half_in_the_next_is_no_text() -> None:
    whole = [chunk(event(f" w{i}")) for i in range(5)]
    halves = [chunk(event("#").replace(b"#", half)) for half in (b"\xc3", b"\xa9")]
    raw = STREAM + b"".join([*whole, *halves, chunk(DONE), LAST_CHUNK])
    assert read([raw]).error == read([raw], by_the_book=True).error == "malformed"
