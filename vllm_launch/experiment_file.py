"""An experiment file: two launch configs, one load, an order of legs, and what is to be judged."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tailgate.exits import BadInput
from tailgate.yaml_file import read_model
from vllm_launch.config import LaunchConfig, is_url, load_config

EXPERIMENTS = Path(__file__).parent / "experiments"
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?$")


def seconds(text: str | float) -> float:
    """`90`, `90s`, `1m30s` or `2h` in seconds. Raises ValueError otherwise."""
    match = _DURATION.match(str(text).strip())
    if not match or not any(match.groups()):
        raise ValueError(f"'{text}' is no duration; write it like 90s or 1m30s")
    hours, minutes, rest = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + rest


class ExperimentFile(BaseModel):
    """The file as written."""

    model_config = ConfigDict(extra="forbid", alias_generator=lambda name: name.replace("_", "-"))

    about: str = ""
    engine: Literal["simulated", "vllm", "docker", "attach"] = "vllm"
    baseline: str = Field(description="launch config, by name or path relative to this file")
    candidate: str
    workload: str = Field(description="workload preset, or path relative to this file")
    users: Annotated[int, Field(ge=1)] | None = Field(None, description="closed loop: streams in flight")
    request_rate: Annotated[float, Field(gt=0)] | None = Field(None, description="open loop: Poisson, requests/s")
    run_time: float = Field(description="length of a leg, warm-up included; 90s, 2m")
    warm_up: float = Field(5.0, description="left out of every figure")
    workers: Annotated[int, Field(ge=1, le=256)] = 2
    order: str = Field("ABBA", description="legs of one round: A is the baseline, B the candidate")
    rounds: Annotated[int, Field(ge=1, le=100)] = 1
    seed: Annotated[int, Field(ge=0)] = 1
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.05
    gate: list[str] = ["ttft_p95", "itl_p95"]

    @field_validator("run_time", "warm_up", mode="before")
    @classmethod
    def _seconds(cls, value: str | float) -> float:
        return seconds(value)

    @field_validator("order")
    @classmethod
    def _both_sides(cls, value: str) -> str:
        if set(value) != {"A", "B"} or value.count("A") != value.count("B"):
            raise ValueError(f"'{value}' does not run both sides equally often; write it like ABBA")
        return value

    @field_validator("gate")
    @classmethod
    def _metrics(cls, value: list[str]) -> list[str]:
        from exporters.compare import METRIC_NAMES

        for name in value:
            if name not in METRIC_NAMES:
                close = difflib.get_close_matches(name, METRIC_NAMES, n=1)
                mend = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(METRIC_NAMES)}"
                raise ValueError(f"unknown metric '{name}'; {mend}")
        return value

    @model_validator(mode="after")
    def _one_load(self) -> ExperimentFile:
        if (self.users is None) == (self.request_rate is None):
            raise ValueError("give either 'users' (closed loop) or 'request-rate' (open loop)")
        if self.warm_up >= self.run_time:
            raise ValueError(f"'warm-up' ({self.warm_up:g} s) leaves nothing of 'run-time' ({self.run_time:g} s)")
        return self


@dataclass(frozen=True)
class Leg:
    """One run of one side. Repeat i of either side has the same seed: both sides see the same requests."""

    name: str
    side: str
    config: LaunchConfig
    seed: int


@dataclass(frozen=True)
class Experiment:
    """A checked experiment, its configs loaded."""

    name: str
    path: Path
    file: ExperimentFile
    baseline: LaunchConfig
    candidate: LaunchConfig

    @property
    def legs(self) -> list[Leg]:
        """Every leg in the order in which they run."""
        order = self.file.order * self.file.rounds
        found: list[Leg] = []
        for number, side in enumerate(order, start=1):
            repeat = order[:number].count(side)
            config = self.baseline if side == "A" else self.candidate
            found.append(Leg(f"{number}-{side}{repeat}", side, config, self.file.seed + repeat - 1))
        return found

    @property
    def workload(self) -> str:
        """The workload as Locust takes it: a preset's name, or a path that does not depend on where one stands."""
        named = self.file.workload
        is_path = named.endswith((".yaml", ".yml")) or "/" in named
        return str((self.path.parent / named).resolve()) if is_path else named


def load_experiment(name_or_path: str) -> Experiment:
    """The experiment by name (those that come with the suite) or path. Raises `BadInput`."""
    path = _find(name_or_path)
    file = read_model(path, ExperimentFile)
    return Experiment(
        name=path.stem,
        path=path,
        file=file,
        baseline=load_config(_relative(file.baseline, path)),
        candidate=load_config(_relative(file.candidate, path)),
    )


def _find(name_or_path: str) -> Path:
    if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
        return Path(name_or_path)
    path = EXPERIMENTS / f"{name_or_path}.yaml"
    if path.is_file():
        return path
    known = sorted(found.stem for found in EXPERIMENTS.glob("*.yaml"))
    close = difflib.get_close_matches(name_or_path, known, n=1, cutoff=0.4)
    mend = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}, or give a path ending in .yaml"
    raise BadInput(f"there is no experiment '{name_or_path}'", mend)


def _relative(config: str, experiment: Path) -> str:
    if not is_url(config) and (config.endswith((".yaml", ".yml")) or "/" in config):
        return str(experiment.parent / config)
    return config
