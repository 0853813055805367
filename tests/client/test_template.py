"""Streams read by template and streams read by the book say the same, whatever stands in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locustfiles.client import reading, template
from locustfiles.client.reading import Asked, Reading, ResponseReading
from locustfiles.client.template import EventTemplate
from tests.client.test_fuzz import cuts, damage, damaged, split
from tests.support.catalogue import REPLIES
from tests.support.replies import DONE, LAST_CHUNK, STREAM, chunk, sent_bytes

CAPTURES = Path(__file__).parent / "captures"
MANY = settings(max_examples=60, deadline=None)


@pytest.fixture(autouse=True, scope="module")
def template_from_the_first_event_on() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reading, "_TASTE", 300)
        yield


def read(pieces: list[bytes], asked: Asked = Asked(), by_the_book: bool = False) -> Reading:  # noqa: B008
    reader = ResponseReading(asked)
    if by_the_book:
        reader._tally.plain = False
    for piece in pieces:
        reader.feed(piece)
    reader.eof()
    return reader.result()


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
# Bodies of a JSON string as they stand on the wire, good and bad.
raw_texts = st.one_of(
    st.sampled_from(
        [b'"', b"\\", b'x\\"', b"\\n", b"\\\\", b"\\x", b"\\u00e9", b"\\ud800", b"\n", b"\r", b"\t", b"\x00", b"\x7f"]
    ),
    st.sampled_from(
        [b'"},"finish_reason":"stop"}],"x":"', b'","content":"', b"\xc3", b"\xa9", b"\xc3\xa9", b"\ndata: "]
    ),
    st.binary(max_size=4),
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
raw_events = st.builds(
    lambda raw, usage: event("#", usage=usage).replace(b"#", raw), raw_texts, st.one_of(st.none(), st.integers(0, 12))
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
        st.lists(raw_events, max_size=3).map(lambda odd: [event("a"), *odd, event("b")]),
        st.lists(raw_events, max_size=3).map(lambda odd: [event("a", usage=1), *odd, event("b", usage=2)]),
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
    reader = ResponseReading(Asked())
    for one in [head + b"\r\n\r\n", *map(chunk, middle)]:
        reader.feed(one)
    assert taken >= len(middle) - 3
    assert len(reader.token_ends) == sum(b'"content":""' not in one for one in middle)


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        ((b"\xc3", b"\xa9"), "malformed"),
        ((b'"',), "malformed"),
        ((b"\\",), "malformed"),
        ((b"\t",), "malformed"),
        ((b"\\u00e9", b"\xc3\xa9", b"\\n"), None),
    ],
)
def test_what_is_no_text_is_no_text_among_good_ones(odd: tuple[bytes, ...], error: str | None) -> None:
    good = [chunk(event(f" w{i}")) for i in range(20)]
    raw = STREAM + b"".join([*good, *(chunk(event("#").replace(b"#", one)) for one in odd), *good])
    found = read([raw + chunk(DONE) + LAST_CHUNK])
    assert found == read([raw + chunk(DONE) + LAST_CHUNK], by_the_book=True)
    assert found.error == error


def test_an_event_of_two_data_lines_is_no_template() -> None:
    two = event("a").replace(b'"choices"', b'\ndata: "choices"')
    assert read([STREAM + chunk(two) * 20]) == read([STREAM + chunk(two) * 20], by_the_book=True)
    # Its data joined is not what stands on the wire.
    joined = event("a").replace(b'"choices"', b'\n"choices"')
    raw = STREAM + chunk(two) + chunk(joined) * 5
    assert read([raw]) == read([raw], by_the_book=True)
