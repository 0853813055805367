"""Runs an experiment: each leg on a fresh engine, interleaved; then what the legs come to, and a report.

Legs run A B B A (an ablation's and a sweep's there and back again), so that a drift of the machine hits all sides
alike. Every leg is a load test as a user would start it, with a run directory of its own beside the others. What is
done is on disk after each leg: a broken-off experiment is gone on with, not begun again.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters.run import Run
from tailgate.exits import Exit, worst
from vllm_launch.config import LaunchConfig
from vllm_launch.engine.commands import visible_gpus
from vllm_launch.engine.facts import launch_facts
from vllm_launch.engine.launch import launch
from vllm_launch.engine.metrics import Scraper
from vllm_launch.experiments.file import Experiment, Leg
from vllm_launch.experiments.load_test import Load, run
from vllm_launch.experiments.outcomes import Outcome, conclude
from vllm_launch.experiments.progress import Progress
from vllm_launch.experiments.state import Done, State, identity
from vllm_launch.variants import written


@dataclass(frozen=True)
class Result:
    """What an experiment came to. `exit_code` is the worst of the outcome's and the legs'."""

    directory: Path
    report: Path
    outcome: Outcome
    exit_code: Exit

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "directory": str(self.directory),
            "report": str(self.report),
            "exit_code": int(self.exit_code),
            self.outcome.name: self.outcome.to_dict(),
        }


def run_experiment(
    experiment: Experiment,
    results: Path,
    *,
    python: str | None = None,
    resume: Path | None = None,
    say: Callable[[str], None] = print,
) -> Result:
    """Runs every leg (those that `resume`, the directory of a broken-off experiment, lacks), and concludes.

    Writes `report.html` and the outcome as JSON beside the legs. Raises `BadInput` where it cannot go on.
    """
    state = State.open(experiment.path, identity(experiment), results, resume)
    directory = state.directory
    with state.held():
        progress = Progress(len(experiment.legs))
        try:
            codes = _run_legs(experiment, state, python, progress)
        except BaseException:
            progress.broken(f"not finished; what was measured so far is kept in {directory}")
            again = shlex.join(["experiment", str(experiment.path), "--resume", str(directory)])
            progress.broken(f"go on with: python -m vllm_launch {again}")
            raise
        runs = {leg.name: Run.load(directory / leg.name) for leg in experiment.legs}
        outcome = conclude(experiment, runs)
        kept = json.dumps(outcome.to_dict(), indent=2) + "\n"
        (directory / f"{outcome.name}.json").write_text(kept, encoding="utf-8")
        report = directory / "report.html"
        outcome.write_report(report, f"python -m vllm_launch experiment {experiment.path}")
    say(outcome.text())
    say(f"\nreport: {report}")
    return Result(directory, report, outcome, worst([outcome.exit_code, *codes]))


def _run_legs(experiment: Experiment, state: State, python: str | None, progress: Progress) -> list[Exit]:
    """Runs the legs in order; returns their exit codes. A leg that is not valid (a busy moment of this machine, mostly)
    is set aside and measured once more, until that has failed to help."""
    codes = []
    hopeful = True
    for leg in experiment.legs:
        progress.step(leg_title(experiment, leg))
        done = state.done(leg)
        if done:
            progress.done(f"{done.outcome} (measured before)")
            codes.append(done.code)
            continue
        state.set_aside(leg.name, "broken-off")
        code, outcome = _run_leg(experiment, leg, state.directory, python, progress)
        if code == Exit.NOT_VALID and hopeful:
            progress.note(f"{outcome}; measuring it once more")
            state.set_aside(leg.name, "not-valid")
            code, outcome = _run_leg(experiment, leg, state.directory, python, progress)
            hopeful = code != Exit.NOT_VALID
        state.finish(leg, Done(code, outcome))
        progress.done(outcome)
        codes.append(code)
    return codes


def leg_title(experiment: Experiment, leg: Leg) -> str:
    """How a leg is called while it runs."""
    if experiment.kind == "compare":
        return f"{leg.side} {leg.config.name}"
    return f"{leg.side}, {leg.load}" if experiment.kind == "sweep" else leg.side


def _run_leg(
    experiment: Experiment, leg: Leg, directory: Path, python: str | None, progress: Progress
) -> tuple[Exit, str]:
    """Runs one leg on a fresh engine; its exit code, and what came of it in a line."""
    file = experiment.file
    arm = next(arm for arm in experiment.arms if arm.name == leg.side)
    load = Load(
        workload=experiment.workload,
        users=leg.users,
        request_rate=leg.request_rate,
        run_time_s=file.run_time,
        warm_up_s=file.warm_up,
        seed=leg.seed,
        workers=file.workers,
        slo=file.slo,
    )
    config = written(leg.config, arm.changes, directory / "configs")
    return measure(config, file.engine, load, directory / leg.name, python, progress)


def measure(
    config: LaunchConfig, engine_kind: str, load: Load, results: Path, python: str | None, progress: Progress
) -> tuple[Exit, str]:
    """One load test on a fresh engine, its run in `results` and its logs in `logs` beside it: the exit code, and what
    came of it in a line."""
    logs = results.parent / "logs"

    def starting(text: str) -> None:
        progress.show(0.0, text)

    with (
        launch(config, engine_kind, log=logs / f"{results.name}-engine.log", python=python, say=starting) as engine,
        Scraper(engine.url, results / "engine.jsonl", gpus=visible_gpus(config, engine_kind)) as scraper,
    ):
        about = logs / f"{results.name}-launch.json"
        about.write_text(json.dumps(launch_facts(config, engine_kind, engine), indent=2) + "\n", encoding="utf-8")

        def tick(elapsed_s: float) -> None:
            share = elapsed_s / (load.run_time_s + 4.0)
            engine.check()
            at = f"{min(elapsed_s, load.run_time_s):4.0f}/{load.run_time_s:g} s"
            progress.show(share, f"{at}  {_state(scraper.latest)}")

        env = {"TAILGATE_LAUNCH_CONFIG": str(about)}
        code = run(load, engine.url, config.name, results, logs=logs, env=env, tick=tick)
        engine.check()
    summary = json.loads((results / "summary.json").read_text(encoding="utf-8"))
    requests = summary["requests"]
    trouble = "; NOT VALID: " + "; ".join(summary["quality"]["reasons"]) if code == Exit.NOT_VALID else ""
    return code, f"{requests['ok']} ok, {requests['failed']} failed, {requests['cancelled']} cancelled{trouble}"


def _state(sample: dict[str, Any]) -> str:
    """The engine's last sample in a few words."""
    if "running" not in sample:
        return ""
    share = sample.get("kv_cache_usage", 0.0)
    return f"running {sample['running']:.0f}, waiting {sample.get('waiting', 0):.0f}, KV cache {share:.0%}"
