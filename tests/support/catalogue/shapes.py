"""What a good chat or completions stream may look like."""

from __future__ import annotations

from locustfiles.client.reading import Asked
from tests.support.catalogue.reply import COMPLETIONS, good
from tests.support.replies import (
    DONE,
    STREAM,
    Send,
    chunk,
    chunked,
    delta,
    event,
    text,
    usage,
    usage_chunk,
    words,
)

good("plain", chunked([*words(5), usage_chunk(5), DONE]), 5, 5, answer=" w0 w1 w2 w3 w4", asked=Asked(keep_text=True))
good("role_early", (Send(STREAM), Send(chunk(words(0)[0])), *chunked([*words(5)[1:], usage_chunk(5), DONE])[1:]), 5, 5)
good(
    "empty_and_null_deltas",
    chunked(
        [
            delta(role="assistant", content=None, tool_calls=None, reasoning=None),
            delta(),
            delta(content=""),
            event({"choices": [{"index": 0, "delta": None, "finish_reason": None}]}),
            event({"choices": None}),
            event({"choices": []}),
            delta(content="a", tool_calls=[]),
            delta(content=None),
            delta(content="b", finish=""),
            delta(content="", finish="stop"),
            DONE,
        ]
    ),
    2,
    finish="stop",
)
for _name in ("reasoning", "reasoning_content"):
    good(
        _name,
        chunked(
            [*words(0), *(delta(**{_name: f" r{i}", "content": None}) for i in range(3)), *words(2)[1:], DONE],
        ),
        5,
    )
good(
    "tool_calls_only",
    chunked(
        [
            delta(role="assistant", content=None),
            delta(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f"}}]),
            *(delta(tool_calls=[{"index": 0, "function": {"arguments": part}}]) for part in ('{"a"', ": 1}")),
            delta(finish="tool_calls"),
            DONE,
        ]
    ),
    3,
    finish="tool_calls",
)
good(
    "function_call",
    chunked([delta(function_call={"name": "f"}), delta(finish="function_call"), DONE]),
    1,
    finish="function_call",
)
good(
    "refusal",
    chunked([*words(0), delta(refusal="I"), delta(refusal=" will not"), delta(finish="stop"), DONE]),
    2,
    finish="stop",
)
good(
    "content_in_parts",
    chunked([delta(content=[{"type": "text", "text": "a"}]), delta(finish="stop"), DONE]),
    1,
    finish="stop",
)
good("finish_with_content", chunked([*words(3), DONE]), 3)
good("finish_alone", chunked([*words(3, None), delta(finish="stop"), DONE]), 3, finish="stop")
good(
    "two_choices",
    chunked(
        [
            delta(role="assistant", content=""),
            delta(role="assistant", content="", index=1),
            delta(content="a"),
            delta(content="b", index=1),
            delta(content="c", finish="length"),
            delta(content="d", index=1, finish="stop"),
            usage_chunk(4),
            DONE,
        ]
    ),
    4,
    4,
    finish="stop",
    asked=Asked(n=2, min_tokens=2, keep_text=True),
    answer="ac\n\nbd",
)
good(
    "completions", chunked([text(" a"), text(""), text(" b", "length"), usage_chunk(3), DONE]), 2, 3, asked=COMPLETIONS
)
good(
    "several_tokens_an_event",
    chunked(
        [
            delta(role="assistant", content="", usage=usage(0)),
            delta(content="abc", usage=usage(3)),
            delta(content="", usage=usage(4)),
            delta(content="de", usage=usage(6), finish="length"),
            usage_chunk(6),
            DONE,
        ]
    ),
    2,
    6,
    counts=[3, 6],
)
good("usage_absent", chunked([*words(4), DONE]), 4)
good(
    "usage_null",
    chunked([delta(content="a", usage=None), delta(content="b", usage=None, finish="stop"), DONE]),
    2,
    finish="stop",
)
good(
    "usage_null_then_given",
    chunked([delta(content="a", usage=None), delta(content="b", usage=None, finish="stop"), usage_chunk(3), DONE]),
    2,
    3,
    finish="stop",
)
good(
    "usage_with_details",
    chunked([*words(2), usage_chunk(2, prompt_tokens_details={"cached_tokens": 16}), DONE]),
    2,
    2,
    cached=16,
)
good("usage_of_zero", chunked([*words(3), usage_chunk(0), DONE]), 3)
good("usage_in_floats", chunked([*words(3), event({"choices": [], "usage": {"completion_tokens": 3.0}}), DONE]), 3, 3)
good("one_token", chunked([*words(1), usage_chunk(1), DONE]), 1, 1)
good(
    "no_token", chunked([delta(role="assistant", content="", finish="stop"), usage_chunk(0), DONE]), 0, 0, finish="stop"
)
good(
    "unknown_fields",
    chunked(
        [event({"choices": [{"delta": {"content": "a", "mood": {"x": [1]}}, "finish_reason": "stop"}], "new": 1}), DONE]
    ),
    1,
    finish="stop",
)
good(
    "logprobs",
    chunked(
        [
            event({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"logprob": -7.9}]}}]}),
            delta(content="b", finish="length"),
            DONE,
        ]
    ),
    2,
)
good(
    "short_output",
    chunked([*words(3, "stop"), usage_chunk(3), DONE]),
    3,
    3,
    finish="stop",
    short=True,
    asked=Asked(max_tokens=8, ignore_eos=True),
)
good(
    "long_enough",
    chunked([*words(3, "stop"), usage_chunk(3), DONE]),
    3,
    3,
    finish="stop",
    asked=Asked(max_tokens=8, min_tokens=3),
)
