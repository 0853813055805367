"""What a server may send, as scripts: steps that write raw bytes, wait, close, reset, stall. Pure data and builders."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

FIRST_S = 0.06
"""When the builders' first event goes out, seconds after the request came."""
GAP_S = 0.02
"""Between the builders' events."""


UNIQUE = b"@" * 32
"""Sent as an id that no other reply has."""


@dataclass(frozen=True)
class Send:
    data: bytes


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Close:
    """In order: a FIN."""


@dataclass(frozen=True)
class Reset:
    """A RST."""


@dataclass(frozen=True)
class Hold:
    """Says nothing more and keeps the connection until the client leaves."""


@dataclass(frozen=True)
class Endless:
    """The same bytes again and again until the client leaves."""

    data: bytes
    every_s: float = GAP_S


Step = Send | Wait | Close | Reset | Hold | Endless
Steps = tuple[Step, ...]


def head(status: str = "200 OK", /, version: str = "1.1", **headers: str) -> bytes:
    """A response head; underscores in names become hyphens."""
    lines = [f"HTTP/{version} {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


STREAM = head(content_type="text/event-stream; charset=utf-8", transfer_encoding="chunked")
UNFRAMED = head(content_type="text/event-stream", connection="close")
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


def event(value: Any, name: str = "") -> bytes:
    """One SSE event: a JSON value, or text as it is."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def delta(finish: str | None = None, index: int = 0, usage: Any = ..., **fields: Any) -> bytes:
    """A chat chunk of vLLM's shape; `usage` is left out where it is not given."""
    choice = {"index": index, "delta": fields, "logprobs": None, "finish_reason": finish, "token_ids": None}
    return _chunk([choice], usage, "chat.completion.chunk")


def text(value: str, finish: str | None = None, usage: Any = ...) -> bytes:
    """A completions chunk of vLLM's shape."""
    return _chunk([{"index": 0, "text": value, "logprobs": None, "finish_reason": finish}], usage, "text_completion")


def usage(output: int, prompt: int = 17, **details: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output, **details}


def usage_chunk(output: int, **details: Any) -> bytes:
    return _chunk([], usage(output, **details), "chat.completion.chunk")


def _chunk(choices: list[Any], usage: Any, kind: str) -> bytes:
    found = {"id": "chatcmpl-9bdd364a535d625a", "object": kind, "created": 1795961954, "model": "scripted"}
    return event({**found, "choices": choices, **({} if usage is ... else {"usage": usage})})


def words(count: int, finish: str | None = "length") -> list[bytes]:
    """vLLM's usual stream without usage and [DONE]: the role, then `count` tokens, the last with the finish reason."""
    tokens = [delta(content=f" w{i}", finish=finish if i == count - 1 else None) for i in range(count)]
    return [delta(role="assistant", content=""), *tokens]


def timed(opening: bytes, pieces: Iterable[bytes], *ending: Step) -> Steps:
    """The opening at once, the pieces at FIRST_S and then every GAP_S, each a write of its own; then the ending."""
    steps: list[Step] = [Send(opening)]
    for number, piece in enumerate(pieces):
        steps += [Wait(GAP_S if number else FIRST_S), Send(piece)]
    return (*steps, *ending)


def chunked(events: Iterable[bytes], *ending: Step) -> Steps:
    """A chunked stream, an event a chunk; ends with the last chunk unless another ending is given."""
    return timed(STREAM, [chunk(piece) for piece in events], *(ending or (Send(LAST_CHUNK),)))


def whole(status: str, body: bytes, content_type: str = "application/json", **headers: str) -> Steps:
    """A plain reply with a length, FIRST_S after the request."""
    opening = head(status, content_type=content_type, content_length=str(len(body)), **headers)
    return (Wait(FIRST_S), Send(opening + body))


def sent_bytes(steps: Steps) -> bytes:
    """All that the steps write (an endless one once)."""
    return b"".join(step.data for step in steps if isinstance(step, Send | Endless))
