"""What a person reads at the end of a run: its tails in ms, whether they may be believed, and where the rest lies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporters.run import REPORT
from exporters.tables import TITLES, quantile_title, said_of_answers, said_of_prompts, said_of_sending
from exporters.wording import counted, milliseconds

_SHOWN = ("ttft_s", "ttft_scheduled_s", "itl_s", "stall_s", "tpot_s", "e2e_s", "e2e_scheduled_s", "send_lag_s")
_OPEN_LOOP_ONLY = ("send_lag_s", "ttft_scheduled_s", "e2e_scheduled_s")
_QUANTILES = ("p50", "p95", "p99", "p999")
_WIDTH = 10


def summary_lines(summary: Mapping[str, Any], meta: Mapping[str, Any], directory: Path) -> list[str]:
    """The run as a few lines of text."""
    open_loop = meta["arrival"]["kind"] != "closed"
    engine = meta["engine"]
    name = " ".join(str(part) for part in (engine["name"] or "unknown engine", engine["version"] or "") if part)
    requests, window = summary["requests"], summary["window"]
    counts = ", ".join(f"{requests[kind]:,} {kind}" for kind in ("ok", "failed", "cancelled"))
    throughput = summary["throughput"]
    rate = f"{throughput['requests_per_s']:.2f} requests/s, {throughput['output_tokens_per_s']:.1f} tokens/s"
    lines = [
        "",
        f"Tailgate: {meta['workload']['name']} on {meta['model']} ({name})"
        + (" - SIMULATED: no real hardware was measured" if summary["simulated"] else ""),
        f"{counted(requests['sent'], 'request')} sent in {window['seconds']:.1f} s: {counts}; {rate}",
        "",
        f"{'ms':<20}" + "".join(f"{title:>{_WIDTH}}" for title in ("count", *map(quantile_title, _QUANTILES), "max")),
    ]
    for metric in _SHOWN:
        found = summary["metrics"].get(metric)
        if found and found["count"] and (open_loop or metric not in _OPEN_LOOP_ONLY):
            tails = [found.get(key) for key in (*_QUANTILES, "max")]
            cells = [str(found["count"]), *("too few" if tail is None else milliseconds(tail) for tail in tails)]
            lines.append(f"{TITLES[metric]:<20}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells))
    if any("too few" in line for line in lines):
        lines.append("too few: fewer than ten observations lie beyond that quantile")
    lines.append("")
    for kind, count in requests["by_error"].items():
        lines.append(f"failed: {count} x {kind}")
    lines += said_of_sending(summary["quality"])
    lines += said_of_prompts(summary)
    lines += said_of_answers(summary["answers"])
    for objective in summary["objectives"]:
        met = {True: "met", False: "MISSED", None: "cannot be told"}[objective["met"]]
        lines.append(f"objective {objective['text']}: {met}{_reached(objective)}")
    lines += (meta.get("master") or {}).get("said", [])
    lines.append(f"clock: {summary['quality']['clock']}")
    if summary["valid"]:
        lines.append("valid: yes")
    else:
        lines.append("NOT VALID:")
        lines += [f"  - {reason}" for reason in summary["quality"]["reasons"]]
    lines.append(f"run directory: {directory}")
    if (directory / REPORT).is_file():
        lines.append(f"report: {directory / REPORT}")
    return lines


def _reached(objective: Mapping[str, Any]) -> str:
    value = objective["value"]
    if value is None:
        return ""
    share = str(objective["text"]).startswith("error_share")
    return f" ({value:.2%})" if share else f" ({milliseconds(value)} ms)"
