"""Runs an experiment: each leg on a fresh engine, interleaved; then the comparison, the report and the verdict.

Legs run A B B A, so that a drift of the machine hits both sides alike. Every leg is a load test as a user would start
it, with a run directory of its own beside the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from exporters.compare import Comparison, compare
from exporters.report import write_report
from exporters.run_store import Run
from tailgate.exits import Exit, worst
from vllm_launch.engine_metrics import Scraper
from vllm_launch.experiment_file import Experiment, Leg
from vllm_launch.launch import launch
from vllm_launch.launch_facts import launch_facts
from vllm_launch.load_test import Load, run
from vllm_launch.progress import Progress


@dataclass(frozen=True)
class Result:
    """What an experiment came to. `exit_code` is the worst of the comparison's and the legs'."""

    directory: Path
    report: Path
    comparison: Comparison
    exit_code: Exit

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "directory": str(self.directory),
            "report": str(self.report),
            "exit_code": int(self.exit_code),
            "comparison": self.comparison.to_dict(),
        }


def run_experiment(
    experiment: Experiment, results: Path, *, python: str | None = None, say: Callable[[str], None] = print
) -> Result:
    """Runs every leg, compares, writes `report.html` and `comparison.json`. Raises `BadInput` where it cannot go on."""
    directory = results / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{experiment.name}"
    directory.mkdir(parents=True)
    legs = experiment.legs
    progress = Progress(len(legs))
    try:
        codes = _run_legs(experiment, directory, python, progress)
    except BaseException:
        progress.broken(f"not finished; what was measured so far is kept in {directory}")
        raise
    sides = {side: [directory / leg.name for leg in legs if leg.side == side] for side in ("A", "B")}
    base, candidate = ([Run.load(path) for path in sides[side]] for side in ("A", "B"))
    comparison = compare(base, candidate, margin=experiment.file.margin, gate=experiment.file.gate)
    (directory / "comparison.json").write_text(json.dumps(comparison.to_dict(), indent=2) + "\n", encoding="utf-8")
    report = directory / "report.html"
    write_report(report, base, candidate, comparison, f"python -m vllm_launch experiment {experiment.path}")
    say(comparison.text())
    if comparison.refused:
        named = [f"{option} {' '.join(map(str, sides[side]))}" for option, side in (("--base", "A"), ("--run", "B"))]
        say(f"\nto compare all the same: python -m exporters compare {' '.join(named)} --force")
    say(f"\nreport: {report}")
    return Result(directory, report, comparison, worst([comparison.exit_code, *codes]))


def _run_legs(experiment: Experiment, directory: Path, python: str | None, progress: Progress) -> list[Exit]:
    """Runs the legs in order; returns their exit codes. A leg that is not valid (a busy moment of this machine, mostly)
    is set aside and measured once more, until that has failed to help."""
    codes = []
    hopeful = True
    for leg in experiment.legs:
        progress.step(f"{leg.side} {leg.config.name}")
        code, outcome = _run_leg(experiment, leg, directory, python, progress)
        if code == Exit.NOT_VALID and hopeful:
            progress.note(f"{outcome}; measuring it once more")
            (directory / leg.name).rename(directory / f"{leg.name}-not-valid")
            code, outcome = _run_leg(experiment, leg, directory, python, progress)
            hopeful = code != Exit.NOT_VALID
        progress.done(outcome)
        codes.append(code)
    return codes


def _run_leg(
    experiment: Experiment, leg: Leg, directory: Path, python: str | None, progress: Progress
) -> tuple[Exit, str]:
    """Runs one leg on a fresh engine; its exit code, and what came of it in a line."""
    file = experiment.file
    logs = directory / "logs"
    load = Load(
        workload=experiment.workload,
        users=file.users,
        request_rate=file.request_rate,
        run_time_s=file.run_time,
        warm_up_s=file.warm_up,
        seed=leg.seed,
        workers=file.workers,
    )

    def starting(text: str) -> None:
        progress.show(0.0, text)

    with (
        launch(leg.config, file.engine, log=logs / f"{leg.name}-engine.log", python=python, say=starting) as engine,
        Scraper(engine.url, directory / leg.name / "engine.jsonl") as scraper,
    ):
        about = logs / f"{leg.name}-launch.json"
        about.write_text(json.dumps(launch_facts(leg.config, file.engine, engine), indent=2) + "\n", encoding="utf-8")

        def tick(elapsed_s: float) -> None:
            share = elapsed_s / (file.run_time + 4.0)
            engine.check()
            progress.show(share, f"{min(elapsed_s, file.run_time):4.0f}/{file.run_time:g} s  {_state(scraper.latest)}")

        code = run(
            load,
            engine.url,
            leg.config.name,
            directory / leg.name,
            logs=logs,
            env={"TAILGATE_LAUNCH_CONFIG": str(about)},
            tick=tick,
        )
        engine.check()
    summary = json.loads((directory / leg.name / "summary.json").read_text(encoding="utf-8"))
    requests = summary["requests"]
    trouble = "; NOT VALID: " + "; ".join(summary["quality"]["reasons"]) if code == Exit.NOT_VALID else ""
    return code, f"{requests['ok']} ok, {requests['failed']} failed, {requests['cancelled']} cancelled{trouble}"


def _state(sample: dict[str, Any]) -> str:
    """The engine's last sample in a few words."""
    if "running" not in sample:
        return ""
    share = sample.get("kv_cache_usage", 0.0)
    return f"running {sample['running']:.0f}, waiting {sample.get('waiting', 0):.0f}, KV cache {share:.0%}"
