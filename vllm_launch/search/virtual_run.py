"""A load test in virtual time: a workload's requests on the embedded engine, as a run like any other.

Seconds become milliseconds, so that hundreds of configs and rates can be screened before one is measured. What the
client, HTTP and the network add is not in it but for the engine's own overhead terms; always simulated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exporters.columns import Columns
from exporters.record import RequestRecord
from exporters.run import Run
from tailgate.exits import BadInput
from vllm_launch.simulated.settings import EngineSettings
from vllm_launch.simulated.virtual import Ask, Served, closed_for, open_loop
from workloads import ArrivalSpec, Workload
from workloads.schedule import make_schedule
from workloads.sources import Design
from workloads.sources.mix import Mix

# Where virtual time begins in the records: a moment of no meaning, the same in every run.
START_NS = 1_790_000_000_000_000_000


@dataclass(frozen=True)
class VirtualLoad:
    """What is sent: a closed loop of `users`, or a Poisson schedule of `request_rate` requests/s. Times in seconds."""

    users: int | None
    request_rate: float | None
    run_time_s: float
    warm_up_s: float
    seed: int


def virtual_run(settings: EngineSettings, workload: Workload, load: VirtualLoad, *, slo: str | None, label: str) -> Run:
    """The run that this load would be. Raises `BadInput` for a workload that only a file's trace describes."""
    if workload.trace or workload.grid:
        raise BadInput(
            f"workload {workload.name} replays a trace or is a grid, which virtual time does not do",
            "name a workload of classes",
        )
    asks = _asks(settings, workload, load.seed)
    classes: dict[int, str] = {}

    def next_ask(arrival_s: float = 0.0) -> Ask:
        name, ask = next(asks)
        ask = Ask(ask.prompt_tokens, ask.output_tokens, arrival_s, ask.block_hashes)
        classes[id(ask)] = name
        return ask

    if load.users is not None:
        outcome = closed_for(settings, load.users, load.run_time_s, lambda _: next_ask(), keep_tokens=True)
    else:
        spec = ArrivalSpec(kind="poisson", request_rate=load.request_rate)
        schedule = make_schedule(spec, load.seed)
        due = itertools.takewhile(lambda at: at < load.run_time_s, (schedule.at(i) for i in itertools.count()))
        outcome = open_loop(settings, [next_ask(at) for at in due], keep_tokens=True)
    served = sorted(outcome.served, key=lambda request: request.arrival_s)
    scheduled = load.request_rate is not None
    records = (_record(i, request, classes[id(request.ask)], load, scheduled) for i, request in enumerate(served))
    return Run(Path(label), _meta(settings, workload, load, slo, label), Columns.of(records))


def _asks(settings: EngineSettings, workload: Workload, seed: int) -> Iterator[tuple[str, Ask]]:
    source = Mix(workload, seed)
    longest = settings.limits.max_model_len
    for index in itertools.count():
        design = source.design(index)
        prompt, output = design.input_tokens, design.output_tokens
        if prompt is None or design.turns > 1:
            raise BadInput(
                f"workload {workload.name}, class {design.request_class}: virtual time does no texts and conversations",
                "name a workload of classes with lengths",
            )
        if prompt + output > longest:
            output = min(output, max(longest // 2, 1))
            prompt = longest - output
        yield design.request_class, Ask(prompt, output, block_hashes=_shared_blocks(settings, workload, design, prompt))


def _shared_blocks(settings: EngineSettings, workload: Workload, design: Design, prompt: int) -> tuple[int, ...]:
    """What a prompt's first blocks are known by, as far as it shares them with others of its group."""
    item = workload.classes[design.request_class]
    if item.shared_prefix is None or design.group is None:
        return ()
    blocks = min(item.shared_prefix.tokens, prompt) // settings.block_size
    return tuple(hash((design.request_class, design.group, i)) for i in range(blocks))


def _record(index: int, served: Served, request_class: str, load: VirtualLoad, scheduled: bool) -> RequestRecord:
    assert served.token_s is not None
    sent = START_NS + round(served.arrival_s * 1e9)
    events = START_NS + np.round(np.array(served.token_s) * 1e9).astype(np.int64)
    return RequestRecord(
        index=index,
        worker="virtual",
        request_class=request_class,
        endpoint="/v1/chat/completions",
        scheduled_ns=sent if scheduled else None,
        sent_ns=sent,
        first_ns=int(events[0]),
        last_ns=int(events[-1]),
        end_ns=int(events[-1]),
        gaps_ns=np.diff(events).tolist(),
        events=events.size,
        prompt_tokens=served.ask.prompt_tokens,
        output_tokens=events.size,
        cached_tokens=served.cached_tokens,
        tokens_source="usage",
        outcome="ok",
        clock="wire",
        in_window=served.arrival_s >= load.warm_up_s,
    )


def _meta(
    settings: EngineSettings, workload: Workload, load: VirtualLoad, slo: str | None, label: str
) -> dict[str, Any]:
    start, end = (START_NS + round(s * 1e9) for s in (load.warm_up_s, load.run_time_s))
    kind = "closed" if load.users is not None else "poisson"
    return {
        "workload": workload.name,
        "label": label,
        "model": settings.model.name,
        "seed": load.seed,
        "arrival": {"kind": kind, "rate": load.request_rate},
        "users": load.users,
        "slo": slo,
        "clock": "wire",
        "simulated": True,
        "virtual_time": True,
        "engine": {"name": "tailgate-simulated", "simulated": True},
        "window": {"start_ns": start, "end_ns": end},
    }
