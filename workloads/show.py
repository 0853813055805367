"""A workload as text for people: its classes, its lengths drawn as small histograms, the load it offers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from workloads.lengths import Length
from workloads.plan import Plan
from workloads.sources.trace import Trace
from workloads.spec import RequestClass, Workload

_BARS = " ▁▂▃▄▅▆▇█"
_COLUMNS = 32
_STEPS = 2000


def describe(workload: Workload) -> dict[str, Any]:
    """The figures that `render` shows, JSON-able: shares, expected lengths and offered tokens per second."""
    total = sum(item.weight for item in workload.classes.values())
    classes: dict[str, Any] = {}
    means = {"input": 0.0, "output": 0.0}
    for name, item in workload.classes.items():
        share = item.weight / total
        entry: dict[str, Any] = {"share": share, "endpoint": item.path, "shared_tokens": item.shared_tokens}
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
        rate = workload.arrival.request_rate
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
        lines.append(
            f"  offered     {offered['requests_per_s']:g} requests/s, "
            f"{offered['input_tokens_per_s']:,.0f} tokens/s in, "
            f"{offered['output_tokens_per_s']:,.0f} out"
        )
    return "\n".join(lines)


def describe_trace(trace: Trace) -> dict[str, Any]:
    """Rows, span and lengths of a trace, and requests per equal slice of its span."""
    slices = [0] * _COLUMNS
    lengths_in, lengths_out = [], []
    for index in range(trace.length):
        design = trace.design(index)
        lengths_in.append(design.input_tokens)
        lengths_out.append(design.output_tokens)
        share = (design.offset_s or 0.0) / trace.span_s if trace.span_s else 0.0
        slices[min(int(share * _COLUMNS), _COLUMNS - 1)] += 1
    return {
        "rows": trace.length,
        "span_s": trace.span_s,
        "requests_per_s": trace.length / trace.span_s if trace.span_s else None,
        "input_tokens": _sample_figures(lengths_in),
        "output_tokens": _sample_figures(lengths_out),
        "requests_by_slice": slices,
    }


def render_trace(facts: dict[str, Any]) -> str:
    """`describe_trace` as text."""
    rate = f", {facts['requests_per_s']:.2f} requests/s" if facts["requests_per_s"] else ""
    lines = ["", f"  trace      {facts['rows']:,} requests over {facts['span_s']:,.1f} s{rate}"]
    lines.append(f"  over time  {_sparkline(facts['requests_by_slice'])}")
    for side in ("input", "output"):
        figures = facts[f"{side}_tokens"]
        lines.append(
            f"  {side + ' tokens':13} mean {figures['mean']:,.0f}, p50 {figures['p50']:,}, p99 {figures['p99']:,}, "
            f"max {figures['max']:,}"
        )
    return "\n".join(lines)


def render_request(plan: Plan, index: int) -> str:
    """One planned request in two lines: what it is, and how its body begins and ends."""
    request = plan.request(index)
    due = "" if request.scheduled_s is None else f", due at {request.scheduled_s:.3f} s"
    body = request.body.decode("utf-8")
    shown = body if len(body) <= 400 else f"{body[:240]} … {body[-140:]}"
    return (
        f"#{index} {request.request_class} {request.endpoint}: {request.prompt_tokens} tokens in, "
        f"{request.output_tokens} out{due}, {len(request.body):,} bytes\n  {shown}"
    )


def _kind(item: RequestClass) -> str:
    parts = [item.endpoint, {"en": "English", "zh": "Chinese", "mixed": "English and Chinese"}[item.language]]
    if item.system_prompt_tokens:
        parts.append(f"system prompt of {item.system_prompt_tokens}")
    if item.shared_prefix:
        shared = item.shared_prefix
        parts.append(
            f"{shared.groups} shared prefixes of {shared.tokens}" + (f", Zipf {shared.zipf:g}" * (shared.zipf > 0))
        )
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
