"""The schema of one class of a workload: what its requests ask for, and what they share."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from tailgate.exits import BadInput
from tailgate.objectives import parse_objectives
from tailgate.yaml_file import FaultAt
from workloads.durations import Duration, FixedTime
from workloads.lengths import Length, Tokens

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


def _plain_name(value: str) -> str:
    """Names end up in file names, metric labels and table rows."""
    if not re.fullmatch(_NAME, value):
        raise ValueError(f"'{value}' will not do as a name; use letters, digits, '.', '_' and '-' (64 at most)")
    return value


def _sayable(value: dict[str, Any]) -> dict[str, Any]:
    """YAML has values that JSON lacks: dates, sets, not-a-number. A body would carry something else in their place."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"not JSON ({error}); put dates into quotes, and use no .nan, .inf or !!set") from None
    return value


Name = Annotated[str, AfterValidator(_plain_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"})]
_JsonObject = Annotated[dict[str, Any], AfterValidator(_sayable)]
_Zipf = Annotated[float, Field(ge=0, le=5)]
_RESERVED = frozenset(
    {
        "model",
        "messages",
        "prompt",
        "input",
        "stream",
        "stream_options",
        "max_tokens",
        "min_tokens",
        "max_output_tokens",
    }
)
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses"}
_MOST_TURNS = 10_000


class Spec(BaseModel):
    """Keys as files have them (with hyphens), none unknown."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, alias_generator=lambda name: name.replace("_", "-")
    )


class SharedPrefix(Spec):
    """Requests of one group begin with the same text, so that the engine's prefix cache can serve it."""

    tokens: Tokens = Field(description="length of the shared text, exactly; it counts towards input-tokens")
    groups: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = Field(
        default=1, description="how many such texts there are"
    )
    zipf: _Zipf = Field(default=0.0, description="0: every group equally often; s: group k as often as 1/k^s")


class Documents(Spec):
    """Texts that a retriever puts before the question: each the same whenever it is drawn, some drawn far more often.

    Only what two prompts have in common from their start on can be served from a prefix cache, so the order counts.
    """

    count: Annotated[int, Field(ge=1, le=10_000_000, strict=True)] = Field(description="how many documents there are")
    tokens: Tokens = Field(description="length of each, exactly; it counts towards input-tokens")
    per_request: Annotated[int, Field(ge=1, le=256, strict=True)] = Field(
        default=1, description="how many different ones a prompt holds"
    )
    zipf: _Zipf = Field(default=1.0, description="0: every document equally often; s: document k as often as 1/k^s")

    @model_validator(mode="after")
    def _enough(self) -> Documents:
        if self.per_request > self.count:
            raise FaultAt(("per-request",), f"asks for {self.per_request} of {self.count} documents; lower it")
        return self


class Turns(Spec):
    """Makes each arrival a conversation, whose turns carry the server's own answers so far.

    A turn leaves when its user has read the answer before (`think-time`); all of a conversation is sent by one worker.
    """

    count: Length = Field(description="requests of a conversation")
    input_tokens: Length = Field(description="tokens that each turn after the first adds; the first has input-tokens")
    output_tokens: Length | None = Field(default=None, description="answers after the first (default: output-tokens)")
    think_time: Duration = Field(default=FixedTime(seconds=0.0), description="seconds between answer and next turn")
    role: Literal["user", "tool"] = Field(
        default="user", description="tool: a turn answers the tool calls before it (as a user, where there were none)"
    )

    @model_validator(mode="after")
    def _bounded(self) -> Turns:
        if self.count.at(1 - 1e-9) > _MOST_TURNS:
            raise FaultAt(("count",), f"up to {self.count.at(1 - 1e-9):,}; a conversation has {_MOST_TURNS:,} at most")
        return self


class Lora(Spec):
    """Adapters that requests ask for by name, in place of the run's model."""

    models: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    zipf: _Zipf = Field(default=0.0, description="0: each equally often; s: the k-th as often as 1/k^s")
    base_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="share that asks for the base model"
    )


class Sampling(Spec):
    """Sampling parameters of the request body; what is left out is left to the server."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=None)

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    seed: int | None = None


class RequestClass(Spec):
    """One kind of request within the mix; its name is the name of Locust's rows."""

    weight: Annotated[float, Field(gt=0, le=1e9)] = Field(
        default=1.0, description="share of requests (of conversations, with turns), relative to the others"
    )
    endpoint: Literal["chat", "completions", "responses"] = "chat"
    input_tokens: Length | None = Field(
        None,
        description="the whole prompt as the server counts it: chat template, system prompt and shared text included",
    )
    output_tokens: Length | None = Field(default=None, description="tokens of the answer")
    exact_output: bool = Field(
        default=True,
        description="force the length with ignore_eos and min_tokens (vLLM); false: max_tokens only, as always where "
        "a grammar decides (response-format, a required tool)",
    )
    language: Literal["en", "zh", "mixed"] = "en"
    system_prompt_tokens: Annotated[int, Field(ge=0, le=10_000_000, strict=True)] = Field(
        default=0,
        description="a system message of this many tokens, the same in every request of the class (chat only)",
    )
    shared_prefix: SharedPrefix | None = None
    documents: Documents | None = None
    turns: Turns | None = None
    tools: tuple[_JsonObject, ...] = Field(
        default=(), description="OpenAI tool definitions: {type: function, function: {name: …, parameters: {…}}}"
    )
    tool_choice: Literal["auto", "none", "required"] | _JsonObject | None = None
    response_format: _JsonObject | None = Field(
        default=None, description="structured output: {type: json_object} or {type: json_schema, json_schema: {…}}"
    )
    sampling: Sampling = Sampling()
    extra_body: _JsonObject = Field(default={}, description="further keys of the request body, as they are")
    priority: int | None = Field(
        default=None, description="vLLM's priority (lower is sooner; needs --scheduling-policy priority)"
    )
    model: str | None = Field(default=None, description="a model or LoRA adapter name instead of the run's model")
    lora: Lora | None = None
    slo: str | None = Field(default=None, description="objectives such as ttft_p95<1s,itl_p95<100ms")

    @model_validator(mode="before")
    @classmethod
    def _grammar_ends_answers(cls, data: Any) -> Any:
        if isinstance(data, dict) and "exact-output" not in data and "exact_output" not in data and _has_grammar(data):
            return data | {"exact-output": False}
        return data

    @field_validator("slo")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        return checked_slo(value)

    @field_validator("extra_body")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(_RESERVED & value.keys())
        if taken:
            raise ValueError(f"'{taken[0]}' is set by the workload itself; leave it out of extra-body")
        return value

    @field_validator("tools")
    @classmethod
    def _callable(cls, value: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for tool in value:
            function = tool.get("function")
            if tool.get("type") != "function" or not isinstance(function, dict) or not function.get("name"):
                raise ValueError("a tool is written {type: function, function: {name: …, parameters: {…}}}")
        return value

    @field_validator("response_format")
    @classmethod
    def _known_format(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        kind = (value or {}).get("type", "text" if value is None else None)
        if kind not in ("text", "json_object", "json_schema", "structural_tag"):
            raise ValueError(f"type '{kind}' is unknown; write {{type: json_schema, json_schema: {{…}}}}")
        if kind == "json_schema" and not isinstance((value or {}).get("json_schema"), dict):
            raise ValueError("the key 'json_schema' is missing; add {name: …, schema: {…}}")
        return value

    @model_validator(mode="after")
    def _coherent(self) -> RequestClass:
        if self.system_prompt_tokens and not self.templated:
            raise FaultAt(("system-prompt-tokens",), "needs the chat endpoint; use shared-prefix for completions")
        if self.tools and not self.templated:
            raise FaultAt(("tools",), "needs the chat endpoint; completions know no tools")
        if self.tool_choice is not None and not self.tools:
            raise FaultAt(("tool-choice",), "there are no tools to choose; add 'tools'")
        if self.exact_output and _has_grammar(
            {"response-format": self.response_format, "tool-choice": self.tool_choice}
        ):
            raise FaultAt(("exact-output",), "a grammar ends the answer where it is whole; leave exact-output out")
        if self.lora and self.model:
            raise FaultAt(("model",), "lora names the models already; keep one of the two")
        longest = self.input_tokens.at(1 - 1e-9) if self.input_tokens else None
        fixed = self.shared_tokens + self.document_tokens
        if longest is not None and longest <= fixed:
            parts = "the shared parts" if not self.documents else "the shared parts and documents"
            raise FaultAt(
                ("input-tokens",),
                f"at most {longest}, but {parts} alone are {fixed}; ask for longer prompts",
            )
        return self

    @property
    def path(self) -> str:
        """The endpoint's path on the server."""
        return PATHS[self.endpoint]

    @property
    def templated(self) -> bool:
        """Whether prompts are messages that the server puts into its chat template."""
        return self.endpoint != "completions"

    @property
    def shared_tokens(self) -> int:
        """Tokens at the start of every prompt that others of the class have too, by design."""
        return self.system_prompt_tokens + (self.shared_prefix.tokens if self.shared_prefix else 0)

    @property
    def document_tokens(self) -> int:
        """Tokens of the documents in each prompt."""
        return self.documents.tokens * self.documents.per_request if self.documents else 0

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the class names itself."""
        return self.lora.models if self.lora else (self.model,) if self.model else ()


def _has_grammar(data: dict[str, Any]) -> bool:
    form = data.get("response-format", data.get("response_format"))
    choice = data.get("tool-choice", data.get("tool_choice"))
    structured = isinstance(form, dict) and form.get("type") != "text"
    return structured or choice == "required" or isinstance(choice, dict)


def checked_slo(value: str | None) -> str | None:
    """The objectives' text where it can be read; a `ValueError` for pydantic where not."""
    if value is not None:
        try:
            parse_objectives(value, "slo")
        except BadInput as error:
            raise ValueError(str(error).removeprefix("slo: ")) from None
    return value
