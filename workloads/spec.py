"""The schema of a workload: one YAML file, every key checked, every default written here and in `request_class`.

Only what is sent and when; how it is sent, timed and judged belongs to other rooms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tailgate.exits import BadInput
from tailgate.objectives import Objective, parse_objectives
from tailgate.thresholds import parse_gate
from tailgate.yaml_file import FaultAt
from workloads.arrivals import ArrivalSpec
from workloads.lengths import Fixed, Tokens
from workloads.request_class import (
    Documents,
    Lora,
    Name,
    RequestClass,
    Sampling,
    SharedPrefix,
    Spec,
    Turns,
    checked_slo,
)

__all__ = [
    "Documents",
    "Grid",
    "Lora",
    "RequestClass",
    "Sampling",
    "SharedPrefix",
    "TraceLabels",
    "TraceSource",
    "Turns",
    "WarmUp",
    "Workload",
]


class TraceLabels(Spec):
    """What a timed trace calls its keys, where it differs from Mooncake's names (as vLLM's bench lets one say)."""

    timestamp: str = "timestamp"
    input_length: str = "input_length"
    output_length: str = "output_length"
    hash_ids: str = "hash_ids"


class TraceSource(Spec):
    """What this workload replays; the file may be named here, or with --trace."""

    format: Literal["azure", "burstgpt", "mooncake", "timed-trace", "sharegpt", "conversations", "prompts", "run"] = (
        Field(
            description="lengths and times: azure, burstgpt (CSV), mooncake, timed-trace (JSON Lines); texts: sharegpt "
            "(JSON), conversations, prompts (JSON Lines); run: a run directory of this suite"
        )
    )
    file: str | None = Field(default=None, description="the file, from this file's directory; --trace wins over it")
    block_tokens: Tokens | None = Field(
        default=None, description="tokens that one of the hash_ids stands for (mooncake 512, timed-trace 16)"
    )
    seconds_per_unit: Annotated[float, Field(gt=0, le=86_400)] = Field(
        default=1.0, description="what a timed trace's timestamps count in seconds; 0.001 for milliseconds"
    )
    labels: TraceLabels = TraceLabels()
    most_turns: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        default=None, description="turns sent of each conversation at most (texts only); 1 sends its first"
    )
    think_time: Annotated[float, Field(ge=0, le=86_400)] = Field(
        default=0.0, description="seconds between an answer and the next turn (texts only)"
    )
    repeat: bool = Field(default=False, description="begin again after the last row, instead of ending the run")

    @field_validator("file")
    @classmethod
    def _from_here(cls, value: str | None, info: ValidationInfo) -> str | None:
        directory = (info.context or {}).get("directory")
        return value if value is None or directory is None else str((Path(directory) / value).resolve())

    @model_validator(mode="after")
    def _of_the_format(self) -> TraceSource:
        for key, value, formats in (
            ("block-tokens", self.block_tokens, ("mooncake", "timed-trace")),
            ("seconds-per-unit", self.seconds_per_unit != 1.0, ("timed-trace",)),
            ("labels", self.labels != TraceLabels(), ("timed-trace",)),
            ("most-turns", self.most_turns, ("sharegpt", "conversations")),
            ("think-time", self.think_time, ("sharegpt", "conversations")),
        ):
            if value and self.format not in formats:
                raise FaultAt((key,), f"means nothing to the {self.format} format; leave it out")
        return self

    @property
    def block(self) -> int:
        """Tokens of a hashed block."""
        return self.block_tokens or (16 if self.format == "timed-trace" else 512)

    @property
    def timed(self) -> bool:
        """Whether its rows have times."""
        return self.format not in ("sharegpt", "conversations", "prompts")

    @property
    def textual(self) -> bool:
        """Whether its rows have texts of their own."""
        return self.format in ("sharegpt", "conversations", "prompts")


class Grid(Spec):
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


class WarmUp(Spec):
    """Traffic before the measured window; --warmup overrides it."""

    seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0


class Workload(Spec):
    """A whole workload. `resolved()` is what run.json keeps of it."""

    name: Name
    description: str = ""
    classes: dict[Name, RequestClass] = Field(min_length=1)
    arrival: ArrivalSpec = ArrivalSpec()
    warm_up: WarmUp = WarmUp()
    slo: str | None = Field(default=None, description="objectives of every class that has none of its own")
    gate: str | None = Field(
        default=None,
        description="thresholds a run must keep, such as ttft_p99<1s,throughput_drop<20%; --gate overrides",
    )
    trace: TraceSource | None = None
    grid: Grid | None = None

    @field_validator("slo")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        return checked_slo(value)

    @field_validator("gate")
    @classmethod
    def _readable_gate(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                parse_gate(value, "gate")
            except BadInput as error:
                raise ValueError(str(error).removeprefix("gate: ")) from None
        return value

    @model_validator(mode="after")
    def _complete(self) -> Workload:
        if self.trace and self.grid:
            raise FaultAt(("grid",), "a grid has no trace; leave one of the two out")
        if self.trace and self.trace.format == "run":
            return self  # the classes are the replayed run's
        origin = "trace" if self.trace else "grid" if self.grid else None
        if origin and len(self.classes) != 1:
            raise FaultAt(("classes",), f"a {origin} needs exactly one class, found {len(self.classes)}; keep one")
        if self.arrival.kind == "trace" and not self.trace:
            raise FaultAt(("arrival", "kind"), "needs a trace; add 'trace: {format: azure}' or choose another kind")
        if self.arrival.kind == "trace" and self.trace and not self.trace.timed:
            raise FaultAt(("arrival", "kind"), f"the {self.trace.format} format has no times; choose another kind")
        for name, item in self.classes.items():
            self._check_lengths(name, item, origin)
            for field, value in (
                ("shared-prefix", item.shared_prefix),
                ("documents", item.documents),
                ("system-prompt-tokens", item.system_prompt_tokens),
                ("turns", item.turns),
            ):
                if self.trace and value:
                    raise FaultAt(("classes", name, field), "a trace decides what is said and shared; leave it out")
        return self

    def _check_lengths(self, name: str, item: RequestClass, origin: str | None) -> None:
        for field, length in (("input-tokens", item.input_tokens), ("output-tokens", item.output_tokens)):
            # Texts without answers leave their length to the class.
            optional = self.trace is not None and self.trace.textual and field == "output-tokens"
            if origin and length is not None and not optional:
                raise FaultAt(("classes", name, field), f"comes from the {origin}; leave it out")
            if not origin and length is None:
                raise FaultAt(("classes", name), f"the key '{field}' is missing; add it")

    def resolved(self) -> dict[str, Any]:
        """The workload as JSON-able data with every default filled in."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def objectives(self, request_class: str) -> tuple[Objective, ...]:
        """What one class promises: its own SLO, else the workload's, else nothing."""
        return parse_objectives(self.classes[request_class].slo or self.slo or "", f"workload {self.name}: slo")

    @property
    def models(self) -> tuple[str, ...]:
        """Every model or adapter that some class names itself, sorted."""
        return tuple(sorted({name for item in self.classes.values() for name in item.models}))

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
