"""What a workload takes its requests from, and what must be learnt of the tokenizer for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tailgate.exits import BadInput
from workloads.sources import Source
from workloads.sources.mix import Mix
from workloads.sources.past_run import PastRun, Replay
from workloads.sources.trace import Trace, TraceFile, measured_characters, open_trace
from workloads.spec import RequestClass, Workload
from workloads.tokens import Calibration, Shape, TokenCounter, calibrate


def shape_of(item: RequestClass) -> Shape:
    """What the fixed part of the class's prompts depends on."""
    tools = json.dumps(item.tools, sort_keys=True) if item.tools else ""
    return Shape("chat" if item.templated else "completions", item.language, bool(item.system_prompt_tokens), tools)


def calibrate_for(workload: Workload, counter: TokenCounter | None, trace: Path | None = None) -> Calibration:
    """The calibration that this workload needs; `make_plan` takes it in place of a counter. `trace` as there."""
    source = workload.trace
    if source is not None and source.format == "run":
        past = PastRun(trace_path(workload, trace))
        return past.calibration or calibrate_for(past.workload, counter, past.trace)
    found = calibrate(counter, [shape_of(item) for item in workload.classes.values()])
    if source is None or not source.textual or counter is None:
        return found
    measured = measured_characters(open_trace(trace_path(workload, trace), source).sample, counter.count_text)
    if measured is None:
        return found
    return replace(found, characters_per_token=measured[0], characters_error=measured[1])


def trace_path(workload: Workload, trace: Path | None) -> Path:
    """The file that the workload replays: the one given, else its own. Raises `BadInput` where there is neither."""
    assert workload.trace is not None, "only asked for where there is one"
    if trace is None and workload.trace.file is None:
        raise BadInput(
            f"workload {workload.name} replays a trace ({workload.trace.format} format)",
            "give its file with --trace FILE",
        )
    return trace if trace is not None else Path(workload.trace.file or "")


def source_of(workload: Workload, seed: int, trace: Path | None, calibration: Calibration) -> Source:
    source = workload.trace
    if source is None:
        return Mix(workload, seed)
    path = trace_path(workload, trace)
    if source.format == "run":
        return replay_of(PastRun(path), calibration)
    name, item = next(iter(workload.classes.items()))
    return Trace(open_trace(path, source), name, item, calibration.characters_per_token)


def replay_of(past: PastRun, calibration: Calibration | None = None) -> Replay:
    """The past run's requests; the calibration only says how long answers to recorded texts are."""
    known = calibration or past.calibration or calibrate_for(past.workload, None, past.trace)
    return Replay(past, lambda run: source_of(run.workload, run.seed, run.trace, known))


def open_replayed(workload: Workload, trace: Path | None) -> TraceFile | Replay | None:
    """What the workload replays, checked from end to end; None where it replays nothing, or no file was named.

    Raises `BadInput` naming the file, and the line at fault. A process keeps what it has checked, so that workers that
    are forked from it need not check again.
    """
    source = workload.trace
    if source is None:
        if trace is not None:
            raise BadInput(f"workload {workload.name} takes no trace", "leave out --trace")
        return None
    if trace is None and source.file is None:
        return None
    path = trace_path(workload, trace)
    return replay_of(PastRun(path)) if source.format == "run" else open_trace(path, source)
