"""A workload as text for people: its classes, its lengths drawn as small histograms, the load it offers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from workloads.arrivals import ArrivalSpec
from workloads.lengths import Length
from workloads.plan import Plan, make_plan
from workloads.sources.past_run import Replay
from workloads.sources.trace import Trace, TraceFile
from workloads.spec import RequestClass, Turns, Workload

_BARS = " ▁▂▃▄▅▆▇█"
_COLUMNS = 32
_STEPS = 2000
_MOST_ARRIVALS = 200_000


def describe(workload: Workload) -> dict[str, Any]:
    """The figures that `render` shows, JSON-able: shares, expected lengths and offered tokens per second."""
    total = sum(item.weight for item in workload.classes.values())
    classes: dict[str, Any] = {}
    means = {"input": 0.0, "output": 0.0}
    for name, item in workload.classes.items():
        share = item.weight / total
        entry: dict[str, Any] = {"share": share, "endpoint": item.path, "shared_tokens": item.shared_tokens}
        if item.turns:
            entry["turns"] = _figures(item.turns.count)
        for side, length in (("input", item.input_tokens), ("output", item.output_tokens)):
            if length is not None:
                entry[f"{side}_tokens"] = _figures(length)
                means[side] += share * entry[f"{side}_tokens"]["mean"]
        classes[name] = entry
    facts: dict[str, Any] = {"workload": workload.resolved(), "classes": classes}
    if workload.grid:
        facts["points"] = list(workload.grid.points())
    if means["input"]:
        facts["mean_input_tokens"], facts["mean_output_tokens"] = means["input"], means["output"]
        rate = None if workload.arrival.stages else workload.arrival.request_rate
        if rate is not None:
            facts["offered"] = {
                "requests_per_s": rate,
                "input_tokens_per_s": rate * means["input"],
                "output_tokens_per_s": rate * means["output"],
            }
    return facts


def render(workload: Workload) -> str:
    """Several lines of text, none longer than a terminal's 100 columns but for the description."""
    facts = describe(workload)
    lines = [workload.name, *([f"  {workload.description}"] if workload.description else []), ""]
    lines.append(f"  arrivals   {workload.arrival.text()}")
    if workload.warm_up.seconds:
        lines.append(f"  warm-up    {workload.warm_up.seconds:g} s")
    if workload.trace:
        lines.append(f"  lengths    from a trace in the {workload.trace.format} format (--trace FILE)")
    if workload.slo:
        lines.append(f"  objectives {workload.slo}")
    for name, item in workload.classes.items():
        lines += ["", f"  {name}  {facts['classes'][name]['share']:.0%} of requests, {_kind(item)}"]
        if item.slo:
            lines.append(f"    objectives {item.slo}")
        for side, length in (("input", item.input_tokens), ("output", item.output_tokens)):
            if length is not None:
                lines.append(f"    {side + ' tokens':13} {length.text()}")
                lines.append(f"    {'':13} {_picture(length)}")
        if item.turns:
            lines += _turn_lines(item.turns)
    if workload.grid:
        lines += ["", f"  {len(facts['points'])} points, chosen as {workload.name}:NAME:"]
        lines += _wrapped(facts["points"])
    if "mean_input_tokens" in facts:
        lines += [
            "",
            f"  per request {facts['mean_input_tokens']:,.0f} tokens in, {facts['mean_output_tokens']:,.0f} out",
        ]
    if "offered" in facts:
        offered = facts["offered"]
        talks = any(item.turns for item in workload.classes.values())
        lines.append(
            f"  offered     {offered['requests_per_s']:g} {'first requests' if talks else 'requests'}/s, "
            f"{offered['input_tokens_per_s']:,.0f} tokens/s in, "
            f"{offered['output_tokens_per_s']:,.0f} out"
        )
    return "\n".join(lines)


def describe_trace(file: TraceFile | Replay, item: RequestClass) -> dict[str, Any]:
    """Rows, span and lengths of what is replayed, and requests per equal slice of its span."""
    if isinstance(file, Replay):
        offsets = [file.design(index).offset_s or 0.0 for index in range(file.length)]
        return _over_span(offsets, file.span_s)
    lengths_in, lengths_out, offsets, turns = [], [], [], []
    trace = Trace(file, "", item)
    for index in range(file.length):
        design = trace.design(index)
        if design.input_tokens is not None:
            lengths_in.append(design.input_tokens)
        lengths_out.append(design.output_tokens)
        turns.append(design.turns)
        offsets.append(design.offset_s or 0.0)
    facts: dict[str, Any] = _over_span(offsets, file.span_s) if file.source.timed else {"rows": file.length}
    if file.source.textual:
        facts["turns"] = _sample_figures(turns)
    for side, lengths in (("input", lengths_in), ("output", lengths_out)):
        if lengths:
            facts[f"{side}_tokens"] = _sample_figures(lengths)
    facts["notes"] = list(file.notes)
    return facts


def describe_arrivals(workload: Workload, seed: int, seconds: float | None) -> dict[str, Any]:
    """Requests due per slice of the first `seconds` (None: of a minute, all stages, or a whole wave)."""
    seconds = seconds or _span_of(workload.arrival)
    plan = make_plan(workload, seed=seed, model="", counter=None)
    slices = [0] * _COLUMNS
    for index in itertools.count() if plan.length is None else range(plan.length):
        due_s = plan.arrival_s(index)
        if due_s is None or due_s >= seconds or index >= _MOST_ARRIVALS:
            break
        slices[int(due_s / seconds * _COLUMNS)] += 1
    return {"seconds": seconds, "seed": seed, "requests": sum(slices), "requests_by_slice": slices}


def _span_of(arrival: ArrivalSpec) -> float:
    if arrival.stages:
        return max(1.1 * sum(stage.seconds for stage in arrival.stages), 1.0)
    return arrival.wave.period if arrival.wave else 60.0


def render_arrivals(facts: dict[str, Any]) -> str:
    """`describe_arrivals` as text."""
    most = max(facts["requests_by_slice"]) * _COLUMNS / facts["seconds"]
    return (
        f"  arrivals    0 {_sparkline(facts['requests_by_slice'])} {facts['seconds']:g} s   "
        f"{facts['requests']:,} requests, up to {most:,.3g}/s (seed {facts['seed']})"
    )


def render_trace(facts: dict[str, Any]) -> str:
    """`describe_trace` as text."""
    if "span_s" in facts:
        rate = f", {facts['requests_per_s']:.2f} requests/s" if facts["requests_per_s"] else ""
        lines = ["", f"  trace      {facts['rows']:,} requests over {facts['span_s']:,.1f} s{rate}"]
        lines.append(f"  over time  {_sparkline(facts['requests_by_slice'])}")
    else:
        lines = ["", f"  texts      {facts['rows']:,} conversations"]
    for name, key in (("turns", "turns"), ("input tokens", "input_tokens"), ("output tokens", "output_tokens")):
        if figures := facts.get(key):
            lines.append(
                f"  {name:13} mean {figures['mean']:,.1f}, p50 {figures['p50']:,}, p99 {figures['p99']:,}, "
                f"max {figures['max']:,}"
            )
    return "\n".join([*lines, *(f"  note: {note}" for note in facts.get("notes", ()))])


def _over_span(offsets: Sequence[float], span_s: float) -> dict[str, Any]:
    slices = [0] * _COLUMNS
    for offset in offsets:
        share = offset / span_s if span_s else 0.0
        slices[min(int(share * _COLUMNS), _COLUMNS - 1)] += 1
    rate = len(offsets) / span_s if span_s else None
    return {"rows": len(offsets), "span_s": span_s, "requests_per_s": rate, "requests_by_slice": slices}


def render_request(plan: Plan, index: int) -> str:
    """One planned request in two lines: what it is, and how its body begins and ends."""
    request = plan.request(index)
    due = "" if request.scheduled_s is None else f", due at {request.scheduled_s:.3f} s"
    body = request.body.decode("utf-8")
    shown = body if len(body) <= 400 else f"{body[:240]} … {body[-140:]}"
    turns = f", first of {request.turns} turns" if request.turns > 1 else ""
    length = "recorded text" if request.prompt_tokens is None else f"{request.prompt_tokens} tokens"
    return (
        f"#{index} {request.request_class} {request.endpoint}: {length} in, "
        f"{request.output_tokens} out{turns}{due}, {len(request.body):,} bytes\n  {shown}"
    )


def _turn_lines(turns: Turns) -> list[str]:
    parts = [("turns", turns.count), ("adds, in", turns.input_tokens), ("answers", turns.output_tokens)]
    lines = []
    for name, length in parts:
        if length is not None:
            lines += [f"    {name:13} {length.text()}", f"    {'':13} {_picture(length)}"]
    return [*lines, f"    {'think time':13} {turns.think_time.text()}"]


def _kind(item: RequestClass) -> str:
    parts = [item.endpoint, {"en": "English", "zh": "Chinese", "mixed": "English and Chinese"}[item.language]]
    if item.system_prompt_tokens:
        parts.append(f"system prompt of {item.system_prompt_tokens}")
    if item.shared_prefix:
        shared = item.shared_prefix
        parts.append(
            f"{shared.groups} shared prefixes of {shared.tokens}" + (f", Zipf {shared.zipf:g}" * (shared.zipf > 0))
        )
    if item.documents:
        found = item.documents
        parts.append(f"{found.per_request} of {found.count:,} documents of {found.tokens}, Zipf {found.zipf:g}")
    if item.turns:
        parts.append("conversations")
    if item.tools:
        parts.append(f"{len(item.tools)} tool{'s' if len(item.tools) > 1 else ''}")
    if item.response_format:
        parts.append(f"structured output ({item.response_format['type']})")
    if item.lora:
        parts.append(f"{len(item.lora.models)} LoRA adapters")
    if item.priority is not None:
        parts.append(f"priority {item.priority}")
    if item.model:
        parts.append(f"model {item.model}")
    return ", ".join(parts)


def _quantiles(length: Length) -> list[int]:
    return [length.at((i + 0.5) / _STEPS) for i in range(_STEPS)]


def _figures(length: Length) -> dict[str, float]:
    return {
        "mean": length.mean(),
        "p1": length.at(0.01),
        "p50": length.at(0.5),
        "p95": length.at(0.95),
        "p99": length.at(0.99),
    }


def _sample_figures(values: Sequence[int]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "mean": sum(ordered) / len(ordered),
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[math.ceil(0.99 * len(ordered)) - 1],
        "min": ordered[0],
        "max": ordered[-1],
    }


def _picture(length: Length) -> str:
    """A histogram between the 0.1st and the 99.9th percentile."""
    low, high = length.at(0.001), length.at(0.999)
    if low == high:
        return f"always {low:,}"
    columns = min(_COLUMNS, high - low + 1)
    counts = [0] * columns
    for value in _quantiles(length):
        if low <= value <= high:
            counts[(value - low) * columns // (high - low + 1)] += 1
    return f"{low:,} {_sparkline(counts)} {high:,}   mean {length.mean():,.0f}, p95 {length.at(0.95):,}"


def _sparkline(counts: Sequence[int]) -> str:
    top = max(counts) or 1
    return "".join(_BARS[math.ceil(count / top * (len(_BARS) - 1))] for count in counts)


def _wrapped(names: Iterable[str], per_line: int = 4) -> list[str]:
    listed = list(names)
    return [
        "    " + "  ".join(f"{name:16}" for name in listed[i : i + per_line]).rstrip()
        for i in range(0, len(listed), per_line)
    ]
