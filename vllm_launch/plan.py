"""What an experiment would do, and whether it can: everything that can be refused is refused before the first leg."""

from __future__ import annotations

from typing import Any

from tailgate.exits import BadInput
from vllm_launch import effect
from vllm_launch.config import LaunchConfig
from vllm_launch.engines import require_launchable, simulated_flags
from vllm_launch.experiment_file import Experiment

# Seconds that a leg takes beyond its run time: engine start, Locust's start, drain and end.
_OVERHEAD_S = {"simulated": 9.0, "vllm": 45.0, "docker": 60.0, "attach": 15.0}


def require_runnable(experiment: Experiment, python: str | None = None) -> None:
    """Raises `BadInput` where there is nothing to compare, the workload is unknown, or an engine cannot serve a side.

    `python` is as for `engines.command`.
    """
    if not effect.differences(experiment.baseline, experiment.candidate):
        raise BadInput(
            f"{experiment.baseline.name} and {experiment.candidate.name} resolve to the same engine: there is nothing "
            "to compare",
            "change a flag that has an effect on this device (python -m vllm_launch diff shows it)",
        )
    from workloads import load_workload

    load_workload(experiment.workload)
    for config in (experiment.baseline, experiment.candidate):
        if experiment.file.engine == "simulated":
            from vllm_launch.simulated.settings import EngineSettings

            EngineSettings.from_flags(config.model, config.device, simulated_flags(config))
        else:
            require_launchable(config, experiment.file.engine, python)


def plan(experiment: Experiment) -> dict[str, Any]:
    """What would run, in order, and about how long it would take (seconds)."""
    file = experiment.file
    return {
        "experiment": experiment.name,
        "engine": file.engine,
        "simulated": file.engine == "simulated",
        "workload": file.workload,
        "load": f"{file.users} users" if file.users else f"{file.request_rate:g} requests/s",
        "legs": [{"name": leg.name, "config": leg.config.name, "seed": leg.seed} for leg in experiment.legs],
        "differences": differences_text(experiment.baseline, experiment.candidate),
        "gate": file.gate,
        "margin": file.margin,
        "expected_s": len(experiment.legs) * (file.run_time + _OVERHEAD_S[file.engine]),
    }


def plan_text(planned: dict[str, Any]) -> str:
    """The plan for a person."""
    simulated = " (SIMULATED: no real hardware is measured)" if planned["simulated"] else ""
    lines = [
        f"experiment {planned['experiment']} on the {planned['engine']} engine{simulated}",
        f"  load      {planned['workload']}, {planned['load']}",
        f"  legs      {', '.join(leg['name'] + ' ' + leg['config'] for leg in planned['legs'])}",
        f"  changes   {'; '.join(planned['differences'])}",
        f"  judged    {', '.join(planned['gate'])} (margin {planned['margin']:.0%})",
        f"  takes     about {planned['expected_s']:.0f} s",
    ]
    return "\n".join(lines)


def differences_text(before: LaunchConfig, after: LaunchConfig) -> list[str]:
    """One line for each flag in which two engines differ."""
    return [f"{d.flag}: {effect.shown(d.before)} -> {effect.shown(d.after)}" for d in effect.differences(before, after)]
