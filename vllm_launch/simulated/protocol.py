"""What clients may ask, and vLLM's words for what they may not: request bodies, checks, and error replies.

Shapes and messages are those captured from vLLM 0.32. Fields that would need a real model's logits or grammar are
refused rather than answered with an invention.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError

Shape = TypeVar("Shape", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ApiError(Exception):
    """An error reply: `{"error": {...}}` with an HTTP status."""

    status: int
    message: str
    type: str
    param: str | None = None

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


def bad_request(message: str, param: str | None = None, value: object = None) -> ApiError:
    """A 400 as vLLM words it: the parameter, and its value where it has one, in brackets behind the message."""
    if param:
        message += f" (parameter={param}{'' if value is None else f', value={value}'})"
    return ApiError(HTTPStatus.BAD_REQUEST, message, "BadRequestError", param)


def unknown_model(name: str, served: tuple[str, ...]) -> ApiError:
    message = f"The model `{name}` does not exist. Valid aliases: {', '.join(served)}."
    return ApiError(HTTPStatus.NOT_FOUND, message, "NotFoundError", "model")


BUSY = ApiError(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
    "Service Unavailable",
)


class StreamOptions(BaseModel):
    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")
    role: str
    content: str | list[dict[str, Any]] | None = None

    def text(self) -> str:
        """The text of the message; parts that are no text count for nothing."""
        if isinstance(self.content, list):
            return "\n".join(str(part.get("text", "")) for part in self.content)
        return self.content or ""


class RequestBody(BaseModel):
    """What chat completions and completions have in common."""

    model_config = ConfigDict(extra="allow")
    model: str | None = None
    n: int = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    priority: int = 0
    request_id: str | None = None
    return_token_ids: bool | None = None

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def asked_tokens(self) -> int | None:
        return self.max_tokens

    def refused(self) -> str | None:
        """The name of a field that is set and that this engine cannot honour."""
        extra = self.model_extra or {}
        if (extra.get("response_format") or {"type": "text"}).get("type") != "text":
            return "response_format"
        wanted = ("logprobs", "prompt_logprobs", "echo", "suffix", "use_beam_search", "structured_outputs")
        return next((name for name in wanted if extra.get(name) not in (None, False)), None)


class ChatBody(RequestBody):
    messages: list[Message]
    max_completion_tokens: int | None = None

    def asked_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionBody(RequestBody):
    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = 16

    def prompts(self) -> list[str | list[int]]:
        """Each prompt as text or as token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [token for token in self.prompt if isinstance(token, int)]
        if ids:
            return [ids]
        return [prompt for prompt in self.prompt if not isinstance(prompt, int)]


class TokenizeBody(BaseModel):
    model_config = ConfigDict(extra="allow")
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


# vLLM's own limit (VLLM_MAX_N_SEQUENCES).
_MOST_CHOICES = 16384

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]


def read_body(raw: bytes, shape: type[Shape]) -> Shape:
    """The body as an instance of `shape`; raises `ApiError` in FastAPI's sense, worded as vLLM does."""
    try:
        data = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _not_json(raw) from None
    try:
        return shape.model_validate(data)
    except ValidationError as error:
        raise _invalid([dict(fault) for fault in error.errors(include_url=False)]) from None


def _not_json(raw: bytes) -> ApiError:
    position, reason = 0, "Invalid UTF-8"
    try:
        json.loads(raw.decode())
    except json.JSONDecodeError as error:
        position, reason = error.pos, error.msg
    except UnicodeDecodeError:
        pass
    fault = {"type": "json_invalid", "loc": (position,), "msg": "JSON decode error", "input": {}}
    return _invalid([{**fault, "ctx": {"error": reason}}])


def _invalid(faults: list[dict[str, Any]]) -> ApiError:
    lines = []
    places = [".".join(("body", *(str(part) for part in fault["loc"]))) for fault in faults]
    for fault, place in zip(faults, places, strict=True):
        shown = {"type": fault["type"], "loc": place, "msg": fault["msg"], "input": _shown(fault["input"])}
        if fault["type"] == "json_invalid":
            shown["ctx"] = fault["ctx"]
        lines.append(f"  {shown}")
    plural = "error" if len(faults) == 1 else "errors"
    message = "\n".join((f"{len(faults)} validation {plural}:", *lines))
    return ApiError(HTTPStatus.BAD_REQUEST, message, "Bad Request", places[0])


def _shown(value: object) -> object:
    """vLLM names containers in its messages instead of repeating what may be a whole conversation."""
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    return value


def check(body: RequestBody, served: tuple[str, ...], max_model_len: int) -> None:
    """The checks that need no prompt, in vLLM's order; raises `ApiError`."""
    if body.stream_options is not None and not body.stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.model is not None and body.model not in served:
        raise unknown_model(body.model, served)
    asked = body.asked_tokens()
    if body.n < 1:
        raise bad_request(f"n must be at least 1, got {body.n}.", "n", body.n)
    if body.n > _MOST_CHOICES:
        raise bad_request(f"n must be at most {_MOST_CHOICES}, got {body.n}.", "n", body.n)
    if body.temperature is not None and body.temperature < 0:
        value = float(body.temperature)
        raise bad_request(f"temperature must be non-negative, got {value}.", "temperature", value)
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise bad_request(f"top_p must be in (0, 1], got {body.top_p}.", "top_p", body.top_p)
    if asked is not None and asked < 1:
        raise bad_request(f"max_tokens must be at least 1, got {asked}.", "max_tokens", asked)
    if asked is not None and asked > max_model_len:
        problem = f"max_tokens={asked} cannot be greater than max_model_len={max_model_len}. "
        raise bad_request(problem + "Please request fewer output tokens.", "max_tokens", asked)
    if body.min_tokens < 0:
        raise bad_request(f"min_tokens must be greater than or equal to 0, got {body.min_tokens}.")
    if asked is not None and body.min_tokens > asked:
        raise bad_request(f"min_tokens must be less than or equal to max_tokens={asked}, got {body.min_tokens}.")
    refused = body.refused()
    if refused:
        raise bad_request(f"{refused} is not supported by the embedded engine: it runs no model.", refused)


def output_limit(body: RequestBody, prompt_tokens: int, max_model_len: int) -> int:
    """Tokens the reply may have at most; raises `ApiError` where prompt and reply cannot fit."""
    if prompt_tokens < 1:
        raise bad_request("The decoder prompt cannot be empty", "prompt")
    start = f"This model's maximum context length is {max_model_len} tokens. However, "
    advice = "Please reduce the length of the input prompt"
    asked = body.asked_tokens()
    if prompt_tokens > max_model_len:
        # vLLM stops counting where it knows that the prompt is too long, hence its "at least".
        counted = max_model_len + 1
        problem = f"your prompt contains at least {counted} input tokens, which exceeds this limit even without any "
        raise bad_request(f"{start}{problem}output tokens. {advice}.", "input_tokens", counted)
    wanted = asked or 1
    if prompt_tokens + wanted > max_model_len:
        counted = max_model_len - wanted + 1
        problem = f"you requested {wanted} output tokens and your prompt contains at least {counted} input tokens, "
        problem += f"for a total of at least {max_model_len + 1} tokens. "
        raise bad_request(
            f"{start}{problem}{advice} or the number of requested output tokens.", "input_tokens", counted
        )
    return asked or max_model_len - prompt_tokens
