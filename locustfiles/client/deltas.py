"""JSON of the OpenAI-compatible APIs → token events, tokens, finish reasons, in-band errors.

Only what the figures need is typed; unknown fields are skipped and null equals absent, because servers differ in both.
Fields of which only the presence counts are `Any`: some servers send `content` as a list of parts.
Shapes: OpenAI's API reference (chat, completions, responses) and replies captured from vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import le
from typing import Any

import msgspec

from locustfiles.client.error_bodies import error_message
from locustfiles.client.errors import ABORTED, API_ERROR, EMPTY, MALFORMED, Failure, groupable


class Delta(msgspec.Struct, gc=False):
    """What one chunk adds to one choice (`delta`), or a whole answer (`message`): visible if any field is non-empty."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None

    def visible(self) -> bool:
        return bool(
            self.content
            or self.reasoning
            or self.reasoning_content
            or self.tool_calls
            or self.refusal
            or self.function_call
        )


class Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    delta: Delta | None = None
    message: Delta | None = None
    text: Any = None
    finish_reason: str | None = None


class TokenDetails(msgspec.Struct, gc=False):
    cached_tokens: int | float | None = None


class Usage(msgspec.Struct, gc=False):
    """Counts under both APIs' names; some servers write them as floats."""

    prompt_tokens: int | float | None = None
    completion_tokens: int | float | None = None
    prompt_tokens_details: TokenDetails | None = None
    input_tokens: int | float | None = None
    output_tokens: int | float | None = None
    input_tokens_details: TokenDetails | None = None


class IncompleteDetails(msgspec.Struct, gc=False):
    reason: str | None = None


class Response(msgspec.Struct, gc=False):
    """The Responses API's object, whole in a plain reply and inside its first and last events."""

    status: str | None = None
    usage: Usage | None = None
    error: Any = None
    incomplete_details: IncompleteDetails | None = None
    output: Any = None


class Chunk(msgspec.Struct, gc=False):
    """One `data:` of a chat or completions stream, or their whole plain reply."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None


class ResponsesEvent(msgspec.Struct, gc=False):
    """One `data:` of a Responses stream; `message` and `code` stand in its `error` event."""

    type: str | None = None
    delta: Any = None
    response: Response | None = None
    error: Any = None
    message: Any = None
    code: Any = None


decode_chunk = msgspec.json.Decoder(Chunk).decode
_decode_responses_event = msgspec.json.Decoder(ResponsesEvent).decode
_decode_response = msgspec.json.Decoder(Response).decode
_BY_BADNESS = ("failed", "cancelled", "incomplete")
_RESPONSES_END = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}


class Tally:
    """What the events of one answer add up to. `take` reads one event's data; the rest are its findings.

    `token_ends` holds the offset given with each token event; `token_counts` the completion tokens reported up to each,
    or None once an event came without them; `answered_end` the offset of the event that said that all is said. `plain`:
    nothing of a chunk's text is kept but that there is some.
    """

    __slots__ = (
        "_calls",
        "_responses_api",
        "answered_end",
        "cached_tokens",
        "failure",
        "finish_reason",
        "finished",
        "notes",
        "output_tokens",
        "plain",
        "prompt_tokens",
        "seen",
        "texts",
        "token_counts",
        "token_ends",
    )

    def __init__(self, *, responses_api: bool, keep_text: bool) -> None:
        self.token_ends: list[int] = []
        self.token_counts: list[int] | None = []
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.finish_reason: str | None = None
        self.seen: set[int | None] = set()
        self.finished: set[int | None] = set()
        self.answered_end: int | None = None
        self.failure: Failure | None = None
        self.notes: set[str] = set()
        self.texts: dict[int, list[str]] | None = {} if keep_text else None
        self._calls: dict[int, dict[str, Any]] = {}
        self.plain = not (responses_api or keep_text)
        self._responses_api = responses_api

    @property
    def take(self) -> Callable[[bytes, int], None]:
        """Reads one event: its data, and the offset of its end."""
        return self._take_responses if self._responses_api else self._take_chunk

    def fail(self, kind: str, message: str) -> None:
        """Records a failure; the first one is the cause, later ones its consequences."""
        if self.failure is None:
            self.failure = Failure(kind, message)

    def _take_chunk(self, data: bytes, end: int) -> None:
        chunk: Chunk | None = self._decoded(decode_chunk, data)
        if chunk is None:
            return
        usage = chunk.usage
        if usage is not None:
            self._take_usage(usage)
        visible = False
        for choice in chunk.choices or ():
            delta = choice.delta
            if (delta is not None and (delta.content or delta.visible())) or choice.text:
                visible = True
            index = choice.index
            if index not in self.seen:
                self.seen.add(index)
            if choice.finish_reason:
                self._take_finish(choice.finish_reason, index)
            if self.texts is not None:
                self._keep_text(index, choice.text, delta.content if delta else None, delta.refusal if delta else None)
                if delta is not None and delta.tool_calls and not index:
                    self._keep_calls(delta.tool_calls)
        if visible:
            self.token_ends.append(end)
            counts = self.token_counts
            if counts is not None:
                self._count(counts, usage)
        if chunk.error:
            self.fail(API_ERROR, error_message(chunk.error))
        elif chunk.object == "error":
            self.fail(API_ERROR, error_message(chunk.message))

    def _take_responses(self, data: bytes, end: int) -> None:
        event = self._decoded(_decode_responses_event, data)
        if event is None:
            return
        kind = event.type or ""
        if kind.endswith(".delta") and event.delta:
            self.token_ends.append(end)
            self.token_counts = None
            if self.texts is not None and kind in ("response.output_text.delta", "response.refusal.delta"):
                self._keep_text(0, event.delta)
        elif kind in _RESPONSES_END:
            response = event.response or Response()
            self._take_response(response, _worst(kind.removeprefix("response."), response.status))
            self.answered_end = end
        elif kind == "error" or event.error:
            self.fail(API_ERROR, error_message(event.error or event.message or event.code))

    def take_running_counts(self, usage: Usage, counts: list[int]) -> None:
        """Token events whose `usage` differed in nothing but the completion tokens, which were `counts` in turn."""
        self._take_usage(usage)
        self.output_tokens = counts[-1]
        known = self.token_counts
        if known is None:
            return
        ascending = all(map(le, [known[-1] if known else 0, *counts], counts))
        if ascending and len(self.seen) < 2:
            known.extend(counts)
        else:
            self.token_counts = None

    def take_document(self, body: bytes, *, responses_api: bool) -> None:
        """Reads a whole JSON reply (no stream was asked for)."""
        if responses_api:
            response = self._decoded(_decode_response, body)
            if response is None:
                return
            if response.output is None and not response.error:
                self.fail(MALFORMED, "JSON without output")
            if self.texts is not None:
                self._keep_text(0, *_texts_in(response.output))
            self._take_response(response, response.status or "completed")
            return
        reply = self._decoded(decode_chunk, body)
        if reply is None:
            return
        if reply.usage is not None:
            self._take_usage(reply.usage)
        visible = False
        for choice in reply.choices or ():
            visible = visible or bool(choice.text or (choice.message and choice.message.visible()))
            if choice.finish_reason:
                self._take_finish(choice.finish_reason, choice.index)
            if self.texts is not None:
                message = choice.message or Delta()
                self._keep_text(choice.index, choice.text, message.content, message.refusal)
                if message.tool_calls and not choice.index:
                    self._keep_calls(message.tool_calls)
        if reply.error or reply.object == "error":
            self.fail(API_ERROR, error_message(reply.error or reply.message))
        elif reply.choices is None:
            self.fail(MALFORMED, "JSON without choices")
        elif not visible and self.finish_reason is None:
            self.fail(EMPTY, "choices without an answer")

    def _take_response(self, response: Response, status: str) -> None:
        if response.usage is not None:
            self._take_usage(response.usage)
        if response.error or status == "failed":
            self.fail(API_ERROR, error_message(response.error))
        elif status == "cancelled":
            self._take_finish("abort", 0)
        elif status == "incomplete":
            reason = (response.incomplete_details or IncompleteDetails()).reason
            self._take_finish("length" if reason in (None, "max_output_tokens") else reason, 0)
        elif status == "completed":
            self._take_finish("stop", 0)
        else:
            self.fail(MALFORMED, groupable(f"response ended with status {status}"))

    def _take_finish(self, reason: str, index: int | None) -> None:
        self.finish_reason = reason
        self.finished.add(index)
        if reason == "abort":
            self.fail(ABORTED, "finish_reason abort")
        elif reason == "error":
            self.fail(API_ERROR, "finish_reason error")

    def _take_usage(self, usage: Usage) -> None:
        # Usage is cumulative where it is on every chunk: the last one holds.
        output = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
        prompt = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
        details = usage.prompt_tokens_details or usage.input_tokens_details
        if output is not None and output >= 0:
            self.output_tokens = int(output)
        if prompt is not None and prompt >= 0:
            self.prompt_tokens = int(prompt)
        if details is not None and details.cached_tokens is not None:
            self.cached_tokens = int(details.cached_tokens)

    def _count(self, counts: list[int], usage: Usage | None) -> None:
        # With n > 1 each chunk's usage is about its own choice, and a count that falls is no running count.
        count = self.output_tokens
        if usage is None or usage.completion_tokens is None or count is None or len(self.seen) > 1:
            self.token_counts = None
        elif not counts or count >= counts[-1]:
            counts.append(count)
        else:
            self.token_counts = None

    def _decoded(self, decode: Any, data: bytes) -> Any:
        try:
            if not data.isascii():
                # The decoder skips unknown fields unread; a stream that is not UTF-8 is malformed all the same.
                data.decode()
            return decode(data)
        except UnicodeDecodeError:
            self.fail(MALFORMED, "not UTF-8")
        except (msgspec.MsgspecError, RecursionError) as error:
            problem = "JSON of an unexpected shape" if isinstance(error, msgspec.ValidationError) else "not JSON"
            self.fail(MALFORMED, problem)
        return None

    @property
    def tool_calls(self) -> tuple[dict[str, Any], ...]:
        """The first choice's calls, put together from their parts, in order; empty where nothing is kept."""
        return tuple(self._calls[index] for index in sorted(self._calls))

    def _keep_calls(self, parts: Any) -> None:
        """A stream tells a call's id and name first, then its arguments piece by piece (OpenAI's API reference)."""
        for position, part in enumerate(part for part in _listed(parts) if isinstance(part, dict)):
            index = part.get("index", position)
            told = part.get("function")
            told = told if isinstance(told, dict) else {}
            if not isinstance(index, int):
                continue
            call = self._calls.setdefault(
                index, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
            )
            call["id"] = call["id"] or part.get("id")
            for key in ("name", "arguments"):
                if isinstance(told.get(key), str):
                    call["function"][key] += told[key]

    def _keep_text(self, index: int | None, *parts: Any) -> None:
        assert self.texts is not None
        self.texts.setdefault(index or 0, []).extend(part for part in parts if isinstance(part, str) and part)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _worst(told: str, status: str | None) -> str:
    """The status of a response whose last event tells one and its object another: vLLM calls each end completed."""
    return next((bad for bad in _BY_BADNESS if bad in (told, status)), told)


def _texts_in(output: Any) -> list[Any]:
    """The texts in a whole response's `output`, which is a list of items with a list of parts each."""
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    parts = [part for item in items if isinstance(item.get("content"), list) for part in item["content"]]
    return [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "output_text"]
