"""A designed request as the bytes of an OpenAI request body, with vLLM's extensions for a forced length.

Bodies of the three APIs differ in three things: what the prompt is called, what the longest answer is called, and
whether usage must be asked for (the Responses API always tells it, with its last event).
"""

from __future__ import annotations

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


def encode_body(item: RequestClass, prompt: Prompt, output_tokens: int, options: BodyOptions) -> bytes:
    """The body; the same bytes for the same arguments. The run's extra body wins over the class's."""
    body: dict[str, Any] = {"model": item.model or options.model}
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
    body[_longest(item)] = output_tokens
    if item.exact_output:
        if not responses:
            body["min_tokens"] = output_tokens
        body["ignore_eos"] = True
    body.update(item.sampling.model_dump(exclude_none=True))
    if item.priority is not None:
        body["priority"] = item.priority
    body.update(item.extra_body)
    body.update(options.extra_body)
    return msgspec.json.encode(body)


def demanded_tokens(item: RequestClass, output_tokens: int, options: BodyOptions) -> int:
    """The fewest output tokens, over all choices, that the body of `encode_body` allows a whole answer to have."""
    extra = {**item.extra_body, **options.extra_body}
    longest, least = extra.get(_longest(item), output_tokens), output_tokens if item.exact_output else 0
    forced = extra.get("ignore_eos", item.exact_output) and not extra.get("stop") and not extra.get("stop_token_ids")
    fewest = longest if forced else extra.get("min_tokens", least)
    choices = extra.get("n", 1)
    known = isinstance(fewest, int) and isinstance(choices, int)
    return fewest * choices if known else 0


def _longest(item: RequestClass) -> str:
    return "max_output_tokens" if item.endpoint == "responses" else "max_tokens"
