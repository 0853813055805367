"""The report of an ablation, a sweep or a search: tables and plots on one page, without scripts or network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from markupsafe import Markup

from exporters.report import figures, write_page_text
from exporters.report.frame import templates

_HERE = Path(__file__).parent
# Told apart by dash and marker as well as by colour: on paper, and by eyes that see no red.
_LOOKS = [
    (colour, dash, mark)
    for dash, mark in (("-", "o"), ("--", "s"), (":", "^"))
    for colour in (figures.BASE, figures.CANDIDATE, figures.INK)
]


@dataclass(frozen=True)
class Table:
    """A table under a heading; the first column names the rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    foot: str = ""


@dataclass(frozen=True)
class Series:
    """A named curve: (output tokens/s a GPU, latency in ms) for each load."""

    name: str
    points: Sequence[tuple[float, float]]


def write_page(
    path: Path,
    *,
    kicker: str,
    title: str,
    simulated: bool,
    tables: Sequence[Table],
    command: str,
    plots: Sequence[str] = (),
    warnings: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    """Writes the page. `plots` are SVG elements of `curve_plot`. Raises `BadInput` where it cannot be written."""
    page = (
        templates(_HERE)
        .get_template("page.html")
        .render(
            kicker=kicker,
            title=title,
            simulated=simulated,
            tables=tables,
            # Trusted: made here, and what is a user's in them is escaped by whoever drew them.
            plots=[Markup(svg) for svg in plots],
            warnings=warnings,
            notes=notes,
            command=command,
        )
    )
    write_page_text(path, page)


def curve_plot(series: Sequence[Series], front: Sequence[tuple[float, float]], name: str) -> str | None:
    """The latency-throughput curves and their Pareto front as SVG; None where there are no two points to join."""
    drawn = [s for s in series if s.points]
    if sum(len(s.points) for s in drawn) < 2:
        return None
    with matplotlib.rc_context(figures.STYLE | {"svg.hashsalt": f"curve {name}"}):
        figure, axes = figures.axes_of(5.4, 3.9)
        for (colour, dash, mark), one in zip(_LOOKS * (1 + len(drawn) // len(_LOOKS)), drawn, strict=False):
            xs, ys = zip(*one.points, strict=True)
            axes.plot(xs, ys, color=colour, linestyle=dash, marker=mark, markersize=4, linewidth=1.4, label=one.name)
        if len(front) > 1:
            xs, ys = zip(*sorted(front), strict=True)
            axes.step(xs, ys, where="post", color=figures.MUTED, linestyle=(0, (4, 3)), linewidth=1.0)
        axes.set_yscale("log")
        figures.latency_ticks(axes.yaxis, *axes.get_ylim())
        axes.set_ylabel("ms, log scale")
        axes.set_xlabel("output tokens/s a GPU")
        axes.set_title(name)
        if 1 < len(drawn) <= 12:
            axes.legend(fontsize=7.5, frameon=False, labelcolor=figures.INK)
        return figures.svg(figure, f"{name} against throughput")
