"""An ablation on real vLLM on this machine's CPU, and what the embedded engine foretold of it.

    python -m benchmarks.ablation_prediction [DIR]

DIR is a finished ablation's directory; without one the experiment `ablation-vllm` is run first (six minutes). The
embedded engine's step times are fitted on the baseline's runs alone; every other arm is then foretold in virtual time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from exporters import wording
from exporters.compare import MetricComparison, compare
from exporters.run import Run
from tailgate.exits import run_command
from vllm_launch.engine import embedded
from vllm_launch.engine.commands import simulated_flags
from vllm_launch.experiments.ablation import ablate
from vllm_launch.experiments.file import AblationFile, Experiment, load_experiment
from vllm_launch.experiments.plan import require_runnable
from vllm_launch.experiments.run import run_experiment
from vllm_launch.search.virtual_run import VirtualLoad, virtual_run
from vllm_launch.simulated.settings import EngineSettings
from workloads import load_workload

EXPERIMENT = "ablation-vllm"
_RUN_S = 60.0
_SEEDS = (1, 2)


def main(directory: Path | None = None) -> None:
    """Prints each flag's effect as measured and as foretold, and whether the signs agree."""
    experiment = load_experiment(EXPERIMENT)
    assert isinstance(experiment.file, AblationFile)
    if directory is None:
        require_runnable(experiment)
        with tempfile.TemporaryDirectory() as folder:
            result = run_experiment(experiment, Path(folder))
            _print(experiment, experiment.file, result.directory)
    else:
        _print(experiment, experiment.file, directory)


def _print(experiment: Experiment, file: AblationFile, directory: Path) -> None:
    runs = {leg.name: Run.load(directory / leg.name) for leg in experiment.legs}
    measured = ablate(experiment, file, runs)
    foretold = _foretell(experiment, file, runs)
    print(f"\nreal vLLM on CPU, {file.workload}, {file.users} users; {measured.family} figures judged together")
    print(f"{'change':<40}{'figure':<10}{'measured (simultaneous 95 % interval)':<44}{'foretold':<12}sign")
    agreed = total = sure = 0
    for effect in measured.effects:
        for figure in effect.comparison.gated:
            other = foretold[effect.arm.name].get(figure.name)
            if figure.ratio is None or figure.low is None or figure.high is None or other is None or not other.ratio:
                continue
            excludes = figure.low > 1 or figure.high < 1
            same = (figure.ratio > 1) == (other.ratio > 1)
            total, sure, agreed = total + 1, sure + excludes, agreed + (excludes and same)
            what = "all together" if len(effect.arm.changes) > 1 else "; ".join(effect.change)
            told = f"{wording.change(figure)} ({wording.interval(figure)})"
            sign = ("agrees" if same else "DIFFERS") if excludes else "measured: may be none"
            print(f"{what:<40}{wording.title(figure.name):<10}{told:<44}{wording.change(other):<12}{sign}")
    print(f"{sure} of {total} measured effects exclude none; the sign of {agreed} of these {sure} was foretold")


def _foretell(
    experiment: Experiment, file: AblationFile, runs: Mapping[str, Run]
) -> dict[str, Mapping[str, MetricComparison]]:
    """Each arm's effect in virtual time, on step times fitted on the baseline's runs alone."""
    baseline, *others = experiment.arms
    of_baseline = [runs[leg.name] for leg in experiment.legs if leg.side == baseline.name]
    fitted = embedded.fitted(of_baseline)
    step, sequence = 1e3 * fitted.overhead.per_step_s, 1e6 * fitted.overhead.per_sequence_s
    print(
        f"fitted on {len(of_baseline)} baseline runs: {step:.2f} ms a step, {sequence:.0f} us a sequence, "
        f"{1e6 * fitted.per_token_s:.0f} us a prompt token, {1e3 * fitted.overhead.per_request_s:.0f} ms a request"
    )
    workload = load_workload(experiment.workload)

    def side(arm_flags: dict[str, object], name: str) -> list[Run]:
        settings, _ = EngineSettings.from_fitted(fitted, arm_flags)
        loads = [VirtualLoad(file.users, file.request_rate, _RUN_S, file.warm_up, seed) for seed in _SEEDS]
        return [virtual_run(settings, workload, load, slo=file.slo, label=name) for load in loads]

    base = side(simulated_flags(baseline.config), baseline.name)
    found: dict[str, Mapping[str, MetricComparison]] = {}
    for arm in others:
        comparison = compare(list(base), side(simulated_flags(arm.config), arm.name), gate=file.gate)
        found[arm.name] = {figure.name: figure for figure in comparison.gated}
    return found


def _command() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation_prediction", description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, metavar="DIR", help="a finished ablation's directory")
    main(parser.parse_args().directory)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(_command, "ablation_prediction"))
