"""A run's summary as a page for the screen. Latencies in ms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporters.quantiles import LEVELS
from exporters.run import Run
from exporters.wording import milliseconds

TITLES = {
    "ttft_s": "TTFT",
    "itl_s": "ITL",
    "itl_token_s": "ITL per token",
    "stall_s": "stall",
    "tpot_s": "TPOT",
    "e2e_s": "E2E",
    "connect_s": "connect",
    "send_lag_s": "send lag",
    "ttft_scheduled_s": "TTFT from due time",
    "e2e_scheduled_s": "E2E from due time",
}


def summary_text(run: Run) -> str:
    """Everything an engineer asks first: may it be believed, how many, how fast, how late."""
    summary, facts = run.summary, run.facts
    lines = []
    if summary["simulated"]:
        lines.append("SIMULATED: these figures come from the embedded engine, not from a GPU.")
    lines.append(f"{facts.label}: {facts.workload or 'workload unknown'}, {facts.model or 'model unknown'}")
    quality = summary["quality"]
    lines.append(f"{'valid' if summary['valid'] else 'NOT VALID'}; {quality['clock']} clock")
    lines += [f"  - {reason}" for reason in quality["reasons"]]
    lines += ["", *_body(summary, summary["window"]["seconds"]), "", *metric_table(summary["metrics"])]
    lines += engine_text(summary.get("engine"), summary["metrics"])
    if len(summary["classes"]) > 1:
        for name, part in summary["classes"].items():
            lines += ["", f"class {name}: {part['requests']['sent']} sent", *metric_table(part["metrics"])]
    return "\n".join(lines)


def engine_text(own: Mapping[str, Any] | None, metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The same in a sentence or two, for the screen and the report."""
    if own is None or own["ttft_outside_s"] is None:
        return []
    engine, ours, outside = own["ttft_s"]["mean"], metrics["ttft_s"]["mean"], own["ttft_outside_s"]
    lines = [f"TTFT by the engine's own count: {milliseconds(engine)} ms on average, {milliseconds(ours)} ms here"]
    if own["others"]:
        lines[0] += "; but it served others too, so that the two are not of the same requests"
    else:
        network = own["network_s"]
        trip = f", of which a round trip on the network takes {milliseconds(network)} ms" if network else ""
        where = f": {milliseconds(outside)} ms lie between{trip}, the rest gateway and API server (HTTP, tokenizing)"
        lines[0] += where if outside > 0 else ": nothing measurable lies between (network, gateway, API server)"
    if own["scrapes_failed"]:
        lines.append(f"the engine's metrics could not be read {own['scrapes_failed']} times")
    return lines


def metric_table(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The latencies that were measured, one a line."""
    head = ["ms", "count", "mean", "min", "max", *(quantile_title(name) for name in LEVELS)]
    rows = [head]
    for name, found in metrics.items():
        if found["count"]:
            figures = ["-" if found[key] is None else milliseconds(found[key]) for key in ("mean", "min", "max")]
            tails = ["too few" if found[key] is None else milliseconds(found[key]) for key in LEVELS]
            rows.append([TITLES[name], f"{found['count']}", *figures, *tails])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
        for r in rows
    ]


def quantile_title(name: str) -> str:
    """'p999' as people write it."""
    return "p99.9" if name == "p999" else name


def _body(summary: Mapping[str, Any], seconds: float) -> list[str]:
    requests, throughput, tokens, goodput = (summary[k] for k in ("requests", "throughput", "tokens", "goodput"))
    errors = ", ".join(f"{kind} {count}" for kind, count in requests["by_error"].items())
    per_event = f", {tokens['per_event']:.2f} an event" if tokens["per_event"] else ""
    accounts = f"{requests['ok']} ok + {requests['failed']} failed{f' ({errors})' if errors else ''}"
    rates = f"{throughput['requests_per_s']:.2f} requests/s, {throughput['output_tokens_per_s']:.1f} output tokens/s"
    lines = [
        f"{requests['sent']} sent in {seconds:.1f} s = {accounts} + {requests['cancelled']} cancelled",
        f"{rates}, {tokens['output']} output tokens by {tokens['source'] or '-'}{per_event}",
    ]
    lines += said_of_sending(summary["quality"])
    lines += said_of_prompts(summary)
    lines += said_of_answers(summary["answers"])
    if goodput["share"] is not None:
        lines.append(f"goodput {goodput['requests_per_s']:.2f} requests/s, {goodput['share']:.1%} met {goodput['slo']}")
    for objective in summary["objectives"]:
        word = {True: "met", False: "MISSED", None: "too few to tell"}[objective["met"]]
        lines.append(f"objective {objective['text']}: {word}")
    return lines


def said_of_sending(quality: Mapping[str, Any]) -> list[str]:
    """How the schedule was kept, and what the engine's prefix cache found; nothing where neither is known."""
    lines = []
    if quality.get("requests_due"):
        due, missing = quality["requests_due"], quality["requests_missing"]
        lines.append(f"{due} requests were due, {missing} of them not sent" if missing else f"all {due} due were sent")
    hit, designed = quality.get("cache_hit_share"), quality.get("cache_designed_share")
    if hit is not None:
        beside = "" if designed is None else f", {designed:.1%} by design"
        lines.append(f"prefix cache: {hit:.1%} of the prompt tokens found{beside}")
    return lines


def said_of_prompts(summary: Mapping[str, Any]) -> list[str]:
    """Whether prompts were as long, by the server's count, as the workload asked, and conversations sent to their end.

    Nothing where nobody counted, or there were no conversations.
    """
    talks, lengths = summary.get("conversations"), summary.get("prompt_lengths")
    lines = [f"conversations: {talks['begun']} begun, {talks['whole']} sent to their end"] if talks else []
    return lines + (_said_of_lengths(lengths) if lengths else [])


def _said_of_lengths(lengths: Mapping[str, Any]) -> list[str]:
    compared, exact = lengths["compared"], lengths["as_designed"]
    if exact == compared:
        return [f"prompts: all {compared} exactly as long as designed"]
    least, largest = lengths["least_difference"], lengths["largest_difference"]
    off = f"the others by {least:+d} to {largest:+d} tokens ({lengths['mean_difference_share']:+.1%} in all)"
    return [f"prompts: {exact} of {compared} exactly as long as designed, {off}"]


def said_of_answers(answers: Mapping[str, Any]) -> list[str]:
    """What a reader should know of the answers beside their times: retries, short ones, oddities; mostly nothing."""
    lines = []
    retries = answers["retries"]
    if retries["sent"]:
        lines.append(
            f"of these {retries['sent']} were retries: {retries['ok']} ok, {retries['failed']} failed, "
            f"{retries['cancelled']} cancelled"
        )
    if answers["short_output"]:
        lines.append(f"short answers: {answers['short_output']} requests got fewer tokens than they demanded")
    lines += [f"note: {count} x {note}" for note, count in answers["notes"].items()]
    return lines
