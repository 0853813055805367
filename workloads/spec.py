"""The schema of a workload: one YAML file, every key checked, every default written here.

Only what is sent and when; how it is sent, timed and judged belongs to other rooms.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from tailgate.exits import BadInput
from tailgate.objectives import Objective, parse_objectives
from tailgate.yaml_file import FaultAt
from workloads.arrivals import ArrivalSpec
from workloads.lengths import Fixed, Length, Tokens

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


def _plain_name(value: str) -> str:
    """Names end up in file names, metric labels and table rows."""
    if not re.fullmatch(_NAME, value):
        raise ValueError(f"'{value}' will not do as a name; use letters, digits, '.', '_' and '-' (64 at most)")
    return value


Name = Annotated[str, AfterValidator(_plain_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"})]
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
_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses"}


class _Spec(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, alias_generator=lambda name: name.replace("_", "-")
    )


class SharedPrefix(_Spec):
    """Requests of one group begin with the same text, so that the engine's prefix cache can serve it."""

    tokens: Tokens = Field(description="length of the shared text, exactly; it counts towards input-tokens")
    groups: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = Field(
        default=1, description="how many such texts there are"
    )
    zipf: Annotated[float, Field(ge=0, le=5)] = Field(
        default=0.0, description="0: every group equally often; s: group k as often as 1/k^s"
    )


class Sampling(_Spec):
    """Sampling parameters of the request body; what is left out is left to the server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    seed: int | None = None


class RequestClass(_Spec):
    """One kind of request within the mix; its name is the name of Locust's rows."""

    weight: Annotated[float, Field(gt=0, le=1e9)] = Field(
        default=1.0, description="share of requests, relative to the others"
    )
    endpoint: Literal["chat", "completions", "responses"] = "chat"
    input_tokens: Length | None = Field(
        None,
        description="the whole prompt as the server counts it: chat template, system prompt and shared text included",
    )
    output_tokens: Length | None = Field(default=None, description="tokens of the answer")
    exact_output: bool = Field(
        default=True, description="force the length with ignore_eos and min_tokens (vLLM); false: max_tokens only"
    )
    language: Literal["en", "zh", "mixed"] = "en"
    system_prompt_tokens: Annotated[int, Field(ge=0, le=10_000_000, strict=True)] = Field(
        default=0,
        description="a system message of this many tokens, the same in every request of the class (chat only)",
    )
    shared_prefix: SharedPrefix | None = None
    sampling: Sampling = Sampling()
    extra_body: dict[str, Any] = Field(default={}, description="further keys of the request body, as they are")
    priority: int | None = Field(
        default=None, description="vLLM's priority (lower is sooner; needs --scheduling-policy priority)"
    )
    model: str | None = Field(default=None, description="a model or LoRA adapter name instead of the run's model")
    slo: str | None = Field(default=None, description="objectives such as ttft_p95<1s,itl_p95<100ms")

    @field_validator("slo")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        return _checked_slo(value)

    @field_validator("extra_body")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(_RESERVED & value.keys())
        if taken:
            raise ValueError(f"'{taken[0]}' is set by the workload itself; leave it out of extra-body")
        return value

    @model_validator(mode="after")
    def _coherent(self) -> RequestClass:
        if self.system_prompt_tokens and not self.templated:
            raise FaultAt(("system-prompt-tokens",), "needs the chat endpoint; use shared-prefix for completions")
        longest = self.input_tokens.at(1 - 1e-9) if self.input_tokens else None
        if longest is not None and longest <= self.shared_tokens:
            raise FaultAt(
                ("input-tokens",),
                f"at most {longest}, but the shared parts alone are {self.shared_tokens}; ask for longer prompts",
            )
        return self

    @property
    def path(self) -> str:
        """The endpoint's path on the server."""
        return _PATHS[self.endpoint]

    @property
    def templated(self) -> bool:
        """Whether prompts are messages that the server puts into its chat template."""
        return self.endpoint != "completions"

    @property
    def shared_tokens(self) -> int:
        """Tokens at the start of every prompt that others of the class have too, by design."""
        return self.system_prompt_tokens + (self.shared_prefix.tokens if self.shared_prefix else 0)


class TraceSource(_Spec):
    """The kind of trace this workload replays; the file itself comes with --trace."""

    format: Literal["azure", "mooncake"]
    block_tokens: Tokens = Field(default=512, description="tokens that one of mooncake's hash_ids stands for")


class Grid(_Spec):
    """Points of a parameter grid, chosen as NAME:c16-i128-o256; the one class is the pattern of every point."""

    concurrency: tuple[Annotated[int, Field(ge=1, strict=True)], ...] = Field(min_length=1)
    input_tokens: tuple[Tokens, ...] = Field(min_length=1)
    output_tokens: tuple[Tokens, ...] = Field(min_length=1)

    def points(self) -> dict[str, tuple[int, int, int]]:
        """(concurrency, input, output) by the point's name, in order."""
        return {
            f"c{c}-i{i}-o{o}": (c, i, o)
            for c in self.concurrency
            for i in self.input_tokens
            for o in self.output_tokens
        }


class WarmUp(_Spec):
    """Traffic before the measured window; --warmup overrides it."""

    seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0


class Workload(_Spec):
    """A whole workload. `resolved()` is what run.json keeps of it."""

    name: Name
    description: str = ""
    classes: dict[Name, RequestClass] = Field(min_length=1)
    arrival: ArrivalSpec = ArrivalSpec()
    warm_up: WarmUp = WarmUp()
    slo: str | None = Field(default=None, description="objectives of every class that has none of its own")
    trace: TraceSource | None = None
    grid: Grid | None = None

    @field_validator("slo")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        return _checked_slo(value)

    @model_validator(mode="after")
    def _complete(self) -> Workload:
        origin = "trace" if self.trace else "grid" if self.grid else None
        if origin and len(self.classes) != 1:
            raise FaultAt(("classes",), f"a {origin} needs exactly one class, found {len(self.classes)}; keep one")
        if self.trace and self.grid:
            raise FaultAt(("grid",), "a workload has a trace or a grid, not both; leave out one")
        if self.arrival.kind == "trace" and not self.trace:
            raise FaultAt(("arrival", "kind"), "needs a trace; add 'trace: {format: azure}' or choose another kind")
        for name, item in self.classes.items():
            for field, length in (("input-tokens", item.input_tokens), ("output-tokens", item.output_tokens)):
                if origin and length is not None:
                    raise FaultAt(("classes", name, field), f"comes from the {origin}; leave it out")
                if not origin and length is None:
                    raise FaultAt(("classes", name), f"the key '{field}' is missing; add it")
            if self.trace and item.shared_tokens:
                field = "shared-prefix" if item.shared_prefix else "system-prompt-tokens"
                raise FaultAt(("classes", name, field), "a trace decides what is shared; leave it out")
        return self

    def resolved(self) -> dict[str, Any]:
        """The workload as JSON-able data with every default filled in."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def objectives(self, request_class: str) -> tuple[Objective, ...]:
        """What one class promises: its own SLO, else the workload's, else nothing."""
        return parse_objectives(self.classes[request_class].slo or self.slo or "", f"workload {self.name}: slo")

    def point(self, name: str) -> Workload:
        """The grid's point of that name as a workload of its own. Raises `BadInput` for an unknown one."""
        points = self.grid.points() if self.grid else {}
        if name not in points:
            choice = (
                f"choose one such as {self.name}:{next(iter(points))}" if points else "leave out the part after ':'"
            )
            raise BadInput(f"workload {self.name}: no grid point '{name}'", choice)
        concurrency, length_in, length_out = points[name]
        pattern = next(iter(self.classes.values()))
        filled = pattern.model_copy(
            update={"input_tokens": Fixed(tokens=length_in), "output_tokens": Fixed(tokens=length_out)}
        )
        return self.model_copy(
            update={
                "name": f"{self.name}-{name}",
                "description": f"{self.description} Here {length_in} in, {length_out} out, {concurrency} users.",
                "classes": {name: filled},
                "arrival": self.arrival.model_copy(update={"users": concurrency}),
                "grid": None,
            }
        )


def _checked_slo(value: str | None) -> str | None:
    if value is not None:
        try:
            parse_objectives(value, "slo")
        except BadInput as error:
            raise ValueError(str(error).removeprefix("slo: ")) from None
    return value
