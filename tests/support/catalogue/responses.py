"""The Responses API's streams."""

from __future__ import annotations

from typing import Any

from locustfiles.client.reading import Asked
from tests.support.catalogue.reply import RESPONSES, bad, good
from tests.support.replies import (
    DONE,
    chunked,
    event,
)

_OPENING = event({"type": "response.created", "response": {"status": "in_progress"}}, "response.created")


def _says(kind: str, **fields: Any) -> bytes:
    return event({"type": f"response.{kind}", **fields}, f"response.{kind}")


def _ends(status: str, **fields: Any) -> bytes:
    return _says(status, response={"status": status, "usage": {"input_tokens": 9, "output_tokens": 4}, **fields})


_SAID = [_OPENING, _says("output_text.delta", delta="a"), _says("output_text.delta", delta="b")]
good(
    "responses_text",
    chunked([*_SAID, _says("output_text.done", text="ab"), _ends("completed")]),
    2,
    4,
    finish="stop",
    asked=Asked("/v1/responses", keep_text=True),
    answer="ab",
)
good(
    "responses_reasoning_and_call",
    chunked(
        [
            _OPENING,
            _says("reasoning_text.delta", delta="hm"),
            _says("reasoning_summary_text.delta", delta="so"),
            _says("function_call_arguments.delta", delta='{"a"'),
            _says("function_call_arguments.delta", delta=""),
            _says("refusal.delta", delta="no"),
            _ends("completed"),
            DONE,
        ]
    ),
    4,
    4,
    finish="stop",
    asked=RESPONSES,
)
good(
    "responses_incomplete",
    chunked([*_SAID, _ends("incomplete", incomplete_details={"reason": "max_output_tokens"})]),
    2,
    4,
    asked=RESPONSES,
)
# vLLM calls every end completed, and tells the truth in the object.
good(
    "responses_incomplete_by_its_object",
    chunked([*_SAID, _says("completed", response={"status": "incomplete", "usage": {"output_tokens": 4}})]),
    2,
    4,
    asked=RESPONSES,
)
bad(
    "responses_failed_by_its_object",
    "api_error",
    chunked([*_SAID, _says("completed", response={"status": "failed", "error": {"message": "died"}})]),
    2,
    message="died",
    asked=RESPONSES,
)
bad(
    "responses_cancelled",
    "aborted",
    chunked([*_SAID, _says("completed", response={"status": "cancelled"})]),
    2,
    finish="abort",
    asked=RESPONSES,
)
bad(
    "responses_failed",
    "api_error",
    chunked([*_SAID, _ends("failed", error={"code": "server_error", "message": "died"})]),
    2,
    tokens=4,
    source="usage",
    message="server_error: died",
    asked=RESPONSES,
)
bad(
    "responses_error",
    "api_error",
    chunked([*_SAID, event({"type": "error", "code": "x", "message": "no more"}, "error")]),
    2,
    message="x: no more",
    asked=RESPONSES,
)
bad("responses_cut", "truncated", chunked(_SAID), 2, asked=RESPONSES)
