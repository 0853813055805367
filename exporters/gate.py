"""What a gate's thresholds came to: bounds on the run itself, and the verdicts of the metrics that decide.

A bound on several runs (repeats) is held against the worst of them: quantiles of runs are never averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from exporters.facts import Facts
from exporters.quantiles import enough
from exporters.run import Run
from tailgate.exits import Exit
from tailgate.objectives import Objective
from tailgate.thresholds import FLOORS, Floor, Gate, parse_gate

if TYPE_CHECKING:
    from exporters.comparable import Comparable
    from exporters.compare import Comparison, MetricComparison

Outcome = Literal["passed", "failed", "undecided", "too few", "not looked at"]
_OUTCOMES: dict[str, Outcome] = {
    "better": "passed",
    "same": "passed",
    "worse": "failed",
    "undecided": "undecided",
    "too few": "too few",
}


@dataclass(frozen=True)
class Held:
    """A bound, and what the run (of several the worst) reached; `met` is None where that cannot be told."""

    bound: Objective | Floor
    value: float | None
    met: bool | None
    note: str = ""

    @property
    def text(self) -> str:
        return self.bound.text

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "value": self.value, "limit": self.bound.limit, "met": self.met, "note": self.note}


@dataclass(frozen=True)
class Decision:
    """One thing that a gate looked at: `title` names it, `said` gives the figures in words."""

    title: str
    outcome: Outcome
    said: str


def hold(gate: Gate, runs: Sequence[Comparable]) -> list[Held]:
    """The gate's bounds held against `runs`."""
    return [_held(bound, [_reached(bound, run) for run in runs]) for bound in gate.bounds]


def gate_of(facts: Facts) -> Gate | None:
    """The gate in the run's workload, where it has one."""
    workload = facts.meta.get("workload")
    text = workload.get("gate") if isinstance(workload, Mapping) else None
    return parse_gate(str(text), f"workload {facts.workload}: gate") if text else None


def exit_codes(held: Sequence[Held]) -> list[Exit]:
    """3 where a bound is broken, 4 where one cannot be told."""
    codes = {True: Exit.GOOD, False: Exit.REGRESSION, None: Exit.NOT_VALID}
    return [codes[one.met] for one in held]


def decisions(comparison: Comparison) -> list[Decision]:
    """Everything the gate looked at, bounds first; one that failed comes before one that passed."""
    from exporters import wording

    found = [decision_of(one) for one in comparison.held]
    for figure in comparison.gated:
        named = f" ({figure.threshold})" if figure.limit is not None else ""
        found.append(
            Decision(f"{wording.title(figure.name)}{named}", _OUTCOMES[figure.verdict], _figures(figure, comparison))
        )
    found += [Decision(wording.title(name), "too few", "was not measured on both sides") for name in comparison.missing]
    return sorted(found, key=lambda d: d.outcome != "failed")


def decisions_alone(gate: Gate, runs: Sequence[Comparable]) -> list[Decision]:
    """The gate where there is no baseline: its bounds on `runs`, then the changes that nobody can look at."""
    found = [decision_of(one) for one in hold(gate, runs)]
    found += [Decision(change.text, "not looked at", "for want of a baseline") for change in gate.changes]
    return found


def decision_of(held: Held) -> Decision:
    """A bound as a decision."""
    outcome: Outcome = "too few" if held.met is None else "passed" if held.met else "failed"
    said = held.note if held.value is None else f"reached {_amount(held.bound, held.value)}"
    return Decision(held.text, outcome, said)


def _figures(figure: MetricComparison, comparison: Comparison) -> str:
    from exporters import wording

    if figure.base is None or figure.candidate is None:
        return figure.note or "too few observations"
    values = f"{wording.amount(figure, figure.base)} → {wording.amount(figure, figure.candidate)}"
    parts = [text for text in (wording.change(figure), wording.interval(figure)) if text]
    said = f"{values} ({', '.join(parts)})" if parts else values
    return f"{figure.verdict}: {said}{f'; {figure.note}' if figure.note else ''}"


def _held(bound: Objective | Floor, reached: Sequence[float | str]) -> Held:
    unknown = next((word for word in reached if isinstance(word, str)), None)
    values = [value for value in reached if not isinstance(value, str)]
    if unknown is not None or not values:
        return Held(bound, None, None, unknown or "no run")
    value = min(values) if isinstance(bound, Floor) else max(values)
    return Held(bound, value, value > bound.limit if isinstance(bound, Floor) else value < bound.limit)


def _reached(bound: Objective | Floor, run: Comparable) -> float | str:
    """The value that a run reached, or why there is none."""
    summary = run.summary
    if isinstance(bound, Floor):
        return _of_floor(bound.name, summary)
    if bound.metric == "error_share":
        requests = summary["requests"]
        return float(requests["failed"] / requests["sent"]) if requests["sent"] else "nothing was sent"
    metric, level = f"{bound.metric}_s", bound.quantile
    found = summary["metrics"].get(metric) or {"count": 0}
    count = int(found["count"])
    if not count:
        return "was not measured"
    if level is not None and not enough(count, level):
        return f"{count} observations, at least {round(10 / (1 - level))} are needed"
    value = found.get(bound.statistic)
    if value is None and level is not None and isinstance(run, Run):
        value = np.quantile(run.columns.values(metric, run.columns.in_window), level)
    return float(value) if value is not None else "a stored baseline does not keep it"


def _of_floor(name: str, summary: Mapping[str, Any]) -> float | str:
    if name in ("throughput", "requests_per_s"):
        return float(summary["throughput"]["output_tokens_per_s" if name == "throughput" else "requests_per_s"])
    goodput = summary.get("goodput") or {}
    value = goodput.get("share" if name == "goodput_share" else "requests_per_s")
    return "the run has no objectives (--slo)" if value is None else float(value)


def _amount(bound: Objective | Floor, value: float) -> str:
    from exporters.wording import milliseconds

    if isinstance(bound, Floor):
        return f"{value:.2%}" if FLOORS[bound.name] == "share" else f"{value:,.4g} {FLOORS[bound.name]}"
    return f"{value:.2%}" if bound.metric == "error_share" else f"{milliseconds(value)} ms"
