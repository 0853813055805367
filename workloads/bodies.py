"""A designed request as the bytes of an OpenAI request body, with vLLM's extensions for a forced length."""

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
    if prompt.messages is not None:
        body["messages"] = prompt.messages
    else:
        body["prompt"] = prompt.text
    body["stream"] = options.stream
    if options.stream:
        usage = {"continuous_usage_stats": True} if options.usage_per_chunk else {}
        body["stream_options"] = {"include_usage": True, **usage}
    body["max_tokens"] = output_tokens
    if item.exact_output:
        body["min_tokens"] = output_tokens
        body["ignore_eos"] = True
    body.update(item.sampling.model_dump(exclude_none=True))
    if item.priority is not None:
        body["priority"] = item.priority
    body.update(item.extra_body)
    body.update(options.extra_body)
    return msgspec.json.encode(body)
