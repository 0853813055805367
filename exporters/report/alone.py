"""One run in words: what a comparison's verdict is to two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporters import wording
from exporters.gate import hold
from exporters.run import Run
from exporters.tables import TITLES
from tailgate.thresholds import Gate


def word(run: Run, gate: Gate | None) -> str:
    """'valid', 'failed' (a bound of the gate is broken), 'objective missed' or 'not valid'."""
    if not run.valid:
        return "not valid"
    if gate and any(one.met is False for one in hold(gate, [run])):
        return "failed"
    missed = any(objective["met"] is False for objective in run.summary["objectives"])
    return "objective missed" if missed else "valid"


def sentence(run: Run) -> str:
    """How many, how late, how good."""
    summary = run.summary
    requests, throughput = summary["requests"], summary["throughput"]
    outcome = [f"{requests[kind]:,} {kind}" for kind in ("failed", "cancelled") if requests[kind]]
    said = [
        f"{wording.counted(requests['sent'], 'request')} sent in {summary['window']['seconds']:.1f} s, "
        + (", ".join([f"{requests['ok']:,} ok", *outcome]) if outcome else "all answered")
        + f"; {throughput['output_tokens_per_s']:,.4g} output tokens/s."
    ]
    told = [text for metric in ("ttft_s", "itl_s") if (text := _tail(metric, summary["metrics"][metric]))]
    if told:
        said.append(f"{'; '.join(told)}.")
    for objective in summary["objectives"]:
        met = {True: "met", False: "missed", None: "cannot be told"}[objective["met"]]
        said.append(f"Objective {objective['text']}: {met}.")
    if summary["goodput"]["share"] is not None:
        said.append(f"{summary['goodput']['share']:.1%} of the requests met every objective.")
    return " ".join(said)


def _tail(metric: str, found: Mapping[str, Any]) -> str | None:
    levels = [name for name in ("p50", "p95", "p99") if found[name] is not None]
    if not levels:
        return None
    figures = [f"{name} {wording.milliseconds(found[name])}" for name in levels]
    return f"{TITLES[metric]} {', '.join(figures)} ms"
