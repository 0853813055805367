"""A sweep's outcome: every point of the grid, the latency-throughput curve of each config, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exporters import wording
from exporters.quantiles import enough
from exporters.run import Run
from tailgate.exits import Exit
from vllm_launch.experiments.cost import dollars_text, gpus, output_tokens_per_s, per_million
from vllm_launch.experiments.file import Experiment, SweepFile
from vllm_launch.experiments.page import Series, Table, curve_plot, write_page
from vllm_launch.text_table import table

SWEEP_SCHEMA = "tailgate.sweep/1"
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Point:
    """One config under one load, all its rounds together. Latencies in seconds; None where there are too few."""

    config: str
    changes: Mapping[str, Any]
    users: int | None
    request_rate: float | None
    load: str
    requests_per_s: float
    output_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    latencies: Mapping[str, float | None]
    goodput_share: float | None
    failed: int
    invalid: tuple[str, ...]
    dollars_per_million: float | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "config": self.config,
            "changes": dict(self.changes),
            "users": self.users,
            "request_rate": self.request_rate,
            "requests_per_s": self.requests_per_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "output_tokens_per_s_per_gpu": self.output_tokens_per_s_per_gpu,
            **{f"{name}_s": value for name, value in self.latencies.items()},
            "goodput_share": self.goodput_share,
            "failed": self.failed,
            "invalid": list(self.invalid),
            "dollars_per_million_output_tokens": self.dollars_per_million,
        }


def pareto(points: Sequence[Point], metric: str) -> list[Point]:
    """The points that no other one beats in both output tokens/s a GPU and the latency `metric` (valid ones only)."""
    able = [p for p in points if not p.invalid and p.latencies.get(metric) is not None]
    ordered = sorted(able, key=lambda p: (-p.output_tokens_per_s_per_gpu, p.latencies[metric] or 0.0))
    front: list[Point] = []
    for point in ordered:
        if not front or (point.latencies[metric] or 0.0) < (front[-1].latencies[metric] or 0.0):
            front.append(point)
    return front


@dataclass(frozen=True)
class Sweep:
    """Every point, in the order of the grid. `metrics` are the latencies each has; a front is drawn for each."""

    name_of_file: str
    baseline: str
    points: list[Point]
    metrics: list[str]
    simulated: bool
    priced: bool

    name = "sweep"

    @property
    def exit_code(self) -> Exit:
        """4 where a point is not valid, else 1 where requests failed, else 0."""
        if any(p.invalid for p in self.points):
            return Exit.NOT_VALID
        return Exit.REQUESTS_FAILED if any(p.failed for p in self.points) else Exit.GOOD

    def to_dict(self) -> dict[str, Any]:
        fronts = {m: [(p.config, p.load) for p in pareto(self.points, m)] for m in self.metrics}
        return {
            "schema": SWEEP_SCHEMA,
            "simulated": self.simulated,
            "baseline": self.baseline,
            "points": [
                p.to_dict() | {"pareto": [m for m, front in fronts.items() if (p.config, p.load) in front]}
                for p in self.points
            ],
        }

    @property
    def head(self) -> list[str]:
        """The table's columns."""
        fixed = ["config", "load", "req/s", "tok/s", *(wording.title(m) for m in self.metrics), "goodput"]
        return [*fixed, *(["$ a million tokens"] if self.priced else []), "front"]

    @property
    def rows(self) -> list[list[str]]:
        """A line for each point."""
        fronts = {m: pareto(self.points, m) for m in self.metrics}
        rows = []
        for p in self.points:
            latencies = [_ms(p.latencies[m]) for m in self.metrics]
            goodput = "" if p.goodput_share is None else f"{p.goodput_share:.1%}"
            cost = [dollars_text(p.dollars_per_million)] if self.priced else []
            on = [wording.title(m) for m, front in fronts.items() if p in front]
            said = "NOT VALID" if p.invalid else "all" if len(on) == len(fronts) > 1 else ", ".join(on)
            rates = [f"{p.requests_per_s:.2f}", f"{p.output_tokens_per_s:,.0f}"]
            rows.append([p.config, p.load, *rates, *latencies, goodput, *cost, said])
        return rows

    @property
    def foot(self) -> str:
        """What the last column means."""
        return (
            "front: no other point has both more tokens/s (a GPU) and less of that latency; differences of a few "
            "percent are within the noise of a run each"
        )

    def text(self) -> str:
        lines = ["SIMULATED: these figures come from the embedded engine, not from a GPU."] if self.simulated else []
        lines += [*table(self.head, self.rows), "", self.foot]
        lines += [f"{p.config} at {p.load} is not valid: {'; '.join(p.invalid)}" for p in self.points if p.invalid]
        return "\n".join(lines)

    def write_report(self, path: Path, command: str) -> None:
        plots = [plot for m in self.metrics if (plot := self._plot(m))]
        write_page(
            path,
            kicker="Tailgate sweep",
            title=f"{self.name_of_file}: latency against throughput",
            simulated=self.simulated,
            tables=[Table("Every point", self.head, self.rows, self.foot)],
            plots=plots,
            warnings=[f"{p.config} at {p.load} is not valid: {'; '.join(p.invalid)}" for p in self.points if p.invalid],
            command=command,
        )

    def _plot(self, metric: str) -> str | None:
        names = list(dict.fromkeys(p.config for p in self.points))
        series = [
            Series(
                name,
                [
                    (p.output_tokens_per_s_per_gpu, (p.latencies[metric] or 0.0) * 1e3)
                    for p in self.points
                    if p.config == name and p.latencies[metric] is not None
                ],
            )
            for name in names
        ]
        front = [
            (p.output_tokens_per_s_per_gpu, (p.latencies[metric] or 0.0) * 1e3) for p in pareto(self.points, metric)
        ]
        return curve_plot(series, front, wording.title(metric))


def sweep_up(experiment: Experiment, file: SweepFile, runs: Mapping[str, Run]) -> Sweep:
    """Reads every point off its runs."""
    metrics = [name for name in file.gate if name.rpartition("_")[2] in _QUANTILES]
    points: list[Point] = []
    loads = list(dict.fromkeys((leg.users, leg.request_rate) for leg in experiment.legs))
    for arm in experiment.arms:
        for users, rate in loads:
            legs = [g for g in experiment.legs if (g.side, g.users, g.request_rate) == (arm.name, users, rate)]
            points.append(_point(arm.name, arm.changes, gpus(arm.config), [runs[g.name] for g in legs], legs[0], file))
    return Sweep(
        name_of_file=experiment.name,
        baseline=experiment.arms[0].config.name,
        points=points,
        metrics=metrics,
        simulated=any(run.facts.simulated for run in runs.values()),
        priced=file.gpu_hour_price is not None,
    )


def _point(name: str, changes: Mapping[str, Any], held: int, runs: list[Run], leg: Any, file: SweepFile) -> Point:
    summaries = [run.summary for run in runs]
    seconds = sum(run.window.seconds for run in runs)
    tokens_per_s = output_tokens_per_s(runs)
    sent = sum(s["requests"]["sent"] for s in summaries)
    shares = [s["goodput"]["share"] for s in summaries]
    good = (
        None
        if None in shares or not sent
        else sum(s["goodput"]["share"] * s["requests"]["sent"] for s in summaries) / sent
    )
    latencies = {m: _quantile(runs, m) for m in file.gate if m.rpartition("_")[2] in _QUANTILES}
    price = file.gpu_hour_price
    return Point(
        config=name,
        changes=changes,
        users=leg.users,
        request_rate=leg.request_rate,
        load=leg.load,
        requests_per_s=sum(s["throughput"]["requests_per_s"] * s["window"]["seconds"] for s in summaries) / seconds,
        output_tokens_per_s=tokens_per_s,
        output_tokens_per_s_per_gpu=tokens_per_s / held,
        latencies=latencies,
        goodput_share=good,
        failed=sum(s["requests"]["failed"] for s in summaries),
        invalid=tuple(reason for s in summaries for reason in s["quality"]["reasons"]),
        dollars_per_million=None if price is None else per_million(price, held, tokens_per_s),
    )


def _quantile(runs: Sequence[Run], name: str) -> float | None:
    """The quantile of all rounds' observations together; None where too few lie beyond it."""
    metric, _, level = name.rpartition("_")
    values = np.concatenate([run.columns.values(f"{metric}_s", run.columns.in_window) for run in runs])
    return float(np.quantile(values, _QUANTILES[level])) if enough(values.size, _QUANTILES[level]) else None


def _ms(seconds: float | None) -> str:
    return "too few" if seconds is None else f"{wording.milliseconds(seconds)} ms"
