"""The search: the highest load that meets an SLO, for one config or for the best of a flag space.

One config: real load tests at rates that close in on the limit. A flag space: one real run of the baseline calibrates
the embedded engine; every candidate is searched on it in virtual time; only the best predicted, and the baseline, are
measured for real, from their predicted limits on, which saves most of the real runs. What was predicted is held against
what was measured.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters.run import Run
from tailgate.exits import BadInput, Exit
from vllm_launch.engine import embedded
from vllm_launch.experiments.file import Arm
from vllm_launch.experiments.load_test import Load
from vllm_launch.experiments.progress import Progress
from vllm_launch.experiments.run import measure
from vllm_launch.experiments.state import State, of_config
from vllm_launch.search.file import Search
from vllm_launch.search.rate import Probe, RateSearch, probe_of
from vllm_launch.search.result import Limit, SearchResult
from vllm_launch.search.screening import Screen, calibrated, has_table, predict
from vllm_launch.search.virtual_run import VirtualLoad, virtual_run
from vllm_launch.variants import written
from workloads import load_workload

Measure = Callable[[Arm, float, int], Run]
_START = 1.0
# A calibration wants queues to form and yet to drain: this share of the limit that is expected.
_CALIBRATE_AT = 0.7
# From a predicted limit one steps out by this factor, not by four.
_FROM_PREDICTION = 1.15


@dataclass
class _Searcher:
    """One search under way; `measure` runs one load test, `say` tells of progress."""

    search: Search
    measure: Measure
    say: Callable[[str], None]
    real_runs: int = 0
    screen: Screen | None = None
    calibration_rate: float | None = None

    def run(self) -> SearchResult:
        search = self.search
        limits = {arm.name: Limit(arm) for arm in search.arms}
        chosen = [search.arms[0]]
        if len(search.arms) > 1:
            self.screen = self._calibrate()
            for arm in search.arms:
                limits[arm.name].predicted = self._predict(arm, self.screen, limits)
            ranked = sorted(search.arms, key=lambda arm: -limits[arm.name].predicted_rate)
            chosen = ranked[: search.file.measure]
            if search.arms[0] not in chosen:
                chosen.append(search.arms[0])
        elif search.file.start_rate is None and has_table(search.arms[0].config):
            self.screen = Screen()
            limits[search.arms[0].name].predicted = self._predict(search.arms[0], self.screen, limits)
        for arm in chosen:
            limits[arm.name].measured = self._measure(arm, limits[arm.name])
        return SearchResult(search, list(limits.values()), self.screen, self.calibration_rate, self.real_runs)

    def _calibrate(self) -> Screen:
        """The engine brought near one real run of the baseline, at a rate below its limit."""
        baseline = self.search.arms[0]
        rate = self.search.file.start_rate
        if rate is None and has_table(baseline.config):
            guess = predict(self.search, Screen(), baseline.config, _START).best
            if not guess:
                raise BadInput(
                    f"{self.search.path}: in virtual time {baseline.config.name} meets the slo at no rate",
                    "loosen the 'slo', or give a 'start-rate' to be calibrated at",
                )
            rate = _CALIBRATE_AT * guess
        assert rate is not None, "else refused by require_searchable_engines"
        rate = self.calibration_rate = float(f"{rate:.3g}")
        self.say(f"calibration: {baseline.config.name} at {rate:g} requests/s")
        run = self._real(baseline, rate, -1)
        screen = calibrated(run, baseline.config)
        self.say(f"calibration: the embedded engine now misses by {screen.error or 0:.1%} on average")
        return screen

    def _predict(self, arm: Arm, screen: Screen, limits: dict[str, Limit]) -> RateSearch:
        known = [limit.predicted_rate for limit in limits.values() if limit.predicted_rate]
        found = predict(self.search, screen, arm.config, known[-1] if known else self.calibration_rate or _START)
        rate = f"{found.crossing.rate:.3g}" if found.crossing else "no limit found"
        self.say(f"screened {arm.name}: {rate} requests/s in virtual time")
        return found

    def _measure(self, arm: Arm, limit: Limit) -> RateSearch:
        file = self.search.file
        found = RateSearch(file.start_rate or _START, file.tolerance, file.most_runs)
        if limit.predicted_rate:
            found = RateSearch(limit.predicted_rate, file.tolerance, file.most_runs, step=_FROM_PREDICTION)

        def tell(probe: Probe) -> None:
            valid = "" if probe.valid else "; NOT VALID"
            self.say(f"{arm.name} at {probe.rate:g} requests/s: {probe.verdict} ({probe.decided_by}){valid}")

        found.run(lambda rate, number: self._probe(arm, rate, number), tell)
        return found

    def _probe(self, arm: Arm, rate: float, number: int) -> Probe:
        return probe_of(self._real(arm, rate, number), rate, self.search.objectives)

    def _real(self, arm: Arm, rate: float, number: int) -> Run:
        self.real_runs += 1
        return self.measure(arm, rate, number)


def run_search(
    search: Search,
    results: Path,
    *,
    python: str | None = None,
    resume: Path | None = None,
    virtual: bool = False,
    say: Callable[[str], None] = print,
) -> SearchResult:
    """Searches, and keeps the result as `search.json` and `report.html` beside the runs.

    `resume` is the directory of a broken-off search, whose finished runs are taken as they are. `virtual`: all of it in
    virtual time, without a process. Raises `BadInput` where it cannot go on.
    """
    state = State.open(search.path, identity(search, virtual=virtual), results, resume)
    directory = state.directory
    with state.held():
        measured = _virtually(search) if virtual else _really(search, state, python)
        try:
            result = _Searcher(search, measured, say).run()
        except BaseException:
            if not virtual:
                again = shlex.join(["search", str(search.path), "--resume", str(directory)])
                say(f"not finished; go on with: python -m vllm_launch {again}")
            raise
    if result.screen and result.screen.fitted:
        embedded.write_step_times(result.screen.fitted, directory / "step-times.json")
    (directory / "search.json").write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")
    result.write_report(directory / "report.html", f"python -m vllm_launch search {search.path}")
    return result


def _virtually(search: Search) -> Measure:
    workload = load_workload(search.workload)
    file = search.file

    def run(arm: Arm, rate: float, number: int) -> Run:
        load = VirtualLoad(None, rate, file.run_time, file.warm_up, file.seed + number + 1)
        return virtual_run(Screen().settings(arm.config), workload, load, slo=file.slo, label=arm.config.name)

    return run


def identity(search: Search, *, virtual: bool) -> dict[str, Any]:
    """For `State`: what a run must have been measured under to be taken as it is."""
    file = search.file
    return {
        "experiment": search.name,
        "kind": file.kind,
        "engine": file.engine,
        "virtual": virtual,
        "workload": search.workload,
        "duration": [file.run_time, file.warm_up, file.workers],
        "slo": file.slo,
        "seed": file.seed,
        "configs": [of_config(arm.config) for arm in search.arms],
    }


def _really(search: Search, state: State, python: str | None) -> Measure:
    file, directory = search.file, state.directory

    def run(arm: Arm, rate: float, number: int) -> Run:
        what = "calibration" if number < 0 else f"{number + 1}"
        path = directory / f"{arm.name}-{what}-r{rate:g}"
        if (path / "summary.json").is_file():
            return Run.load(path)
        state.set_aside(path.name, "broken-off")
        load = Load(
            workload=search.workload,
            users=None,
            request_rate=rate,
            run_time_s=file.run_time,
            warm_up_s=file.warm_up,
            seed=file.seed + number + 1,
            workers=file.workers,
            slo=file.slo,
        )
        config = written(arm.config, arm.changes, directory / "configs")
        progress = Progress(1)
        progress.step(f"{arm.name} at {rate:g} requests/s")
        code, outcome = measure(config, file.engine, load, path, python, progress)
        if code == Exit.NOT_VALID:
            progress.note(f"{outcome}; measuring it once more")
            state.set_aside(path.name, "not-valid")
            code, outcome = measure(config, file.engine, load, path, python, progress)
        progress.done(outcome)
        return Run.load(path)

    return run
