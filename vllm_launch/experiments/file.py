"""An experiment file: which configs run under which load, in which order, and what is to be judged.

Three kinds: `compare` (two configs, A B B A), `ablation` (a baseline, each change of it alone, all of them together)
and `sweep` (a grid over flags and over load). All of them come down to a list of legs, one load test each.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tailgate.exits import BadInput
from tailgate.objectives import parse_objectives
from tailgate.thresholds import COMPARED_NAMES, parse_gate
from tailgate.yaml_file import check_model, read_yaml
from vllm_launch.config import LaunchConfig, is_url, load_config
from vllm_launch.effect import differences
from vllm_launch.variants import checked_changes, variant, variant_name

EXPERIMENTS = Path(__file__).parent
BASELINE, TOGETHER = "baseline", "all-together"
_STRICT = ConfigDict(
    extra="forbid", strict=True, allow_inf_nan=False, alias_generator=lambda name: name.replace("_", "-")
)
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?$")

Users = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]


def seconds(text: str | float) -> float:
    """`90`, `90s`, `1m30s` or `2h` in seconds. Raises ValueError otherwise."""
    match = _DURATION.match(str(text).strip())
    if not match or not any(match.groups()):
        raise ValueError(f"'{text}' is no duration; write it like 90s or 1m30s")
    hours, minutes, rest = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + rest


class LoadTestFile(BaseModel):
    """What every file that runs load tests says, experiments and searches alike."""

    model_config = _STRICT

    about: str = ""
    engine: Literal["simulated", "vllm", "docker", "attach"] = "vllm"
    baseline: str = Field(description="launch config, by name or path relative to this file")
    workload: str = Field(description="workload preset, or path relative to this file")
    run_time: float = Field(description="length of a leg, warm-up included; 90s, 2m")
    warm_up: float = Field(5.0, description="left out of every figure")
    workers: Annotated[int, Field(ge=1, le=256)] = 2
    seed: Annotated[int, Field(ge=0)] = 1
    slo: str | None = Field(None, description="objectives, like ttft_p95<1s,itl_p95<100ms; else the workload's own")
    gpu_hour_price: Annotated[float, Field(gt=0)] | None = Field(None, description="of one GPU, in dollars")
    step_times: str | None = Field(None, description="the embedded engine's, fitted on own runs; relative to this file")

    @field_validator("run_time", "warm_up", mode="before")
    @classmethod
    def _seconds(cls, value: str | float) -> float:
        return seconds(value)

    @field_validator("slo")
    @classmethod
    def _objectives(cls, value: str | None) -> str | None:
        if value:
            try:
                parse_objectives(value, "slo")
            except BadInput as error:
                raise ValueError(str(error).removeprefix("slo: ")) from None
        return value

    @model_validator(mode="after")
    def _something_is_measured(self) -> LoadTestFile:
        if self.warm_up >= self.run_time:
            raise ValueError(f"'warm-up' ({self.warm_up:g} s) leaves nothing of 'run-time' ({self.run_time:g} s)")
        return self


class ExperimentFile(LoadTestFile):
    """What all kinds of experiment have in common."""

    rounds: Annotated[int, Field(ge=1, le=100)] = 1
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.05
    gate: list[str] = Field(["ttft_p95", "itl_p95"], min_length=1)
    thresholds: ClassVar[bool] = False
    """Whether the gate may hold thresholds besides names of metrics."""

    @field_validator("gate")
    @classmethod
    def _judged(cls, value: list[str]) -> list[str]:
        names = [term for term in value if term.isidentifier()] if cls.thresholds else value
        for name in names:
            if not name.isidentifier():
                raise ValueError(f"'{name}' is no metric's name; thresholds are for experiments of two configs")
            if name not in COMPARED_NAMES:
                close = difflib.get_close_matches(name, COMPARED_NAMES, n=1)
                mend = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(COMPARED_NAMES)}"
                raise ValueError(f"unknown metric '{name}'; {mend}")
        try:
            parse_gate(",".join(value), "gate")
        except BadInput as error:
            raise ValueError(str(error).removeprefix("gate: ")) from None
        return value


class _OneLoad(ExperimentFile):
    users: Users | None = Field(None, description="closed loop: streams in flight")
    request_rate: Rate | None = Field(None, description="open loop: Poisson, requests/s")

    @model_validator(mode="after")
    def _one_load(self) -> _OneLoad:
        if (self.users is None) == (self.request_rate is None):
            raise ValueError("give either 'users' (closed loop) or 'request-rate' (open loop)")
        return self


class CompareFile(_OneLoad):
    """Two configs, interleaved."""

    kind: Literal["compare"] = "compare"
    thresholds: ClassVar[bool] = True
    candidate: str
    order: str = Field("ABBA", description="legs of one round: A is the baseline, B the candidate")

    @field_validator("order")
    @classmethod
    def _both_sides(cls, value: str) -> str:
        if set(value) != {"A", "B"} or value.count("A") != value.count("B"):
            raise ValueError(f"'{value}' does not run both sides equally often; write it like ABBA")
        return value


class AblationFile(_OneLoad):
    """A baseline, each changed flag alone, and all of them together."""

    kind: Literal["ablation"]
    candidate: str | None = Field(None, description="launch config whose differences from the baseline are the changes")
    changes: dict[str, Any] = Field({}, description="flags and the values they are changed to, each alone")

    @model_validator(mode="after")
    def _one_source(self) -> AblationFile:
        if (self.candidate is None) == (not self.changes):
            raise ValueError("give either 'changes' (flag: value) or a 'candidate' whose differences are the changes")
        return self


class SweepLoad(BaseModel):
    """The loads of a sweep, of one kind."""

    model_config = _STRICT

    users: list[Users] = Field([], description="closed loop: streams in flight")
    request_rate: list[Rate] = Field([], description="open loop: Poisson, requests/s")

    @model_validator(mode="after")
    def _one_kind(self) -> SweepLoad:
        if bool(self.users) == bool(self.request_rate):
            raise ValueError("give a list of either 'users' (closed loop) or 'request-rate' (open loop)")
        return self

    @field_validator("users", "request_rate")
    @classmethod
    def _each_once(cls, value: list[float]) -> list[float]:
        if twice := next((load for load in value if value.count(load) > 1), None):
            raise ValueError(f"{twice:g} stands twice; keep one of them")
        return value


class SweepFile(ExperimentFile):
    """Every combination of flag values under every load."""

    kind: Literal["sweep"]
    flags: dict[str, list[Any]] = Field({}, description="flag: the values it takes; none: the baseline alone")
    load: SweepLoad


KINDS: dict[str, type[CompareFile] | type[AblationFile] | type[SweepFile]] = {
    "compare": CompareFile,
    "ablation": AblationFile,
    "sweep": SweepFile,
}


@dataclass(frozen=True)
class Arm:
    """One config of an experiment; `changes` are the flags in which it was changed from the baseline."""

    name: str
    config: LaunchConfig
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Leg:
    """One load test of one arm. Repeat i of every arm has the same seed: all of them see the same requests."""

    name: str
    side: str
    config: LaunchConfig
    seed: int
    users: int | None = None
    request_rate: float | None = None

    @property
    def load(self) -> str:
        """The load in words."""
        return load_text(self.users, self.request_rate)


@dataclass(frozen=True)
class Experiment:
    """A checked experiment, its configs loaded; the first of `arms` is the baseline."""

    name: str
    path: Path
    file: CompareFile | AblationFile | SweepFile
    arms: tuple[Arm, ...]

    @property
    def kind(self) -> str:
        return self.file.kind

    @property
    def legs(self) -> list[Leg]:
        """Every leg in the order in which they run."""
        return list(_legs(self))

    @property
    def workload(self) -> str:
        """The workload as Locust takes it."""
        return beside(self.file.workload, self.path, resolve=True)


def load_text(users: int | None, request_rate: float | None) -> str:
    """`32 users` or `2.5 requests/s`."""
    return f"{users} users" if users else f"{request_rate:g} requests/s"


def load_experiment(name_or_path: str) -> Experiment:
    """The experiment by name (those that come with the suite) or path. Raises `BadInput`."""
    path = find_file(name_or_path, "experiment")
    data, node = read_yaml(path)
    kind = data.get("kind", "compare") if isinstance(data, dict) else "compare"
    if kind == "search":
        raise BadInput(f"{path}: kind: a search is no experiment", "use the command search")
    if not isinstance(kind, str) or kind not in KINDS:
        close = difflib.get_close_matches(str(kind), KINDS, n=1)
        mend = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(KINDS)}"
        raise BadInput(f"{path}: kind: there is no kind of experiment '{kind}'", mend)
    file = check_model(data, KINDS[kind], str(path), node)
    if file.step_times and file.engine != "simulated":
        raise BadInput(f"{path}: step-times: the {file.engine} engine has its own", "use 'engine: simulated'")
    baseline = load_side(file.baseline, file, path)
    return Experiment(path.stem, path, file, tuple(_arms(file, baseline, path)))


def _arms(file: CompareFile | AblationFile | SweepFile, baseline: LaunchConfig, path: Path) -> Iterator[Arm]:
    if isinstance(file, CompareFile):
        yield Arm("A", baseline, {})
        candidate = load_side(file.candidate, file, path)
        yield Arm("B", candidate, {})
    elif isinstance(file, AblationFile):
        changes = checked_changes(baseline, file.changes, f"{path}: changes")
        if file.candidate:
            changes = _changes_of(baseline, load_side(file.candidate, file, path))
            if not changes:
                raise BadInput(
                    f"{path}: candidate: {file.candidate} sets no flag otherwise than {baseline.name}, in effect",
                    "name another, or the flags under 'changes'",
                )
        yield Arm(BASELINE, baseline, {})
        for flag, value in changes.items():
            yield Arm(flag, variant(baseline, {flag: value}), {flag: value})
        if len(changes) > 1:
            yield Arm(TOGETHER, variant(baseline, changes), changes)
    else:
        for changes in grid(baseline, file.flags, f"{path}: flags"):
            yield Arm(variant_name(changes) or BASELINE, variant(baseline, changes), changes)


def load_side(named: str, file: LoadTestFile, path: Path) -> LaunchConfig:
    """The launch config that `file`, which stands in `path`, names so. Raises `BadInput`."""
    config = load_config(beside(named, path))
    return replace(config, step_times=path.parent / file.step_times) if file.step_times else config


def grid(baseline: LaunchConfig, flags: Mapping[str, list[Any]], where: str) -> list[dict[str, Any]]:
    """Every combination of the flags' values, checked. Raises `BadInput`."""
    for flag, values in flags.items():
        if not values:
            raise BadInput(f"{where}.{flag}: no values", "list at least one, or leave the flag out")
    combined = itertools.product(*flags.values())
    return [checked_changes(baseline, dict(zip(flags, values, strict=True)), where) for values in combined]


def _changes_of(baseline: LaunchConfig, candidate: LaunchConfig) -> dict[str, Any]:
    """The flags that a candidate sets otherwise, with an effect. Raises `BadInput` where more than flags differ."""
    changes = {}
    for difference in differences(baseline, candidate):
        if difference.flag in candidate.args or difference.flag in baseline.args:
            changes[difference.flag] = candidate.args.get(difference.flag)
        elif difference.flag in ("model", "device", "vllm") or difference.flag.startswith("env "):
            raise BadInput(
                f"{candidate.name} differs from {baseline.name} in {difference.flag}, which is no flag to be changed "
                "alone",
                "use kind: compare, or name flags under 'changes'",
            )
    return changes


def _legs(experiment: Experiment) -> Iterator[Leg]:
    file, arms = experiment.file, {arm.name: arm for arm in experiment.arms}
    numbers = itertools.count(1)
    if isinstance(file, CompareFile):
        order = file.order * file.rounds
        for number, side in enumerate(order, start=1):
            repeat = order[:number].count(side)
            seed = file.seed + repeat - 1
            yield Leg(f"{number}-{side}{repeat}", side, arms[side].config, seed, file.users, file.request_rate)
        return
    loads: list[tuple[int | None, float | None]]
    if isinstance(file, AblationFile):
        loads = [(file.users, file.request_rate)]
    else:
        loads = [(users, None) for users in file.load.users] or [(None, rate) for rate in file.load.request_rate]
    points = [(arm, load) for arm in experiment.arms for load in loads]
    for repeat in range(file.rounds):
        # There and back again: a drift of the machine hits first and last alike.
        for arm, (users, rate) in points if repeat % 2 == 0 else reversed(points):
            at = "" if len(loads) == 1 else f"-u{users}" if users else f"-r{rate:g}"
            name = f"{next(numbers)}-{arm.name}{at}-{repeat + 1}"
            yield Leg(name, arm.name, arm.config, file.seed + repeat, users, rate)


def find_file(name_or_path: str, what: str) -> Path:
    """A file of `experiments/` by name, or any by path. Raises `BadInput` with the nearest name."""
    if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
        return Path(name_or_path)
    path = EXPERIMENTS / f"{name_or_path}.yaml"
    if path.is_file():
        return path
    known = sorted(found.stem for found in EXPERIMENTS.glob("*.yaml"))
    close = difflib.get_close_matches(name_or_path, known, n=1, cutoff=0.4)
    mend = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}, or give a path ending in .yaml"
    raise BadInput(f"there is no {what} '{name_or_path}'", mend)


def beside(named: str, file: Path, resolve: bool = False) -> str:
    """A name as it stands, a path relative to `file`; `resolve`: one that does not depend on where one stands."""
    if is_url(named) or not (named.endswith((".yaml", ".yml")) or "/" in named):
        return named
    path = file.parent / named
    return str(path.resolve() if resolve else path)
