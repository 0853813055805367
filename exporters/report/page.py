"""What stands on the page: facts, figures and plots, brought into the order the template shows them in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from exporters import wording
from exporters.compare import CONFIDENCE, Comparison, Measurement, MetricComparison
from exporters.explain import explain, trial_text
from exporters.facts import Facts
from exporters.gate import Decision, decisions, decisions_alone
from exporters.quantiles import LEVELS
from exporters.report import alone, figures
from exporters.report.differences import config_differences
from exporters.report.frame import templates
from exporters.report.offered import offered_plot
from exporters.run import Run
from exporters.tables import TITLES, engine_text, said_of_sending
from tailgate.thresholds import Gate

_HERE = Path(__file__).parent
_SCALE = 2.0
_COLOURS = {"baseline": figures.BASE, "candidate": figures.CANDIDATE}
SYMBOLS = {"better": "▲", "worse": "▼", "same": "=", "undecided": "?", "too few": "–"}


@dataclass(frozen=True)
class Side:
    """The runs of one side, under the name the page gives it; those of a stored baseline are only `measured`."""

    name: str
    measured: Sequence[Run | Measurement]

    @property
    def runs(self) -> list[Run]:
        return [run for run in self.measured if isinstance(run, Run)]

    @property
    def facts(self) -> Facts:
        return self.measured[0].facts


def render(
    base: Sequence[Run | Measurement],
    candidate: Sequence[Run],
    comparison: Comparison | None,
    command: str | None = None,
    gate: Gate | None = None,
) -> str:
    """The whole page. Of a stored baseline it shows what the file holds: figures and distributions."""
    sides = [Side(name, side) for name, side in (("baseline", base), ("candidate", candidate)) if side]
    curves = [figures.Curve(side.measured, _COLOURS[side.name]) for side in sides]
    runs = [run for side in sides for run in side.runs]
    environment = templates(_HERE)
    environment.filters |= {"trial": trial_text, "ms": _ms, "utc": lambda text: str(text)[:19].replace("T", " ")}
    return environment.get_template("page.html").render(
        title=_title(runs, comparison),
        simulated=any(run.facts.simulated for run in runs),
        comparison=comparison,
        sentence=wording.headline(comparison) if comparison else None,
        aside=wording.aside(comparison) if comparison else None,
        alone=[] if comparison else [(run, alone.word(run, gate), alone.sentence(run)) for run in runs],
        invalid=[(run.facts.label, run.path.name, run.summary["quality"]["reasons"]) for run in runs if not run.valid],
        cards=_cards(comparison),
        thresholds=_thresholds(comparison) if comparison else decisions_alone(gate, runs) if gate else [],
        groups=_groups(comparison),
        confidence=f"{CONFIDENCE:.0%}",
        band=_band(comparison.margin) if comparison else None,
        sides=sides,
        plots=_plots(curves),
        timeline=_markup(figures.time_plot(curves)),
        offered=_markup(offered_plot(curves)),
        differences=config_differences(*(side.facts for side in sides)) if len(sides) > 1 else [],
        launches=[(side.name, side.facts.launch) for side in sides],
        runs=[_run(side.name, run) for side in sides for run in side.runs],
        most_workers=max(len(run.facts.workers) for run in runs),
        summaries=[(run, _metrics(run.summary["metrics"])) for run in runs] if len(sides) == 1 else [],
        explained=[(side, run, explain(run)) for side in sides for run in side.runs[:1]],
        classes=_classes(sides),
        levels=["p99.9" if name == "p999" else name for name in LEVELS],
        commands=_commands(runs, command),
        facts=runs[0].facts,
        observed=any(run.engine for run in runs),
        symbols=SYMBOLS,
    )


def _title(runs: list[Run], comparison: Comparison | None) -> str:
    if comparison:
        return f"{comparison.candidate_label} against {comparison.base_label}"
    return runs[0].facts.label


def _cards(comparison: Comparison | None) -> list[dict[str, Any]]:
    """Every gated figure that is worse; up to four in all with what was won, what else decides, what moved beside."""
    if comparison is None:
        return []
    gated = sorted(comparison.gated, key=lambda m: {"worse": 0, "better": 1}.get(m.verdict, 2))
    beside = [m for verdict in ("worse", "better") for m in wording.moved_beside(comparison, verdict)]
    worse = sum(m.verdict == "worse" for m in gated)
    return [_row(m) | {"gated": m.gated} for m in (*gated, *beside)][: max(4, worse)]


def _thresholds(comparison: Comparison) -> list[Decision]:
    """What the gate asks of the candidate itself, and of figures with a limit of their own or not measured."""
    if comparison.refused:
        return []
    plain = {wording.title(m.name) for m in comparison.gated if m.limit is None}
    return [one for one in decisions(comparison) if one.title not in plain]


def _groups(comparison: Comparison | None) -> list[tuple[str, list[dict[str, Any]]]]:
    if comparison is None or comparison.refused:
        return []
    gated = [_row(m) for m in comparison.metrics if m.gated]
    others = [_row(m) for m in comparison.metrics if not m.gated]
    return [(name, rows) for name, rows in (("These decide", gated), ("For information", others)) if rows]


def _row(figure: MetricComparison) -> dict[str, Any]:
    return {
        "title": wording.title(figure.name),
        "base": wording.amount(figure, figure.base),
        "candidate": wording.amount(figure, figure.candidate),
        "change": wording.change(figure) or "–",
        "interval": wording.interval(figure),
        "verdict": figure.verdict,
        "note": figure.note,
        "bar": _bar(figure),
    }


def _bar(figure: MetricComparison) -> dict[str, Any] | None:
    """The interval on a scale from half to double (0 to 100), and whether it runs off either end."""
    if figure.low is None or figure.high is None or figure.ratio is None or figure.is_difference:
        return None
    low, at, high = (_position(x) for x in (figure.low, figure.ratio, figure.high))
    ends = [min(max(x, 0.0), 100.0) for x in (low, high)]
    return {"low": ends[0], "high": ends[1], "at": min(max(at, 1.0), 99.0), "off_low": low < 0, "off_high": high > 100}


def _position(ratio: float) -> float:
    return 50 + 50 * math.log(max(ratio, 1e-9)) / math.log(_SCALE)


def _band(margin: float) -> tuple[float, float]:
    return _position(1 / (1 + margin)), _position(1 + margin)


def _plots(curves: Sequence[figures.Curve]) -> list[tuple[str, list[Markup]]]:
    groups = []
    for metric, name in (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("e2e_s", "E2E")):
        kinds = (figures.quantile_plot, figures.distribution_plot)
        drawn = [_markup(svg) for kind in kinds if (svg := kind(curves, metric, name))]
        if drawn:
            groups.append((name, [svg for svg in drawn if svg]))
    return groups


def _markup(svg: str | None) -> Markup | None:
    """Trusted: our plots hold no text but our own."""
    return Markup(svg) if svg else None


def _metrics(metrics: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"title": TITLES[name], **found} for name, found in metrics.items() if found["count"]]


def _run(side: str, run: Run) -> dict[str, Any]:
    facts, summary = run.facts, run.summary
    return {
        "side": side,
        "name": run.path.name,
        "label": facts.label,
        "summary": summary,
        "workers": [(name, worker) for name, worker in facts.workers.items()],
        "engine": " ".join(filter(None, (facts.engine, facts.engine_version))) or "unknown",
        "seed": facts.seed,
        "unreadable": len(run.unreadable_lines),
        "checks": _checks(summary["quality"]),
        "engine_own": engine_text(summary.get("engine"), summary["metrics"]),
    }


def _checks(quality: Mapping[str, Any]) -> str:
    """What else the client measured of itself."""
    found = []
    if quality["coalesced_share"] is not None:
        found.append(f"{quality['coalesced_share']:.2%} of the events shared a read with another")
    if quality["send_lag_p99_s"] is not None:
        found.append(f"send lag p99 {wording.milliseconds(quality['send_lag_p99_s'])} ms")
    if quality["rate_requested"] and quality["rate_achieved"] is not None:
        found.append(
            f"{quality['rate_achieved']:.4g} of {quality['rate_requested']:.4g} requests/s asked for were sent"
        )
    return "; ".join([*found, *said_of_sending(quality)])


def _classes(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Each class's TTFT and ITL p95 for every run, where there are several classes."""
    names = sorted({name for side in sides for run in side.runs for name in run.summary["classes"]})
    if len(names) < 2:
        return []
    return [
        {
            "name": name,
            "runs": [
                (side.name, run.path.name, run.summary["classes"][name])
                for side in sides
                for run in side.runs
                if name in run.summary["classes"]
            ],
        }
        for name in names
    ]


def _commands(runs: Sequence[Run], command: str | None) -> list[str]:
    if command:
        return [command]
    return list(dict.fromkeys(c for run in runs if (c := run.facts.command)))


def _ms(seconds: float | None) -> str:
    return "too few" if seconds is None else wording.milliseconds(seconds)
