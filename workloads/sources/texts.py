"""Rows that hold texts: ShareGPT's conversations, OpenAI's messages, vLLM's custom prompts.

Sources of the formats: ShareGPT_V3 (a JSON array of {conversations: [{from, value}]}, as `vllm bench serve` reads it);
OpenAI's chat messages, alone ({messages: […]}) or in its batch files ({body: {messages: […]}}); vLLM's custom data set
({prompt: …, output_tokens: …}).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from workloads.sources import Message
from workloads.sources.rows import MOST_TOKENS, Conversation, Row, RowError, Said, plain

_USERS = frozenset({"human", "user"})
_SYSTEMS = frozenset({"system", "developer"})
_TOOLS = frozenset({"tool", "function", "observation"})

_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]


class _Value(msgspec.Struct):
    source: str = msgspec.field(name="from")
    value: str


class _ShareGpt(msgspec.Struct):
    conversations: list[_Value]


class _Said(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _Request(msgspec.Struct):
    messages: list[_Said]
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None


class _Line(msgspec.Struct):
    messages: list[_Said] | None = None
    body: _Request | None = None
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None


class _Prompt(msgspec.Struct):
    prompt: str
    output_tokens: _Tokens | None = None


_decode_sharegpt = msgspec.json.Decoder(_ShareGpt).decode
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_prompt = msgspec.json.Decoder(_Prompt).decode


def sharegpt_row(raw: bytes) -> Row | None:
    """One conversation of a ShareGPT file; None where no user says anything."""
    item = _decoded(_decode_sharegpt, raw)
    return _row([(said.source.lower(), said.value) for said in item.conversations], None)


def conversation_row(raw: bytes) -> Row | None:
    """One line of OpenAI messages; None where no user says anything."""
    line = _decoded(_decode_line, raw)
    request = line.body or line
    if request.messages is None:
        raise RowError("the key 'messages' is missing")
    longest = request.max_completion_tokens or request.max_tokens
    return _row([(said.role, said.content or "") for said in request.messages], longest)


def prompt_row(raw: bytes) -> Row | None:
    """One line of vLLM's custom data set; None where the prompt is empty."""
    item = _decoded(_decode_prompt, raw)
    if not item.prompt:
        return None
    return _said(Conversation(({"role": "user", "content": item.prompt},), (), (item.output_tokens,)))


def _decoded(decode: Any, raw: bytes) -> Any:
    try:
        return decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RowError(plain(error)) from None


def _row(said: list[tuple[str, Any]], longest: int | None) -> Row | None:
    """What is said before the first answer, and then what is said between one answer and the next."""
    opening: list[Message] = []
    later: list[Said] = []
    answers: list[str | int | None] = []
    pending: list[tuple[str, Any]] = []
    for role, content in said:
        if role in _USERS | _SYSTEMS | _TOOLS:
            pending.append((role, content))
            continue
        if pending or not answers:
            _close(pending, opening, later)
            pending = []
            if opening:
                answers.append(longest if longest is not None else _text(content))
    if pending:
        _close(pending, opening, later)
        answers.append(longest)
    if not opening:
        return None
    return _said(Conversation(tuple(opening), tuple(later), tuple(answers)))


def _close(pending: list[tuple[str, Any]], opening: list[Message], later: list[Said]) -> None:
    """Ends a turn: the first one, from the first user's words on (and what a system said), or a later one."""
    if not opening:
        if any(role in _USERS for role, _ in pending):
            known = [(role, content) for role, content in pending if role not in _TOOLS]
            opening += [{"role": "system" if role in _SYSTEMS else "user", "content": said} for role, said in known]
        return
    role = "tool" if all(role in _TOOLS for role, _ in pending) else "user"
    later.append(Said("\n".join(_text(content) for _, content in pending), role))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


def _said(conversation: Conversation) -> Row:
    return Row(None, 0, 0, conversation=conversation)
