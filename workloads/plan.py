"""The plan of a run: request i, its bytes and its time, as a pure function of (workload, seed, salt, i)."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tailgate.exits import BadInput
from tailgate.objectives import Objective
from workloads.arrivals import ArrivalSpec
from workloads.bodies import Answer, BodyOptions, demanded_tokens, encode_body, next_body
from workloads.lengths import Fixed
from workloads.prompts import Prompt, Prompter
from workloads.reuse import PrefixCache, Reuse
from workloads.schedule import Schedule, make_schedule
from workloads.sources import Design, Source
from workloads.sources.choice import calibrate_for, shape_of, source_of, trace_path
from workloads.sources.past_run import PastRun, Replay
from workloads.sources.trace import CHARACTERS_PER_TOKEN, Trace
from workloads.spec import RequestClass, Workload
from workloads.tokens import Calibration, TokenCounter

_MOST_HASHED = 64 * 2**20
_LEAST = 1e-9  # the share of requests that a note about the rarest lengths may leave out


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request, ready to be sent. Token counts are designed ones; `shared_tokens` of the prompt's are shared.

    `demanded_tokens` is the fewest that a whole answer may have, by what the body forces; 0 where it forces nothing.
    `turn` of `turns` of a conversation, counted from 0; those after the first have the first one's index.
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
    turn: int = 0
    turns: int = 1

    @property
    def ends(self) -> bool:
        """Whether nothing of its conversation follows."""
        return self.turn + 1 >= self.turns


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
            body=encode_body(item, prompt, design.output_tokens, self._options, design.model),
            prompt_tokens=prompt.tokens,
            output_tokens=design.output_tokens,
            scheduled_s=self.arrival_s(index),
            slo=self._objectives[design.request_class],
            shared_tokens=shared_tokens,
            demanded_tokens=demanded_tokens(item, design.output_tokens, self._options),
            turns=design.turns,
        )

    def next_turn(self, request: PlannedRequest, answer: Answer) -> tuple[float, PlannedRequest]:
        """(seconds that the user thinks, the request) of the turn after `request`, which must not end its conversation.

        Its whole prompt is not designed, for the answer is part of it: `prompt_tokens` is None.
        """
        turn = request.turn + 1
        design = self._source.turn(request.index, turn)
        item = self.workload.classes[request.request_class]
        text = design.text
        if text is None:
            number = self._source.design(request.index).text_number
            shape = self._shapes[request.request_class]
            text = self._prompter.turn(shape, design.input_tokens, request.index if number is None else number, turn)
        elif not item.templated:
            text = f"\n{text}\n"
        body = next_body(item, request.body, answer, text, design.role, design.output_tokens, self._options)
        planned = replace(
            request,
            body=body,
            prompt_tokens=None,
            output_tokens=design.output_tokens,
            scheduled_s=None,
            demanded_tokens=demanded_tokens(item, design.output_tokens, self._options),
            turn=turn,
        )
        return design.think_s, planned

    def bodies_sha256(self, n: int = 1000) -> str:
        """A hash over the first `n` bodies (all, if there are fewer): equal where two runs send the same.

        Fewer too where they are long: it ends with the body that makes 64 MiB full.
        """
        total, size = hashlib.sha256(), 0
        for index in range(n if self.length is None else min(n, self.length)):
            if size >= _MOST_HASHED:
                break
            body = self.request(index).body
            size += len(body)
            total.update(len(body).to_bytes(8, "little"))
            total.update(body)
        return total.hexdigest()

    def designed_reuse(self, turns: Mapping[int, int]) -> Reuse | None:
        """What an engine's prefix cache can find of prompts, by design; None where nobody counted their tokens.

        `turns` says how many turns were sent of each request. Later ones are taken to follow the first at once.
        """
        cache = PrefixCache()
        for index in sorted(turns):
            design = self._clipped(self._source.design(index))
            if design.input_tokens is None:
                return None
            cache.add(self._shared_parts(design), design.input_tokens)
            whole = design.input_tokens + design.output_tokens
            for turn in range(1, turns[index]):
                follows = self._source.turn(index, turn)
                prompt = whole + follows.input_tokens
                if follows.text is not None:
                    return None
                cache.add_known(whole, prompt)
                whole = prompt + follows.output_tokens
        return cache.reuse

    def _shared_parts(self, design: Design) -> list[tuple[Hashable, int]]:
        """What a prompt is made of, as far as others may begin with the same, as `PrefixCache` takes it."""
        name, item = design.request_class, self.workload.classes[design.request_class]
        shape = self._shapes[name]
        parts: list[tuple[Hashable, int]] = [(f"{shape.key} {design.model or item.model}", self._prompter.base(shape))]
        if item.system_prompt_tokens:
            parts.append((f"system {name}", item.system_prompt_tokens))
        if item.shared_prefix and design.group is not None:
            parts.append((f"group {name} {design.group}", item.shared_prefix.tokens))
        if item.documents:
            parts += [(f"document {name} {number}", item.documents.tokens) for number in design.documents]
        parts += [(block, design.block_tokens) for block in design.blocks or ()]
        if design.text_number is not None:
            parts.append((f"text {design.text_number}", design.input_tokens or 0))
        return parts

    def _prompt(self, index: int, design: Design, item: RequestClass) -> tuple[Prompt, int]:
        shape = self._shapes[design.request_class]
        if design.messages is not None:
            if item.templated:
                return Prompt(None, messages=design.messages), 0
            return Prompt(None, text="\n".join(str(message["content"]) for message in design.messages)), 0
        assert design.input_tokens is not None, "only recorded texts were never counted"
        number = index if design.text_number is None else design.text_number
        if design.blocks is not None:
            blocks, size = design.blocks, design.block_tokens
            return self._prompter.block_prompt(shape, design.input_tokens, number, blocks, size), 0
        shared = None
        if item.shared_prefix and design.group is not None:
            shared = (design.group, item.shared_prefix.tokens)
        prompt = self._prompter.prompt(
            shape,
            design.input_tokens,
            number,
            request_class=design.request_class,
            system_tokens=item.system_prompt_tokens,
            shared=shared,
            documents=design.documents,
            document_tokens=item.documents.tokens if item.documents else 0,
        )
        return prompt, item.shared_tokens

    def _clipped(self, design: Design) -> Design:
        limit = self._max_model_len
        if limit is None or design.input_tokens is None or design.input_tokens + design.output_tokens <= limit:
            return design
        output = min(design.output_tokens, max(limit // 2, 1))
        return design._replace(input_tokens=limit - output, output_tokens=output)

    def _make_notes(self) -> tuple[str, ...]:
        """What the person who runs this should know of the plan, a sentence each."""
        notes = [self._lengths_note()]
        for name, item in self.workload.classes.items():
            floor = self._prompter.base(self._shapes[name]) + item.shared_tokens + item.document_tokens + 1
            shortest, longest = self._extremes(item)
            if shortest is not None and shortest < floor:
                notes.append(
                    f"class {name}: prompts meant to be shorter than {floor} tokens are sent with {floor}, "
                    "which the chat template and the shared text need"
                )
            if self._max_model_len is not None and longest is not None and longest > self._max_model_len:
                notes.append(
                    f"class {name}: requests of up to {longest:,} tokens, prompt and answer, are cut to the "
                    f"{self._max_model_len:,} that the model takes"
                )
            if item.turns and self._max_model_len is not None:
                self._note_long_conversations(notes, name, item)
        if isinstance(self._source, Trace | Replay):
            notes.extend(self._source.notes)
        return tuple(notes)

    def _note_long_conversations(self, notes: list[str], name: str, item: RequestClass) -> None:
        turns, _, longest = item.turns, *self._extremes(item)
        if turns is None or longest is None:
            return
        later = (turns.output_tokens or item.output_tokens or Fixed(tokens=1)).at(1 - _LEAST)
        whole = longest + (turns.count.at(1 - _LEAST) - 1) * (turns.input_tokens.at(1 - _LEAST) + later)
        if whole > (self._max_model_len or whole):
            notes.append(
                f"class {name}: conversations of up to {whole:,} tokens; one that outgrows the {self._max_model_len:,} "
                "that the model takes ends there"
            )

    def _lengths_note(self) -> str:
        """How far prompt and answer lengths can be trusted."""
        trace = self.workload.trace
        if trace is None or not trace.textual:
            return self.calibration.note
        told, error = self.calibration.characters_per_token, self.calibration.characters_error
        if told is None:
            return f"the texts are sent as they are; answers ask for one token per {CHARACTERS_PER_TOKEN:g} characters"
        return (
            f"the texts are sent as they are; answers ask for one token per {told:.2f} characters, as measured on a "
            f"sample of them (single texts differ by up to {error or 0:.0%})"
        )

    def _extremes(self, item: RequestClass) -> tuple[int | None, int | None]:
        """The shortest prompt, and the most tokens of prompt and answer together, that the class can come to.

        None where nobody counted.
        """
        if isinstance(self._source, Trace):
            return self._source.file.shortest_input, self._source.file.longest
        if item.input_tokens is None or item.output_tokens is None:
            return None, None
        return item.input_tokens.at(_LEAST), item.input_tokens.at(1 - _LEAST) + item.output_tokens.at(1 - _LEAST)


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
    if trace is not None and not workload.trace:
        raise BadInput(
            f"workload {workload.name} takes no trace",
            "leave out --trace, or choose azure-code or mooncake-conversation",
        )
    if arrival.kind == "trace" and not (workload.trace and workload.trace.timed):
        raise BadInput(f"workload {workload.name} has no trace to take times from", "choose another --arrival")
    if time_scale <= 0:
        raise BadInput(f"--time-scale: {time_scale:g} is not a pace", "give a number above 0; 10 is ten times as fast")
    calibration = counter if isinstance(counter, Calibration) else calibrate_for(workload, counter, trace)
    source = source_of(workload, seed, trace, calibration)
    if workload.trace and workload.trace.format == "run":
        past = PastRun(trace_path(workload, trace))
        seed, salt, extra_body = past.seed, salt or past.salt, {**past.extra_body, **(extra_body or {})}
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
