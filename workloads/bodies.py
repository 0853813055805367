"""A designed request as the bytes of an OpenAI request body, with vLLM's extensions for a forced length.

Bodies of the three APIs differ in what the prompt is called, what the longest answer is called, how tools and formats
are written, and whether usage must be asked for (the Responses API always tells it, with its last event).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from workloads.prompts import Prompt
from workloads.spec import RequestClass


@dataclass(frozen=True)
class BodyOptions:
    """What the run adds to every body. `usage_per_chunk` asks for vLLM's `continuous_usage_stats`."""

    model: str
    stream: bool = True
    usage_per_chunk: bool = False
    extra_body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What the server said, as the next turn of a conversation repeats it; `tool_calls` as OpenAI's messages have it.

    Source of the shape: OpenAI's API reference, chat completions, `messages[].tool_calls`.
    """

    text: str
    tool_calls: Sequence[Mapping[str, Any]] = ()


def encode_body(
    item: RequestClass, prompt: Prompt, output_tokens: int, options: BodyOptions, model: str | None = None
) -> bytes:
    """The body; the same bytes for the same arguments. The run's extra body wins over the class's."""
    body: dict[str, Any] = {"model": model or item.model or options.model}
    responses = item.endpoint == "responses"
    if prompt.messages is None:
        body["prompt"] = prompt.text
    else:
        body["input" if responses else "messages"] = prompt.messages
    body["stream"] = options.stream
    if responses:
        # Or servers that can keep every answer, for weeks some of them.
        body["store"] = False
    elif options.stream:
        usage = {"continuous_usage_stats": True} if options.usage_per_chunk else {}
        body["stream_options"] = {"include_usage": True, **usage}
    body.update(_lengths(item, output_tokens))
    if item.exact_output:
        body["ignore_eos"] = True
    body.update(_tools_and_format(item))
    body.update(item.sampling.model_dump(exclude_none=True))
    if item.priority is not None:
        body["priority"] = item.priority
    body.update(item.extra_body)
    body.update(options.extra_body)
    return msgspec.json.encode(body)


def next_body(
    item: RequestClass, body: bytes, answer: Answer, text: str, role: str, output_tokens: int, options: BodyOptions
) -> bytes:
    """The body of the turn after `body` and its true `answer`: both repeated, `text` added, all else as it was."""
    again: dict[str, Any] = msgspec.json.decode(body)
    if item.endpoint == "completions":
        again["prompt"] = f"{again['prompt']}{answer.text}{text}"
    else:
        key = "input" if item.endpoint == "responses" else "messages"
        again[key] = [*again[key], *_turn(answer, text, role)]
    extra = {**item.extra_body, **options.extra_body}
    again.update({k: v for k, v in _lengths(item, output_tokens).items() if k not in extra})
    return msgspec.json.encode(again)


def demanded_tokens(item: RequestClass, output_tokens: int, options: BodyOptions) -> int:
    """The fewest output tokens, over all choices, that the body of `encode_body` allows a whole answer to have."""
    extra = {**item.extra_body, **options.extra_body}
    longest, least = extra.get(_longest(item), output_tokens), output_tokens if item.exact_output else 0
    forced = extra.get("ignore_eos", item.exact_output) and not extra.get("stop") and not extra.get("stop_token_ids")
    fewest = longest if forced else extra.get("min_tokens", least)
    choices = extra.get("n", 1)
    known = isinstance(fewest, int) and isinstance(choices, int)
    return fewest * choices if known else 0


def _turn(answer: Answer, text: str, role: str) -> list[dict[str, Any]]:
    said: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if role != "tool" or not answer.tool_calls:
        # A call that nobody answers would be refused, so where a user speaks next it is left out.
        return [said, {"role": "user", "content": text}]
    said["tool_calls"] = list(answer.tool_calls)
    # One result holds the designed tokens; the calls beside it, which nobody designed, succeed without a word.
    results = [text, *["ok"] * (len(answer.tool_calls) - 1)]
    return [
        said,
        *(
            {"role": "tool", "tool_call_id": call.get("id"), "content": result}
            for call, result in zip(answer.tool_calls, results, strict=True)
        ),
    ]


def _lengths(item: RequestClass, output_tokens: int) -> dict[str, int]:
    forced = item.exact_output and item.endpoint != "responses"
    return {_longest(item): output_tokens} | ({"min_tokens": output_tokens} if forced else {})


def _tools_and_format(item: RequestClass) -> dict[str, Any]:
    found: dict[str, Any] = {}
    responses = item.endpoint == "responses"
    if item.tools:
        # The Responses API has a tool's name and parameters beside its type.
        found["tools"] = [{"type": "function", **tool["function"]} if responses else tool for tool in item.tools]
    if item.tool_choice is not None:
        found["tool_choice"] = item.tool_choice
    form = item.response_format
    if form is not None and responses:
        found["text"] = {"format": {"type": form["type"], **form.get("json_schema", {})}}
    elif form is not None:
        found["response_format"] = form
    return found


def _longest(item: RequestClass) -> str:
    return "max_output_tokens" if item.endpoint == "responses" else "max_tokens"
