"""Configs screened in virtual time: the embedded engine, brought near a real one by one run of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from exporters.run import Run
from tailgate.exits import BadInput
from vllm_launch.config import LaunchConfig
from vllm_launch.engine import embedded
from vllm_launch.engine.commands import simulated_flags
from vllm_launch.search.file import Search
from vllm_launch.search.rate import Probe, RateSearch, probe_of
from vllm_launch.search.virtual_run import VirtualLoad, virtual_run
from vllm_launch.simulated.calibration import TWO_TERMS, fit
from vllm_launch.simulated.fit_table import replay_misses, replayable
from vllm_launch.simulated.fitted import FittedTable
from vllm_launch.simulated.settings import EngineSettings
from vllm_launch.simulated.step_time import Overhead
from workloads import load_workload

# Virtual probes are nearly free: more of them than anybody would wait for, and longer ones.
_MOST_PROBES = 24
_TOLERANCE = 0.02
_LEAST_RUN_S = 60.0
# Beyond so many requests a quantile is known well enough, and a faster engine would only cost more time.
_ENOUGH_REQUESTS = 6000


@dataclass(frozen=True)
class Screen:
    """The embedded engine as calibrated: an overhead on measured kernels, or a table fitted whole.

    `error` is the mean miss of the fit, a share; None where nothing was fitted.
    """

    overhead: Overhead | None = None
    fitted: FittedTable | None = None
    error: float | None = None

    def settings(self, config: LaunchConfig) -> EngineSettings:
        """The engine for a config. Raises `BadInput` where it has no step times for it."""
        if self.fitted:
            return EngineSettings.from_fitted(self.fitted, simulated_flags(config))[0]
        return embedded.settings(config, self.overhead)[0]

    def to_dict(self) -> dict[str, Any]:
        """What was fitted, for the result."""
        overhead = self.fitted.overhead if self.fitted else self.overhead
        terms = {} if overhead is None else {name: getattr(overhead, name) for name in overhead.__slots__}
        return {"table": "fitted whole" if self.fitted else "measured kernels", **terms, "error": self.error}


def has_table(config: LaunchConfig) -> bool:
    """Whether the embedded engine knows the config's model on its device."""
    try:
        embedded.settings(config)
    except BadInput:
        return False
    return True


def calibrated(run: Run, config: LaunchConfig) -> Screen:
    """The engine brought near `run`, a real one of `config`: the overhead terms fitted, or the whole of its step times
    where there is no table for the model and device. Raises `BadInput` where the run tells too little."""
    if not has_table(config):
        fitted = embedded.fitted([run])
        return Screen(fitted=fitted, error=fitted.error)
    measured = replayable(run)

    def misses(overhead: Overhead) -> np.ndarray:
        return replay_misses(measured, Screen(overhead).settings(config))

    fitted_terms = fit(misses, Screen().settings(config).overhead, terms=TWO_TERMS)
    return Screen(fitted_terms, error=float(np.abs(misses(fitted_terms)).mean()))


def predict(
    search: Search, screen: Screen, config: LaunchConfig, start: float, say: Callable[[Probe], None] = lambda _: None
) -> RateSearch:
    """The rate search of a config in virtual time, from `start` requests/s."""
    file = search.file
    workload = load_workload(search.workload)
    settings = screen.settings(config)
    run_time = max(file.run_time, file.warm_up + _LEAST_RUN_S)

    def measure(rate: float, number: int) -> Probe:
        length = file.warm_up + min(run_time - file.warm_up, max(_ENOUGH_REQUESTS / rate, 2.0))
        load = VirtualLoad(None, rate, length, file.warm_up, file.seed + 10_000 + number)
        return probe_of(virtual_run(settings, workload, load, slo=file.slo, label=config.name), rate, search.objectives)

    found = RateSearch(start, min(_TOLERANCE, file.tolerance), _MOST_PROBES)
    found.run(measure, say)
    return found
