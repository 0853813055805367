"""A search file: one config or a flag space, one workload, and the SLO that the highest load is to meet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tailgate.exits import BadInput
from tailgate.objectives import Objective, parse_objectives
from tailgate.yaml_file import check_model, read_yaml
from vllm_launch.effect import differences
from vllm_launch.experiments.file import BASELINE, Arm, LoadTestFile, beside, find_file, grid, load_side
from vllm_launch.search.rate import require_searchable
from vllm_launch.variants import variant, variant_name


class SearchFile(LoadTestFile):
    """The file as written. Rates are requests/s of a Poisson schedule."""

    kind: Literal["search"]
    flags: dict[str, list[Any]] = Field({}, description="flag: the values to choose from; none: the baseline alone")
    start_rate: Annotated[float, Field(gt=0)] | None = Field(
        None, description="the first rate, where nothing better is known"
    )
    tolerance: Annotated[float, Field(ge=0.01, le=0.5)] = Field(
        0.05, description="how near the limit must be known, a share; half the 95 % interval"
    )
    most_runs: Annotated[int, Field(ge=2, le=200)] = Field(12, description="real runs at most, for each config")
    measure: Annotated[int, Field(ge=1, le=20)] = Field(2, description="how many of the best predicted are measured")

    @model_validator(mode="after")
    def _has_objectives(self) -> SearchFile:
        if not self.slo:
            raise ValueError("a search needs an 'slo' to meet, like ttft_p95<1s,itl_p95<100ms")
        return self


@dataclass(frozen=True)
class Search:
    """A checked search; the first of `arms` is the baseline, the others are the flag space without repetitions."""

    name: str
    path: Path
    file: SearchFile
    arms: tuple[Arm, ...]
    objectives: tuple[Objective, ...]

    @property
    def workload(self) -> str:
        """The workload as Locust takes it."""
        return beside(self.file.workload, self.path, resolve=True)


def load_search(name_or_path: str) -> Search:
    """The search by name (those that come with the suite) or path. Raises `BadInput`."""
    path = find_file(name_or_path, "search")
    data, node = read_yaml(path)
    if isinstance(data, dict) and data.get("kind") != "search":
        raise BadInput(f"{path}: kind: this is no search", "write 'kind: search', or use the command experiment")
    file = check_model(data, SearchFile, str(path), node)
    objectives = parse_objectives(file.slo or "", f"{path}: slo")
    require_searchable(objectives, f"{path}: slo")
    baseline = load_side(file.baseline, file, path)
    arms = [Arm(BASELINE, baseline, {})]
    if file.flags:
        for changes in grid(baseline, file.flags, f"{path}: flags"):
            config = variant(baseline, changes)
            if all(differences(config, arm.config) for arm in arms):
                arms.append(Arm(variant_name(changes), config, changes))
    return Search(path.stem, path, file, tuple(arms), objectives)
