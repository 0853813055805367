"""The plan of a run: request i, its bytes and its time, as a pure function of (workload, seed, salt, i)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailgate.exits import BadInput
from tailgate.objectives import Objective
from workloads.arrivals import ArrivalSpec
from workloads.bodies import BodyOptions, demanded_tokens, encode_body
from workloads.prompts import Prompt, Prompter
from workloads.schedule import Schedule, make_schedule
from workloads.sources import Design, Source
from workloads.sources.mix import Mix
from workloads.sources.trace import Trace, open_trace
from workloads.spec import RequestClass, Workload
from workloads.tokens import Calibration, Shape, TokenCounter, calibrate

_LEAST = 1e-9  # the share of requests that a note about the rarest lengths may leave out


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request, ready to be sent. Token counts are designed ones; `shared_tokens` of the prompt's are shared.

    `demanded_tokens` is the fewest that a whole answer may have, by what the body forces; 0 where it forces nothing.
    """

    index: int
    request_class: str
    endpoint: str
    body: bytes
    prompt_tokens: int | None
    output_tokens: int
    scheduled_s: float | None
    slo: tuple[Objective, ...]
    shared_tokens: int = 0
    demanded_tokens: int = 0


class Plan:
    """Every request of a run. Holds no request: each is made when asked for, by whichever worker needs it."""

    def __init__(
        self,
        workload: Workload,
        source: Source,
        prompter: Prompter,
        arrival: ArrivalSpec,
        options: BodyOptions,
        *,
        seed: int,
        time_scale: float = 1.0,
        max_model_len: int | None = None,
    ) -> None:
        self.workload = workload
        self.arrival = arrival
        self.calibration = prompter.calibration
        self._source = source
        self._prompter = prompter
        self._options = options
        self.schedule: Schedule | None = make_schedule(arrival, seed, source, time_scale) if arrival.open else None
        """When requests are due; None in a closed loop. A change of rate moves those that are yet to come."""
        self._max_model_len = max_model_len
        self._shapes = {name: shape_of(item) for name, item in workload.classes.items()}
        self._objectives = {name: workload.objectives(name) for name in workload.classes}
        self.notes = self._make_notes()

    @property
    def length(self) -> int | None:
        """How many requests there are: a trace's rows; None where there is no end."""
        return self._source.length

    def arrival_s(self, index: int) -> float | None:
        """Seconds after the start at which request `index` is due, infinity where the rate rests before it; None in a
        closed loop. IndexError past the end."""
        return None if self.schedule is None else self.schedule.at(index)

    def request(self, index: int) -> PlannedRequest:
        """Request `index` with its bytes. IndexError past the end of a finite plan."""
        design = self._clipped(self._source.design(index))
        item = self.workload.classes[design.request_class]
        prompt, shared_tokens = self._prompt(index, design, item)
        return PlannedRequest(
            index=index,
            request_class=design.request_class,
            endpoint=item.path,
            body=encode_body(item, prompt, design.output_tokens, self._options),
            prompt_tokens=prompt.tokens,
            output_tokens=design.output_tokens,
            scheduled_s=self.arrival_s(index),
            slo=self._objectives[design.request_class],
            shared_tokens=shared_tokens,
            demanded_tokens=demanded_tokens(item, design.output_tokens, self._options),
        )

    def bodies_sha256(self, n: int = 1000) -> str:
        """A hash over the first `n` bodies (all, if there are fewer): equal where two runs send the same."""
        total = hashlib.sha256()
        for index in range(n if self.length is None else min(n, self.length)):
            body = self.request(index).body
            total.update(len(body).to_bytes(8, "little"))
            total.update(body)
        return total.hexdigest()

    def _prompt(self, index: int, design: Design, item: RequestClass) -> tuple[Prompt, int]:
        shape = self._shapes[design.request_class]
        if design.blocks is not None:
            assert self.workload.trace is not None, "only traces have blocks"
            size = self.workload.trace.block_tokens
            return self._prompter.block_prompt(shape, design.input_tokens, design.blocks, size), 0
        shared = None
        if item.shared_prefix and design.group is not None:
            shared = (design.group, item.shared_prefix.tokens)
        prompt = self._prompter.prompt(
            shape,
            design.input_tokens,
            index,
            request_class=design.request_class,
            system_tokens=item.system_prompt_tokens,
            shared=shared,
        )
        return prompt, item.shared_tokens

    def _clipped(self, design: Design) -> Design:
        limit = self._max_model_len
        if limit is None or design.input_tokens + design.output_tokens <= limit:
            return design
        output = min(design.output_tokens, max(limit // 2, 1))
        return design._replace(input_tokens=limit - output, output_tokens=output)

    def _make_notes(self) -> tuple[str, ...]:
        """What the person who runs this should know of the plan, a sentence each."""
        notes = [self.calibration.note]
        for name, item in self.workload.classes.items():
            floor = self._prompter.base(self._shapes[name]) + item.shared_tokens + 1
            shortest, longest = self._extremes(item)
            if shortest < floor:
                notes.append(
                    f"class {name}: prompts meant to be shorter than {floor} tokens are sent with {floor}, "
                    "which the chat template and the shared text need"
                )
            if self._max_model_len is not None and longest > self._max_model_len:
                notes.append(
                    f"class {name}: requests of up to {longest:,} tokens, prompt and answer, are cut to the "
                    f"{self._max_model_len:,} that the model takes"
                )
        if isinstance(self._source, Trace):
            notes.extend(self._source.notes)
        return tuple(notes)

    def _extremes(self, item: RequestClass) -> tuple[int, int]:
        """The shortest prompt, and the most tokens of prompt and answer together, that the class can come to."""
        if isinstance(self._source, Trace):
            return self._source.shortest_input, self._source.longest
        assert item.input_tokens is not None, "the schema asks for both lengths where no trace gives them"
        assert item.output_tokens is not None, "as above"
        return item.input_tokens.at(_LEAST), item.input_tokens.at(1 - _LEAST) + item.output_tokens.at(1 - _LEAST)


def shape_of(item: RequestClass) -> Shape:
    """What the fixed part of the class's prompts depends on."""
    return Shape("chat" if item.templated else "completions", item.language, bool(item.system_prompt_tokens))


def calibrate_for(workload: Workload, counter: TokenCounter | None) -> Calibration:
    """The calibration that this workload needs; `make_plan` takes it in place of a counter."""
    return calibrate(counter, [shape_of(item) for item in workload.classes.values()])


def make_plan(
    workload: Workload,
    *,
    seed: int,
    model: str,
    counter: TokenCounter | Calibration | None,
    salt: str = "",
    trace: Path | None = None,
    time_scale: float = 1.0,
    arrival: ArrivalSpec | None = None,
    extra_body: dict[str, Any] | None = None,
    stream: bool = True,
    usage_per_chunk: bool = False,
    max_model_len: int | None = None,
) -> Plan:
    """The plan of a run; raises `BadInput` where the parts do not go together.

    `counter` asks the tokenizer now; a `Calibration` made elsewhere saves that; None counts in words. `time_scale`
    10 replays a trace ten times as fast. `max_model_len` cuts requests to that many tokens; left out, none is cut.
    """
    arrival = arrival or workload.arrival
    if workload.grid:
        points = list(workload.grid.points())
        raise BadInput(
            f"workload {workload.name} is a grid of {len(points)} points",
            f"choose one such as {workload.name}:{points[0]}",
        )
    if workload.trace and trace is None:
        raise BadInput(
            f"workload {workload.name} replays a trace ({workload.trace.format} format)",
            "give its file with --trace FILE",
        )
    if trace is not None and not workload.trace:
        raise BadInput(
            f"workload {workload.name} takes no trace",
            "leave out --trace, or choose azure-code or mooncake-conversation",
        )
    if arrival.kind == "trace" and not workload.trace:
        raise BadInput(f"workload {workload.name} has no trace to take times from", "choose another --arrival")
    if time_scale <= 0:
        raise BadInput(f"--time-scale: {time_scale:g} is not a pace", "give a number above 0; 10 is ten times as fast")
    source: Source
    if workload.trace and trace is not None:
        source = open_trace(trace, workload.trace.format, next(iter(workload.classes)))
    else:
        source = Mix(workload, seed)
    calibration = counter if isinstance(counter, Calibration) else calibrate_for(workload, counter)
    return Plan(
        workload,
        source,
        Prompter(calibration, seed, salt),
        arrival,
        BodyOptions(model, stream, usage_per_chunk, dict(extra_body or {})),
        seed=seed,
        time_scale=time_scale,
        max_model_len=max_model_len,
    )
