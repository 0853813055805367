"""What an experiment's legs come to, by its kind: a comparison, a table of effects, or a curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from exporters.compare import Comparison, compare
from exporters.report import write_report
from exporters.run import Run
from tailgate.exits import Exit
from vllm_launch.experiments.ablation import ablate
from vllm_launch.experiments.cost import cost_lines
from vllm_launch.experiments.file import AblationFile, CompareFile, Experiment
from vllm_launch.experiments.sweep import sweep_up


class Outcome(Protocol):
    """A finished experiment's answer."""

    @property
    def name(self) -> str:
        """Of the JSON file it is kept in, and of its key in what `--json` prints."""

    @property
    def exit_code(self) -> Exit: ...

    def to_dict(self) -> dict[str, Any]: ...

    def text(self) -> str:
        """For the screen."""

    def write_report(self, path: Path, command: str) -> None:
        """Writes the HTML report; `command` repeats the experiment."""


def conclude(experiment: Experiment, runs: Mapping[str, Run]) -> Outcome:
    """The outcome of an experiment whose legs' `runs` are all there, by name. Raises `BadInput`."""
    if isinstance(experiment.file, CompareFile):
        return Compared.of(experiment, experiment.file, runs)
    if isinstance(experiment.file, AblationFile):
        return ablate(experiment, experiment.file, runs)
    return sweep_up(experiment, experiment.file, runs)


@dataclass(frozen=True)
class Compared:
    """Two sides: the verdict of `exporters.compare`, and what either side's tokens cost."""

    base: list[Run]
    candidate: list[Run]
    comparison: Comparison
    costs: list[str]

    name = "comparison"

    @classmethod
    def of(cls, experiment: Experiment, file: CompareFile, runs: Mapping[str, Run]) -> Compared:
        """Compares the runs of both sides."""
        base, candidate = ([runs[leg.name] for leg in experiment.legs if leg.side == side] for side in "AB")
        costs = cost_lines([(arm.config, base if arm.name == "A" else candidate) for arm in experiment.arms], file)
        return cls(base, candidate, compare(base, candidate, margin=file.margin, gate=file.gate), costs)

    @property
    def exit_code(self) -> Exit:
        return self.comparison.exit_code

    def to_dict(self) -> dict[str, Any]:
        return {**self.comparison.to_dict(), **({"cost": self.costs} if self.costs else {})}

    def text(self) -> str:
        lines = [self.comparison.text(), *self.costs]
        if self.comparison.refused:
            sides = (("--base", self.base), ("--run", self.candidate))
            named = [f"{option} {' '.join(str(run.path) for run in side)}" for option, side in sides]
            lines.append(f"\nto compare all the same: python -m exporters compare {' '.join(named)} --force")
        return "\n".join(lines)

    def write_report(self, path: Path, command: str) -> None:
        write_report(path, self.base, self.candidate, self.comparison, command)
