"""The report's plots, as inline SVG that takes its colours from the page (so that dark mode and paper work).

No text of a user's goes into a plot: the page's own legend names the sides.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from exporters.quantiles import LEAST_BEYOND, Floats
from exporters.run import Run

# Stand-ins that are replaced by the page's CSS variables once drawn.
INK, MUTED, GRID, BASE, CANDIDATE = "#010101", "#020202", "#030303", "#040404", "#050505"
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--rule", BASE: "--base", CANDIDATE: "--candidate"}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "text.parse_math": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.solid_joinstyle": "round",
}
_POINTS = 300


@dataclass(frozen=True)
class Curve:
    """The runs of one side, and the colour they are drawn in."""

    runs: Sequence[Run]
    colour: str


def quantile_plot(curves: Sequence[Curve], metric: str, name: str) -> str | None:
    """Latency by quantile, the tail stretched: 90, 99 and 99.9 % stand equally far apart. None without data.

    Solid as far as ten observations lie beyond, dotted from there to the longest one; thin lines are single runs.
    """
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": f"quantiles {metric}"}):
        figure, axes = _axes(5.4, 3.3)
        most = 0
        for curve in curves:
            values = _pooled(curve.runs, metric)
            if values.size < 2:
                continue
            most = max(most, values.size)
            if len(curve.runs) > 1:
                for run in curve.runs:
                    _quantile_line(axes, np.sort(_pooled([run], metric)), curve.colour, thin=True)
            _quantile_line(axes, np.sort(values), curve.colour)
        if not most:
            return None
        axes.set_yscale("log")
        _latency_ticks(axes.yaxis)
        ticks = [level for level in (0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999) if most * (1 - level) >= 1]
        axes.set_xticks([_stretch(level) for level in ticks], [f"p{100 * level:.6g}" for level in ticks])
        axes.set_xlim(left=0.02)
        axes.set_title(f"{name} by quantile")
        axes.set_ylabel("ms, log scale")
        return _svg(figure, f"{name} by quantile, both sides")


def distribution_plot(curves: Sequence[Curve], metric: str, name: str) -> str | None:
    """Share of the observations by latency; both axes logarithmic, so that rare ones are seen. None without data."""
    pooled = [(_pooled(curve.runs, metric), curve.colour) for curve in curves]
    pooled = [(values[values > 0], colour) for values, colour in pooled if (values > 0).any()]
    if not pooled:
        return None
    low = min(float(np.quantile(values, 0.001)) for values, _ in pooled)
    high = max(float(values.max()) for values, _ in pooled)
    edges = np.geomspace(low * 0.98, max(high * 1.02, low * 1.2), 90)
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": f"distribution {metric}"}):
        figure, axes = _axes(5.4, 3.3)
        for values, colour in pooled:
            share = np.histogram(values, edges)[0] / values.size
            axes.stairs(share, edges, fill=True, color=colour, alpha=0.16, linewidth=0)
            axes.stairs(np.where(share > 0, share, np.nan), edges, color=colour, linewidth=1.3)
        axes.set_xscale("log")
        axes.set_yscale("log")
        _latency_ticks(axes.xaxis)
        axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(base=10, subs=(1, 3)))
        axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        axes.yaxis.set_major_formatter(lambda share, _: f"{share * 100:.6g} %")
        axes.set_title(f"{name} distribution")
        axes.set_xlabel("ms, log scale")
        axes.set_ylabel("share, log scale")
        return _svg(figure, f"Distribution of {name}, both sides")


def time_plot(curves: Sequence[Curve]) -> str | None:
    """The client's TTFT above the engine's own running and waiting requests and KV cache use, on one time axis.

    None where no engine was observed. Time counts from the start of each run's window.
    """
    rows = [
        (key, name) for key, name in _ENGINE_ROWS if any(key in s for c in curves for r in c.runs for s in r.engine)
    ]
    if not rows:
        return None
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "engine"}):
        figure = Figure(figsize=(11, 1.55 * (len(rows) + 1)), layout="constrained")
        panels = np.atleast_1d(figure.subplots(len(rows) + 1, 1, sharex=True))
        longest = max(run.window.seconds for curve in curves for run in curve.runs)
        for curve in curves:
            for run in curve.runs:
                seconds, late = _ttft_over_time(run)
                panels[0].plot(seconds, late * 1e3, color=curve.colour, linewidth=1.2, alpha=0.85)
                for panel, (key, _) in zip(panels[1:], rows, strict=True):
                    seconds, values = _sampled(run, key)
                    panel.plot(seconds, values, color=curve.colour, linewidth=1.2, alpha=0.85)
        panels[0].set_title("TTFT p90 seen by the client, ms")
        panels[0].set_ylim(bottom=0)
        for panel, (key, name) in zip(panels[1:], rows, strict=True):
            panel.set_title(f"engine: {name}")
            panel.set_ylim(bottom=0, top=1.02 if key == "kv_cache_usage" and panel.get_ylim()[1] > 0.5 else None)
            if key == "kv_cache_usage":
                panel.yaxis.set_major_formatter(lambda share, _: f"{share * 100:.3g} %")
        panels[-1].set_xlabel("seconds since the warm-up ended")
        panels[-1].set_xlim(0, longest)
        return _svg(figure, "Client and engine over time, both sides")


_ENGINE_ROWS = (
    ("running", "requests running"),
    ("waiting", "requests waiting"),
    ("kv_cache_usage", "KV cache in use"),
)


def _axes(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _pooled(runs: Iterable[Run], metric: str) -> Floats:
    return np.concatenate([run.columns.values(metric, run.columns.in_window) for run in runs] or [np.empty(0)])


def _quantile_line(axes: Any, ordered: Floats, colour: str, *, thin: bool = False) -> None:
    if ordered.size < 2:
        return
    told = max(1 - LEAST_BEYOND / ordered.size, 0.0)
    last = 1 - 0.5 / ordered.size
    levels = 1 - np.geomspace(1, 1 - last, _POINTS)
    values = np.interp(levels * (ordered.size - 1), np.arange(ordered.size), ordered) * 1e3
    solid = levels <= told
    width, alpha = (0.7, 0.45) if thin else (2.0, 1.0)
    axes.plot(_stretch(levels[solid]), values[solid], color=colour, linewidth=width, alpha=alpha)
    if not thin:
        axes.plot(_stretch(levels[~solid]), values[~solid], color=colour, linewidth=1.2, linestyle=(0, (1.5, 1.5)))


def _stretch(level: Any) -> Any:
    return -np.log10(1 - level)


def _latency_ticks(axis: Any) -> None:
    """Ticks at 1, 2, 5, 10 … ms."""
    axis.set_major_locator(matplotlib.ticker.LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,.6g}" if axis.axis_name == "y" else f"{value * 1e3:,.6g}")


def _ttft_over_time(run: Run) -> tuple[Floats, Floats]:
    """TTFT p90 in about forty slices of the window: their middles (s) and values (s)."""
    columns, window = run.columns, run.window
    values, owner = columns.values_with_owner("ttft_s", columns.in_window)
    at = (columns.sent_ns[owner] - window.start_ns) * 1e-9
    edges = np.linspace(0, window.seconds, 41)
    slots = np.digitize(at, edges) - 1
    found = [(float((edges[i] + edges[i + 1]) / 2), values[slots == i]) for i in range(40)]
    kept = [(middle, float(np.quantile(inside, 0.9))) for middle, inside in found if inside.size]
    return np.array([m for m, _ in kept]), np.array([v for _, v in kept])


def _sampled(run: Run, key: str) -> tuple[Floats, Floats]:
    samples = [(s["time_ns"], s[key]) for s in run.engine if isinstance(s.get(key), int | float) and "time_ns" in s]
    samples = samples[:: max(1, len(samples) // _POINTS)]
    seconds = np.array([(t - run.window.start_ns) * 1e-9 for t, _ in samples])
    values = np.array([float(v) for _, v in samples])
    inside = (seconds >= 0) & (seconds <= run.window.seconds)
    return seconds[inside], values[inside]


def _svg(figure: Figure, description: str) -> str:
    """The figure as an SVG element: colours by CSS variable, scaled by the page, described for screen readers."""
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    drawn = io.StringIO()
    FigureCanvasSVG(figure).print_svg(drawn, metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', rf'\1 role="img" aria-label="{description}"', text, count=1)
    # Coordinates to a hundredth of a point; the text between tags are ticks, whose digits count.
    text = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\d+\.\d\d)\d+", r"\1", tag[0]), text)
    text = re.sub(r"font: [^;\"]*?(\d+\.?\d*)px [^;\"]*", r"font-size: \1px", text)
    for stand_in, variable in _VARIABLES.items():
        text = text.replace(stand_in, f"var({variable})")
    return text
