"""A run's `summary.json`: counts that add up, throughput, tokens, every latency, goodput, whole and by class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from exporters import audit, quality
from exporters.columns import ABSENT, CLOSES, METRICS, OF_GAPS, OPENS, OUTCOMES, RETRY, SHORT, Bools, Columns
from exporters.engine_own import engine_own
from exporters.facts import Facts, Window, utc
from exporters.figures_only import with_figures
from exporters.quantiles import Floats, adjusted_statistics, level_of, statistics
from exporters.record import RequestRecord
from exporters.selection import Parts, quantiles_in_parts, statistics_in_parts
from tailgate.exits import Exit
from tailgate.objectives import Objective, parse_objectives

SUMMARY_SCHEMA = "tailgate.summary/1"
ADJUSTED = ("ttft_s", "ttft_scheduled_s", "tpot_s", "stall_s", "e2e_s", "e2e_scheduled_s")


def summarise(
    records: Iterable[RequestRecord] | Columns,
    meta: Mapping[str, Any],
    engine: Sequence[Mapping[str, Any]] = (),
    unreadable: Sequence[int] = (),
) -> dict[str, Any]:
    """The summary of one run. `meta` is its `run.json`; without a window in it the span of the records is taken.

    `engine` are the samples of `engine.jsonl`; what they say of TTFT and ITL stands under `engine`.
    `unreadable` are the numbers of lines of `requests.jsonl` that are lost.
    """
    columns = records if isinstance(records, Columns) else Columns.of(records)
    facts = Facts(meta)
    window = facts.window or _span(columns)
    measured = audit.measure(columns, facts, window, engine, unreadable)
    broken = quality.reasons(measured)
    objectives = parse_objectives(facts.slo, "slo in run.json") if facts.slo else ()
    inside = columns.in_window
    whole = _part(columns, inside, window, objectives, facts.slo)
    found = {
        "schema": SUMMARY_SCHEMA,
        "simulated": facts.simulated,
        "valid": not broken,
        "quality": {
            "clock": measured.clock,
            "coalesced_share": measured.coalesced_share,
            "loop_lag_p99_s": measured.loop_lag_p99_s,
            "send_lag_p99_s": measured.send_lag_p99_s,
            "rate_requested": measured.rate_requested,
            "rate_achieved": measured.rate_achieved,
            "requests_due": measured.due,
            "requests_missing": measured.missing if measured.due is not None else None,
            "cache_hit_share": measured.cache_hit_share,
            "cache_designed_share": measured.cache_designed_share,
            "worker_cpu_max": measured.worker_cpu_max,
            "reasons": broken,
        },
        "window": {"start_utc": utc(window.start_ns), "seconds": 0.0 if window.empty else window.seconds},
        **whole,
        "engine": engine_own(engine, window, whole["metrics"], _quickest_connection(columns)),
        "classes": {
            name: whole
            if len(columns.classes) == 1
            else _part(columns, inside & (columns.class_code == code), window, objectives, facts.slo)
            for code, name in sorted(enumerate(columns.classes), key=lambda item: item[1])
        },
    }
    return with_figures(found, meta)


def exit_code(summary: Mapping[str, Any]) -> Exit:
    """What a run's own exit code is: 4 not valid, 1 requests failed, else 0."""
    if not summary["valid"]:
        return Exit.NOT_VALID
    return Exit.REQUESTS_FAILED if summary["requests"]["failed"] else Exit.GOOD


def _part(
    columns: Columns, chosen: Bools, window: Window, objectives: tuple[Objective, ...], slo: str | None
) -> dict[str, Any]:
    """The part of a summary that exists for the whole and for each class alike; `chosen` are its requests."""
    requests = _requests(columns, chosen)
    of_class = chosen | (~columns.in_window & np.isin(columns.class_code, np.unique(columns.class_code[chosen])))
    metrics, adjusted = _latencies(columns, chosen, requests["failed"])
    return {
        "requests": requests,
        "answers": _answers(columns, chosen),
        "throughput": _throughput(columns, of_class, window),
        "tokens": _tokens(columns, chosen & columns.ok),
        "prompt_lengths": _prompt_lengths(columns, chosen & columns.ok),
        "conversations": _conversations(columns),
        "metrics": metrics,
        "error_adjusted": adjusted,
        "goodput": _goodput(columns, chosen, of_class, window, objectives, slo),
        "objectives": [
            _objective(o, metrics, requests, columns.values_in_parts(f"{o.metric}_s", chosen))
            for o in objectives
            if o.statistic or o.metric == "error_share"
        ],
    }


def _latencies(columns: Columns, chosen: Bools, failed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Each metric's statistics, plain and error-adjusted."""
    plain: dict[str, Any] = {}
    adjusted: dict[str, Any] = {}
    for metric in METRICS:
        if metric in OF_GAPS:
            plain[metric] = statistics_in_parts(columns.values_in_parts(metric, chosen))
            continue
        values = columns.values(metric, chosen)
        plain[metric] = statistics(values)
        if metric in ADJUSTED and (values.size or failed):
            adjusted[metric] = adjusted_statistics(values, failed)
    return plain, adjusted


def _quickest_connection(columns: Columns) -> float | None:
    """The shortest TCP handshake of the whole run, warm-up included (kept connections are made there), in seconds."""
    values = columns.values("connect_s", columns.ok)
    return float(values.min()) if values.size else None


def _requests(columns: Columns, chosen: Bools) -> dict[str, Any]:
    """sent = ok + failed + cancelled; each sending of a request counts as one, retries too."""
    ok, failed, cancelled = (int((chosen & (columns.outcome == code)).sum()) for code in range(3))
    by_error: dict[str, int] = {}
    for position in np.flatnonzero(chosen & (columns.outcome == 1)):
        kind = columns.errors[position] or "unknown"
        by_error[kind] = by_error.get(kind, 0) + 1
    return {
        "sent": int(chosen.sum()),
        "ok": ok,
        "failed": failed,
        "cancelled": cancelled,
        "by_error": dict(sorted(by_error.items())),
    }


def _answers(columns: Columns, chosen: Bools) -> dict[str, Any]:
    """What else is to be known of them: retries apart from first sendings, short answers (they count as ok), notes."""
    marked = columns.count_marked(chosen)
    for mark in (RETRY, OPENS, CLOSES):
        marked.pop(mark, None)
    return {"retries": _retries(columns, chosen), "short_output": marked.pop(SHORT, 0), "notes": marked}


def _retries(columns: Columns, chosen: Bools) -> dict[str, int]:
    again = np.zeros(len(columns), dtype=np.bool_)
    again[columns.marked.get(RETRY, [])] = True
    again &= chosen
    parts = {name: int((again & (columns.outcome == code)).sum()) for code, name in enumerate(OUTCOMES)}
    return {"sent": int(again.sum()), **parts}


def _throughput(columns: Columns, chosen: Bools, window: Window) -> dict[str, float]:
    """What the server delivered *during* the window, whenever it had been asked for it.

    Counting what was asked for in the window instead would call an overloaded server as fast as its clients.
    A request's output tokens are spread evenly over its events.
    """
    ok = chosen & columns.ok
    ended = ok & _ended_inside(columns, window)
    delivered = events_inside(columns, ok, window)
    per_event = np.where(columns.output_tokens != ABSENT, columns.output_tokens, 0) / np.maximum(columns.events, 1)
    return {
        "requests_per_s": float(ended.sum() / window.seconds),
        "output_tokens_per_s": float((delivered * per_event).sum() / window.seconds),
        "events_per_s": float(delivered.sum() / window.seconds),
    }


def _ended_inside(columns: Columns, window: Window) -> Bools:
    return (columns.end_ns > window.start_ns) & (columns.end_ns <= window.end_ns)


def events_inside(columns: Columns, chosen: Bools, window: Window) -> Floats:
    """For each request (0 where not chosen) how many of its token events arrived inside the window."""
    counts = np.zeros(len(columns))
    started = chosen & (columns.first_ns != ABSENT)
    whole = started & (columns.first_ns > window.start_ns) & (columns.last_ns <= window.end_ns)
    counts[whole] = columns.events[whole]
    for position in np.flatnonzero(started & ~whole):
        gaps = columns.gaps_ns[columns.gap_starts[position] : columns.gap_starts[position + 1]]
        arrivals = columns.first_ns[position] + np.concatenate(([0], np.cumsum(gaps)))
        counts[position] = ((arrivals > window.start_ns) & (arrivals <= window.end_ns)).sum()
    return counts


def _tokens(columns: Columns, ok: Bools) -> dict[str, Any]:
    prompt, output = columns.prompt_tokens[ok], columns.output_tokens[ok]
    counted = columns.counted_events[ok]
    told = ok & ~columns.counted_events & (columns.output_tokens != ABSENT) & (columns.events > 0)
    events = int(columns.events[told].sum())
    return {
        "prompt": int(prompt[prompt != ABSENT].sum()),
        "output": int(output[output != ABSENT].sum()),
        "source": None
        if not counted.size
        else "usage"
        if not counted.any()
        else "events"
        if counted.all()
        else "mixed",
        "per_event": float(columns.output_tokens[told].sum() / events) if events else None,
    }


def _conversations(columns: Columns) -> dict[str, int] | None:
    """How many the whole run began, warm-up included, and took to their last answer; None where there were none."""
    begun = len(columns.marked.get(OPENS, ()))
    return {"begun": begun, "whole": len(columns.marked.get(CLOSES, ()))} if begun else None


def _prompt_lengths(columns: Columns, ok: Bools) -> dict[str, Any] | None:
    """Prompts as the server counted them against what the workload designed; None where nothing can be compared."""
    both = ok & (columns.planned_prompt_tokens != ABSENT) & (columns.prompt_tokens != ABSENT)
    if not both.any():
        return None
    designed = columns.planned_prompt_tokens[both]
    off = columns.prompt_tokens[both] - designed
    return {
        "compared": int(off.size),
        "as_designed": int((off == 0).sum()),
        "least_difference": int(off.min()),
        "largest_difference": int(off.max()),
        "mean_difference_share": float(off.sum() / max(int(designed.sum()), 1)),
    }


def _goodput(
    columns: Columns,
    chosen: Bools,
    of_class: Bools,
    window: Window,
    objectives: tuple[Objective, ...],
    slo: str | None,
) -> dict[str, Any]:
    """Requests that succeeded and met every latency objective: their share of all sent in the window, and how many of
    them ended in it a second, as throughput counts (and so at most as many).

    A bound on a metric with one value a request holds for that value, whatever quantile it names for the run; a bound
    on a quantile of ITL holds for that quantile of the request's own gaps, on plain ITL for its longest gap.
    """
    if not objectives:
        return {"slo": slo, "requests_per_s": None, "share": None}
    sent, good = int(chosen.sum()), _met(columns, objectives)
    return {
        "slo": slo,
        "requests_per_s": float((of_class & good & _ended_inside(columns, window)).sum() / window.seconds),
        "share": int((chosen & good).sum()) / sent if sent else None,
    }


def good_requests(columns: Columns, facts: Facts) -> Bools | None:
    """Which requests succeeded and met every objective of the run's SLO; None where it has none."""
    return _met(columns, parse_objectives(facts.slo, "slo in run.json")) if facts.slo else None


def _met(columns: Columns, objectives: tuple[Objective, ...]) -> Bools:
    good = columns.ok.copy()
    for objective in objectives:
        if objective.metric != "error_share":
            reached = _reached(columns, objective)
            good &= np.isnan(reached) | (reached < objective.limit)
    return good


def _reached(columns: Columns, objective: Objective) -> Floats:
    if objective.metric not in ("itl", "itl_token"):
        return columns.per_request(f"{objective.metric}_s")
    level = objective.quantile
    if objective.statistic in (None, "max") or (level is None and objective.statistic != "mean"):
        return columns.longest_gap_s()
    reached = np.full(len(columns), np.nan)
    for position in range(len(columns)):
        gaps = columns.gaps_ns[columns.gap_starts[position] : columns.gap_starts[position + 1]]
        if gaps.size:
            reached[position] = (gaps.mean() if level is None else np.quantile(gaps, level)) * 1e-9
    return reached


def _objective(
    objective: Objective, metrics: Mapping[str, Any], requests: Mapping[str, Any], values: Parts
) -> dict[str, Any]:
    """A run-wide objective, the value the run reached and whether that met it; None where it cannot be told.

    `values` are its metric's, for a quantile that `metrics` lack.
    """
    if objective.metric == "error_share":
        value = requests["failed"] / requests["sent"] if requests["sent"] else None
    else:
        name = objective.statistic or "max"
        found = metrics[f"{objective.metric}_s"]
        if name in found:
            value = found[name]
        else:
            value = float(quantiles_in_parts(values, [level_of(name)])[0]) if found["count"] else None
    return {"text": objective.text, "value": value, "met": None if value is None else value < objective.limit}


def _span(columns: Columns) -> Window:
    if not len(columns):
        return Window(0, 0)
    return Window(int(columns.sent_ns.min()), int(columns.end_ns.max()))
