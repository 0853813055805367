"""An ablation's outcome: what each changed flag does alone, and all of them together, against one baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters import wording
from exporters.compare import CONFIDENCE, FAMILY_LEVEL, Comparison, MetricComparison, compare
from exporters.run import Run
from exporters.together import judge_together
from tailgate.exits import Exit
from vllm_launch import effect
from vllm_launch.experiments.cost import cost_lines
from vllm_launch.experiments.file import TOGETHER, AblationFile, Arm, Experiment
from vllm_launch.experiments.page import Table, write_page
from vllm_launch.text_table import table

ABLATION_SCHEMA = "tailgate.ablation/1"


@dataclass(frozen=True)
class Effect:
    """One arm against the baseline. `change` says what was changed, `comparison` what it did."""

    arm: Arm
    change: list[str]
    comparison: Comparison


@dataclass(frozen=True)
class Ablation:
    """Every effect. `family` is how many figures were looked at together, and corrected for."""

    baseline: str
    effects: list[Effect]
    gate: list[str]
    family: int
    simulated: bool
    costs: list[str]

    name = "ablation"

    @property
    def exit_code(self) -> Exit:
        """4 where a comparison was refused. What a flag makes worse is a finding here, no regression."""
        return Exit.NOT_VALID if any(e.comparison.refused for e in self.effects) else Exit.GOOD

    def expected_together(self, metric: str) -> float | None:
        """The ratio that all changes would have if each did what it does alone, whatever the others do."""
        alone = [_figure(e, metric) for e in self.effects if e.arm.name != TOGETHER]
        ratios = [f.ratio for f in alone if f is not None and f.ratio and not f.is_difference]
        return math.prod(ratios) if len(ratios) == len(alone) else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": ABLATION_SCHEMA,
            "simulated": self.simulated,
            "baseline": self.baseline,
            "gate": self.gate,
            "family": self.family,
            "confidence": CONFIDENCE,
            "family_level": FAMILY_LEVEL,
            "expected_together": {name: self.expected_together(name) for name in self.gate},
            "effects": [
                {"arm": e.arm.name, "changes": e.change, "comparison": e.comparison.to_dict()} for e in self.effects
            ],
            **({"cost": self.costs} if self.costs else {}),
        }

    def text(self) -> str:
        lines = ["SIMULATED: these figures come from the embedded engine, not from a GPU."] if self.simulated else []
        lines.append(f"What each change does to {self.baseline}:")
        lines += ["", *table(self.head, self.rows), "", self.foot]
        for e in self.effects:
            if e.comparison.refused:
                lines.append(f"{e.arm.name} cannot be judged: {'; '.join(e.comparison.refusals)}")
        return "\n".join([*lines, *self.costs])

    @property
    def head(self) -> list[str]:
        """The table's columns."""
        return ["change", *(wording.title(name) for name in self.gate)]

    @property
    def rows(self) -> list[list[str]]:
        """A line for each arm; the last says what the changes would do together if they did not meet."""
        rows = []
        for e in self.effects:
            what = "all together" if e.arm.name == TOGETHER else "; ".join(e.change)
            rows.append([what, *(_said(_figure(e, name)) for name in self.gate)])
        if any(e.arm.name == TOGETHER for e in self.effects):
            expected = [self.expected_together(name) for name in self.gate]
            rows.append(["if they were independent", *("" if x is None else _percent(x) for x in expected)])
        return rows

    @property
    def foot(self) -> str:
        """What the intervals mean."""
        runs = self.effects[0].comparison.runs[0]
        repeats = f"{runs} run{'s' if runs > 1 else ''} an arm"
        return (
            f"{repeats}; in brackets the interval: all {self.family} hold the truth together with {CONFIDENCE:.0%} "
            "confidence; verdicts are corrected for as many looks"
        )

    def write_report(self, path: Path, command: str) -> None:
        write_page(
            path,
            kicker="Tailgate ablation",
            title=f"What each change does to {self.baseline}",
            simulated=self.simulated,
            tables=[Table("Effects", self.head, self.rows, self.foot)],
            warnings=[
                f"{e.arm.name} cannot be judged: {'; '.join(e.comparison.refusals)}"
                for e in self.effects
                if e.comparison.refused
            ],
            notes=self.costs,
            command=command,
        )


def ablate(experiment: Experiment, file: AblationFile, runs: Mapping[str, Run]) -> Ablation:
    """Compares every arm with the baseline, all gated figures judged together."""
    legs = experiment.legs
    of_arm = {arm.name: [runs[leg.name] for leg in legs if leg.side == arm.name] for arm in experiment.arms}
    baseline, *others = experiment.arms
    base = of_arm[baseline.name]
    effects = [
        Effect(
            arm,
            [
                f"{d.flag}: {effect.shown(d.before)} -> {effect.shown(d.after)}"
                for d in effect.differences(baseline.config, arm.config)
            ],
            compare(list(base), of_arm[arm.name], margin=file.margin, gate=file.gate),
        )
        for arm in others
    ]
    return Ablation(
        baseline=baseline.config.name,
        effects=effects,
        gate=file.gate,
        family=judge_together([e.comparison for e in effects]),
        simulated=any(run.facts.simulated for run in runs.values()),
        costs=cost_lines([(arm.config, of_arm[arm.name]) for arm in experiment.arms], file),
    )


def _figure(e: Effect, metric: str) -> MetricComparison | None:
    return next((m for m in e.comparison.metrics if m.name == metric), None)


def _said(figure: MetricComparison | None) -> str:
    if figure is None:
        return "not comparable"
    if figure.ratio is None:
        return figure.verdict
    return f"{wording.change(figure)} ({wording.interval(figure)}) {figure.verdict}"


def _percent(ratio: float) -> str:
    return f"x {ratio:.2f}" if ratio >= 2 else f"{(ratio - 1) * 100:+.1f} %"
