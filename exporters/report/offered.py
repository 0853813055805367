"""The report's picture of the offered load: what was sent when, and how long prompts and answers were.

From the records, as measured: the rate asked for stands beside the rate at which requests were due and left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from exporters.columns import ABSENT, Columns, Ints
from exporters.quantiles import Floats
from exporters.report.figures import GRID, INK, MUTED, STYLE, Curve, svg
from exporters.run import Run

_SLOTS = 60
_BINS = 40


def offered_plot(curves: Sequence[Curve]) -> str | None:
    """Requests/s over the whole run (warm-up and drain too), prompt and answer lengths. None without requests.

    A line is what left; dotted is what was due (open loop), dashed the rate asked for. Lengths are the server's counts.
    """
    runs = [(run, curve.colour) for curve in curves for run in curve.runs if len(run.columns)]
    if not runs:
        return None
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "offered"}):
        figure = Figure(figsize=(11, 3.1), layout="constrained")
        over_time, prompts, answers = figure.subplots(1, 3, width_ratios=(2, 1, 1))
        for run, colour in runs:
            _over_time(over_time, run, colour)
        over_time.axvline(0, color=GRID, linewidth=1)
        over_time.set_ylim(bottom=0)
        over_time.set_title("requests/s sent")
        over_time.set_xlabel("seconds since the warm-up ended")
        for axes, name, title in (
            (prompts, "prompt_tokens", "prompt tokens"),
            (answers, "output_tokens", "answer tokens"),
        ):
            found = [(lengths, colour) for run, colour in runs if (lengths := _told(run.columns, name)).size]
            _lengths(axes, found)
            axes.set_title(title)
        return svg(figure, "Requests sent over time, and their lengths")


def _over_time(axes: Any, run: Run, colour: str) -> None:
    columns, start_ns = run.columns, run.window.start_ns
    sent: Floats = ((columns.sent_ns - start_ns) * 1e-9).astype(np.float64)
    due = columns.scheduled_ns[columns.scheduled_ns != ABSENT]
    first, last = float(sent.min()), float(sent.max())
    edges = np.linspace(first, max(last, first + 1.0), _bins(sent.size, _SLOTS) + 1).astype(np.float64)
    axes.stairs(_rate(sent, edges), edges, color=colour, linewidth=1.4)
    if due.size:
        axes.stairs(
            _rate(((due - start_ns) * 1e-9).astype(np.float64), edges),
            edges,
            color=INK,
            linewidth=0.9,
            linestyle=(0, (1, 1.5)),
        )
    if run.facts.open_loop and run.facts.rate:
        axes.axhline(run.facts.rate, color=MUTED, linewidth=0.9, linestyle=(0, (5, 3)))


def _bins(count: int, most: int) -> int:
    """So many that each holds some: fewer for few requests."""
    return max(8, min(most, count // 5))


def _rate(seconds: Floats, edges: Floats) -> Floats:
    found: Floats = np.histogram(seconds, edges)[0] / np.diff(edges)
    return found


def _told(columns: Columns, name: str) -> Ints:
    values: Ints = getattr(columns, name)
    return values[values != ABSENT]


def _lengths(axes: Any, found: Sequence[tuple[Ints, str]]) -> None:
    axes.yaxis.set_major_formatter(lambda share, _: f"{share * 100:.3g} %")
    if not found:
        axes.text(0.5, 0.5, "not told by the server", color=MUTED, ha="center", transform=axes.transAxes)
        return
    low = min(int(lengths.min()) for lengths, _ in found)
    high = max(int(lengths.max()) for lengths, _ in found)
    # Ends between whole numbers, and no bin narrower than one token.
    edges = np.linspace(
        low - 0.5, high + 0.5, min(_bins(max(lengths.size for lengths, _ in found), _BINS), high - low + 1) + 1
    )
    for lengths, colour in found:
        share = np.histogram(lengths, edges)[0] / lengths.size
        axes.stairs(share, edges, fill=True, color=colour, alpha=0.16, linewidth=0)
        axes.stairs(share, edges, color=colour, linewidth=1.2)
    axes.set_ylim(bottom=0)
