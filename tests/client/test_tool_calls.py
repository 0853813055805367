"""The tool calls of an answer, put together from a stream's pieces, as the next turn repeats them."""

from __future__ import annotations

import json
from typing import Any

from locustfiles.client.reading import Asked, Reading, ResponseReading

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nConnection: close\r\n\r\n"


def read(body: bytes, kind: bytes = b"text/event-stream", keep: bool = True) -> Reading:
    reading = ResponseReading(Asked(stream=kind == b"text/event-stream", keep_text=keep))
    reading.feed(HEAD % kind + body)
    reading.eof()
    return reading.result()


def stream(*deltas: dict[str, Any]) -> bytes:
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"


def part(index: int, arguments: str, **first: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": first.pop("name")} if "name" in first else {})
    return {"index": index, "function": function, **first}


def test_calls_come_in_pieces_and_mixed() -> None:
    body = stream(
        {"content": "Let me see"},
        {"tool_calls": [part(0, "", id="a", type="function", name="search")]},
        {"tool_calls": [part(0, '{"q":'), part(1, "{}", id="b", type="function", name="read")]},
        {"tool_calls": [part(0, '"x"}')]},
    )
    found = read(body)
    assert (found.ok, found.events, found.text) == (True, 4, "Let me see")
    assert found.tool_calls == (
        {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q":"x"}'}},
        {"id": "b", "type": "function", "function": {"name": "read", "arguments": "{}"}},
    )
    assert read(body, keep=False).tool_calls == ()


def test_a_whole_reply_has_them_whole_and_nonsense_is_left_out() -> None:
    calls: list[Any] = [{"id": "a", "type": "function", "function": {"name": "search", "arguments": "{}"}}, 5]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}).encode()
    assert read(body, b"application/json").tool_calls == (calls[0],)
    assert read(stream({"tool_calls": "x"}, {"tool_calls": [{"index": "y", "function": 3}]})).tool_calls == ()
