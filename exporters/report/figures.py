"""The report's plots, as inline SVG that takes its colours from the page (so that dark mode and paper work).

No text of a user's goes into a plot: the page's own legend names the sides.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from exporters.compare import Measurement
from exporters.histogram import MIDPOINTS_S
from exporters.quantiles import LEAST_BEYOND, Floats
from exporters.run import Run

# Stand-ins that are replaced by the page's CSS variables once drawn.
INK, MUTED, GRID, BASE, CANDIDATE = "#010101", "#020202", "#030303", "#040404", "#050505"
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--rule", BASE: "--base", CANDIDATE: "--candidate"}
STYLE: Any = {
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
    """What was measured on one side, whole runs or stored baselines, and the colour it is drawn in."""

    measured: Sequence[Run | Measurement]
    colour: str

    @property
    def runs(self) -> list[Run]:
        """Those of which every request is known."""
        return [run for run in self.measured if isinstance(run, Run)]


def quantile_plot(curves: Sequence[Curve], metric: str, name: str) -> str | None:
    """Latency by quantile, the tail stretched: 90, 99 and 99.9 % stand equally far apart. None without data.

    Solid as far as ten observations lie beyond, dotted from there to the longest one; thin lines are single runs.
    """
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": f"quantiles {metric}"}):
        figure, axes = axes_of(5.4, 3.3)
        most = 0
        for curve in curves:
            values = _ordered(curve.measured, metric)
            if values.size < 2 or values[-1] <= 0:
                continue
            most = max(most, values.size)
            if len(curve.measured) > 1:
                for run in curve.measured:
                    _quantile_line(axes, _ordered([run], metric), curve.colour, thin=True)
            _quantile_line(axes, values, curve.colour)
        if not most:
            return None
        axes.set_yscale("log")
        latency_ticks(axes.yaxis, *axes.get_ylim())
        ticks = [level for level in (0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999) if most * (1 - level) >= 1]
        axes.set_xticks([_stretch(level) for level in ticks], [f"p{100 * level:.6g}" for level in ticks])
        axes.set_xlim(left=0.02)
        axes.set_title(f"{name} by quantile")
        axes.set_ylabel("ms, log scale")
        return svg(figure, f"{name} by quantile, both sides")


def distribution_plot(curves: Sequence[Curve], metric: str, name: str) -> str | None:
    """Share of the observations by latency; both axes logarithmic, so that rare ones are seen. None without data."""
    ordered = [(_ordered(curve.measured, metric), curve.colour) for curve in curves]
    pooled = [(values[np.searchsorted(values, 0, side="right") :], colour) for values, colour in ordered]
    pooled = [(values, colour) for values, colour in pooled if values.size]
    if not pooled:
        return None
    low = min(float(_quantiles(values, np.array([0.001]))[0]) for values, _ in pooled)
    high = max(float(values.max()) for values, _ in pooled)
    edges = np.geomspace(low * 0.98, max(high * 1.02, low * 1.2), 90)
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": f"distribution {metric}"}):
        figure, axes = axes_of(5.4, 3.3)
        for values, colour in pooled:
            share = np.histogram(values, edges)[0] / values.size
            axes.stairs(share, edges, fill=True, color=colour, alpha=0.16, linewidth=0)
            axes.stairs(np.where(share > 0, share, np.nan), edges, color=colour, linewidth=1.3)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.2))
        latency_ticks(axes.xaxis, float(edges[0]), float(edges[-1]))
        axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(base=10, subs=(1, 3)))
        axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        axes.yaxis.set_major_formatter(lambda share, _: f"{share * 100:.6g} %")
        axes.set_title(f"{name} distribution")
        axes.set_xlabel("ms, log scale")
        axes.set_ylabel("share, log scale")
        return svg(figure, f"Distribution of {name}, both sides")


def time_plot(curves: Sequence[Curve]) -> str | None:
    """The client's tails above the engine's own queue, cache and preemptions, on one time axis.

    Engine rows that no run has samples of are left out. None without requests. Time counts from each run's window.
    """
    runs = [(run, curve.colour) for curve in curves for run in curve.runs]
    rows = [row for row in _ROWS if any(row[1](run)[0].size for run, _ in runs)]
    if not rows:
        return None
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "engine"}):
        figure = Figure(figsize=(11, 1.55 * len(rows)), layout="constrained")
        panels = np.atleast_1d(figure.subplots(len(rows), 1, sharex=True))
        for panel, (title, read, is_share) in zip(panels, rows, strict=True):
            for run, colour in runs:
                at_s, values = read(run)
                # Of a single point no line is drawn.
                panel.plot(at_s, values, "." if at_s.size == 1 else "-", color=colour, linewidth=1.2, alpha=0.85)
            panel.set_title(title)
            panel.set_ylim(bottom=0, top=1.02 if is_share and panel.get_ylim()[1] > 0.5 else None)
            if is_share:
                panel.yaxis.set_major_formatter(lambda share, _: f"{share * 100:.3g} %")
        panels[-1].set_xlabel("seconds since the warm-up ended")
        panels[-1].set_xlim(0, max(run.window.seconds for run, _ in runs))
        return svg(figure, "Client and engine over time")


def axes_of(width: float, height: float) -> tuple[Figure, Any]:
    """An empty figure of that size in inches, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _ordered(measured: Sequence[Run | Measurement], metric: str) -> Floats:
    """Every observation of all of them, ascending."""
    values = [_values(one, metric) for one in measured]
    pooled = values[0] if len(values) == 1 else np.concatenate(values or [np.empty(0)])
    pooled.sort()
    return pooled


def _quantiles(ordered: Floats, levels: Floats) -> Floats:
    """As `np.quantile` of what is in order already, without a copy of it."""
    position = levels * (ordered.size - 1)
    below = np.floor(position).astype(np.int64)
    low, high = ordered[below], ordered[np.minimum(below + 1, ordered.size - 1)]
    found: Floats = low + (high - low) * (position - below)
    return found


def _values(one: Run | Measurement, metric: str) -> Floats:
    """Every observation; of a stored baseline each bucket's midpoint as often as it was counted."""
    if isinstance(one, Run):
        return one.columns.values(metric, one.columns.in_window)
    held = one.blocks.latencies[metric.removesuffix("_s")]
    return np.repeat(MIDPOINTS_S[held.buckets], held.counts.sum(axis=0))


def _quantile_line(axes: Any, ordered: Floats, colour: str, *, thin: bool = False) -> None:
    if ordered.size < 2:
        return
    told = max(1 - LEAST_BEYOND / ordered.size, 0.0)
    last = 1 - 0.5 / ordered.size
    levels = 1 - np.geomspace(1, 1 - last, _POINTS)
    values = _quantiles(ordered, levels) * 1e3
    solid = levels <= told
    width, alpha = (0.7, 0.45) if thin else (2.0, 1.0)
    axes.plot(_stretch(levels[solid]), values[solid], color=colour, linewidth=width, alpha=alpha)
    if not thin:
        axes.plot(_stretch(levels[~solid]), values[~solid], color=colour, linewidth=1.2, linestyle=(0, (1.5, 1.5)))


def _stretch(level: Any) -> Any:
    return -np.log10(1 - level)


def latency_ticks(axis: Any, low: float, high: float) -> None:
    """Ticks at 1, 2, 5, 10 … ms; more of them where the range is less than a decade."""
    subs = (1, 1.5, 2, 3, 4, 5, 6, 8) if high < 8 * low else (1, 2, 5)
    axis.set_major_locator(matplotlib.ticker.LogLocator(base=10, subs=subs))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,.6g}" if axis.axis_name == "y" else f"{value * 1e3:,.6g}")


def _over_time(run: Run, metric: str, level: float) -> tuple[Floats, Floats]:
    """That quantile (ms) in about forty slices of the window, by when its request was sent; none where too few."""
    columns, window = run.columns, run.window
    edges = np.linspace(0, window.seconds, 41)
    slot = np.searchsorted(edges, (columns.sent_ns - window.start_ns) * 1e-9, side="right") - 1
    found = []
    for i in range(40):
        inside = columns.values(metric, columns.in_window & (slot == i))
        if inside.size:
            found.append(((edges[i] + edges[i + 1]) / 2, float(np.quantile(inside, level, overwrite_input=True)) * 1e3))
    return np.array([middle for middle, _ in found]), np.array([value for _, value in found])


def _sampled(run: Run, key: str) -> tuple[Floats, Floats]:
    samples = [(s["time_ns"], s[key]) for s in run.engine if isinstance(s.get(key), int | float) and "time_ns" in s]
    samples = samples[:: max(1, len(samples) // _POINTS)]
    seconds = np.array([(t - run.window.start_ns) * 1e-9 for t, _ in samples])
    values = np.array([float(v) for _, v in samples])
    inside = (seconds >= 0) & (seconds <= run.window.seconds)
    return seconds[inside], values[inside]


def _sampled_rate(run: Run, key: str) -> tuple[Floats, Floats]:
    """A counter's growth a second between samples; a restart of it counts as none."""
    seconds, values = _sampled(run, key)
    if seconds.size < 2:
        return np.empty(0), np.empty(0)
    return (seconds[1:] + seconds[:-1]) / 2, np.maximum(np.diff(values), 0) / np.maximum(np.diff(seconds), 1e-9)


_ROWS: tuple[tuple[str, Callable[[Run], tuple[Floats, Floats]], bool], ...] = (
    ("TTFT p90 seen by the client, ms", lambda run: _over_time(run, "ttft_s", 0.9), False),
    ("ITL p99 seen by the client, ms", lambda run: _over_time(run, "itl_s", 0.99), False),
    ("engine: requests running", lambda run: _sampled(run, "running"), False),
    ("engine: requests waiting", lambda run: _sampled(run, "waiting"), False),
    ("engine: KV cache in use", lambda run: _sampled(run, "kv_cache_usage"), True),
    ("engine: preemptions a second", lambda run: _sampled_rate(run, "preemptions_total"), False),
)


def svg(figure: Figure, description: str) -> str:
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
