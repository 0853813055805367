"""What an experiment would do, and whether it can: everything that can be refused is refused before the first leg."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailgate.exits import BadInput
from vllm_launch import effect
from vllm_launch.config import LaunchConfig
from vllm_launch.engine.commands import require_launchable
from vllm_launch.experiments.cost import dollars_text, gpus
from vllm_launch.experiments.file import TOGETHER, Arm, Experiment, SweepFile
from vllm_launch.experiments.state import State, identity

# Seconds that a leg takes beyond its run time: engine start, Locust's start, drain and end.
OVERHEAD_S = {"simulated": 9.0, "vllm": 45.0, "docker": 60.0, "attach": 15.0}


def require_runnable(experiment: Experiment, python: str | None = None) -> None:
    """Raises `BadInput` where there is nothing to compare, the workload is unknown, or an engine cannot serve an arm.

    `python` is as for `engines.command`.
    """
    require_changeable(experiment.arms, experiment.file.engine, str(experiment.path))
    baseline, *others = experiment.arms
    seen = [baseline]
    for arm in others:
        same = next((one for one in seen if not effect.differences(one.config, arm.config)), None)
        if same:
            raise BadInput(
                f"{same.config.name} and {arm.config.name} resolve to the same engine: there is nothing to compare",
                "change a flag that has an effect on this device (python -m vllm_launch diff shows it)",
            )
        seen.append(arm)
    require_workload(experiment.workload)
    require_engines([arm.config for arm in experiment.arms], experiment.file.engine, python)


def require_changeable(arms: Sequence[Arm], engine: str, where: str) -> None:
    """Raises `BadInput` where flags are to be changed on a server that runs already."""
    changed = next((arm for arm in arms if arm.changes), None)
    if changed and engine == "attach":
        raise BadInput(
            f"{where}: {next(iter(changed.changes))} cannot be changed on a server that runs already",
            "use an engine that is launched, or leave the flags out",
        )


def require_workload(workload: str) -> None:
    """Raises `BadInput` unless it can be loaded."""
    from workloads import load_workload

    load_workload(workload)


def require_engines(configs: Sequence[LaunchConfig], engine: str, python: str | None) -> None:
    """Raises `BadInput` unless that kind of engine can serve each of the configs."""
    for config in configs:
        effect.effective(config)
        if engine == "simulated":
            from vllm_launch.engine import embedded

            embedded.settings(config)
        else:
            require_launchable(config, engine, python)


def plan(experiment: Experiment, resume: Path | None = None) -> dict[str, Any]:
    """What would run, in order, and about how long it would take (seconds); `resume` knows what is done already."""
    file, legs = experiment.file, experiment.legs
    state = State.resume(experiment.path, identity(experiment), resume) if resume else None
    left = [leg for leg in legs if not (state and state.done(leg))]
    expected_s = len(left) * (file.run_time + OVERHEAD_S[file.engine])
    held = max(gpus(arm.config) for arm in experiment.arms)
    price = file.gpu_hour_price if file.engine != "simulated" else None
    return {
        "experiment": experiment.name,
        "kind": experiment.kind,
        "engine": file.engine,
        "simulated": file.engine == "simulated",
        "workload": file.workload,
        "load": ", ".join(dict.fromkeys(leg.load for leg in legs)),
        "legs": [
            {"name": leg.name, "config": leg.config.name, "seed": leg.seed, "load": leg.load, "done": leg not in left}
            for leg in legs
        ],
        "differences": _differences(experiment),
        "gate": file.gate,
        "margin": file.margin,
        "expected_s": expected_s,
        "gpu_dollars": None if price is None else price * held * expected_s / 3600,
    }


def _differences(experiment: Experiment) -> list[str]:
    if isinstance(experiment.file, SweepFile):
        flags = experiment.file.flags
        return [f"{flag}: {', '.join(map(effect.shown, values))}" for flag, values in flags.items()]
    baseline, *others = experiment.arms
    lines: list[str] = []
    for arm in others:
        if arm.name != TOGETHER:
            lines += differences_text(baseline.config, arm.config)
    return list(dict.fromkeys(lines))


def plan_text(planned: dict[str, Any]) -> str:
    """The plan for a person."""
    simulated = " (SIMULATED: no real hardware is measured)" if planned["simulated"] else ""
    compare = planned["kind"] == "compare"
    kind = "experiment" if compare else planned["kind"]
    done = sum(leg["done"] for leg in planned["legs"])
    legs = ", ".join(f"{leg['name']} {leg['config']}" if compare else leg["name"] for leg in planned["legs"])
    gate = ", ".join(planned["gate"])
    sweep = planned["kind"] == "sweep"
    judged = f"shown     {gate}" if sweep else f"judged    {gate} (margin {planned['margin']:.0%})"
    cost = f", {dollars_text(planned['gpu_dollars'])} of GPU time" if planned["gpu_dollars"] is not None else ""
    lines = [
        f"{kind} {planned['experiment']} on the {planned['engine']} engine{simulated}",
        f"  load      {planned['workload']}, {planned['load']}",
        f"  legs      {legs}",
        *([f"  done      {done} of {len(planned['legs'])}"] if done else []),
        f"  changes   {'; '.join(planned['differences']) or 'none'}",
        f"  {judged}",
        f"  takes     about {planned['expected_s']:.0f} s{cost}",
    ]
    return "\n".join(lines)


def differences_text(before: LaunchConfig, after: LaunchConfig) -> list[str]:
    """One line for each flag in which two engines differ."""
    return [f"{d.flag}: {effect.shown(d.before)} -> {effect.shown(d.after)}" for d in effect.differences(before, after)]
