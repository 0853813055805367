"""The search against brute force, on the embedded engine in virtual time: is the limit right, and what did it cost?

The truth is brute force: a run at every rate of a fine grid around the limit under each of many seeds; the margins of
all of them, smoothed by one straight line, cross zero there. The search sees none of that; it begins at 1 request/s.
What it is held against is the least that brute force takes to know the limit as well: one run at every rate 3 % apart,
from 1 request/s up to the limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from exporters.student import critical
from tailgate.objectives import parse_objectives
from vllm_launch.search.rate import Probe, RateSearch, probe_of
from vllm_launch.search.virtual_run import VirtualLoad, virtual_run
from vllm_launch.simulated.settings import EngineSettings
from workloads import load_workload

TOLERANCE = 0.03
_STEP = 0.015
_REACH = 6
_MODEL, _DEVICE = "meta-llama/Llama-3.1-8B-Instruct", "h100-sxm"


@dataclass(frozen=True)
class Case:
    """A traffic, what it is held to, and how long a run is (s)."""

    workload: str
    slo: str
    run_time_s: float

    def probe(self, rate: float, seed: int) -> Probe:
        """One run in virtual time."""
        settings, _ = EngineSettings.from_flags(_MODEL, _DEVICE, {})
        load = VirtualLoad(None, rate, self.run_time_s, 0.1 * self.run_time_s, seed)
        run = virtual_run(settings, load_workload(self.workload), load, slo=self.slo, label="probe")
        return probe_of(run, rate, parse_objectives(self.slo))


CASES = (
    Case("chat-and-documents", "ttft_p95<1s,itl_p99<250ms", 300.0),
    Case("chat-short", "ttft_p95<200ms,itl_p99<50ms", 60.0),
)


def main(quick: bool = False, searches: int = 8, seeds: int = 12) -> None:
    """Prints for each case the truth, and each search's answer, miss and number of runs."""
    if quick:
        searches, seeds = 3, 4
    print(f"SIMULATED, virtual time. {_MODEL} on {_DEVICE}; tolerance of the search {TOLERANCE:.0%}.")
    for case in CASES[:1] if quick else CASES:
        found = [_search(case, 1000 * number) for number in range(searches)]
        truth, uncertain, runs = brute_force(case, float(np.median([s.best for s in found])), seeds)
        # The least that brute force needs to know the limit as well: every rate 3 % apart up to it, once.
        least = math.ceil(math.log(truth) / math.log1p(TOLERANCE))
        print(f"\n{case.workload}, {case.slo}, runs of {case.run_time_s:g} s")
        print(f"brute force: {truth:.2f} requests/s (95 % interval +-{uncertain:.1%}), from {runs} runs around it;")
        print(f"  one run at every rate {TOLERANCE:.0%} apart from 1 request/s up to it would be {least} runs")
        for search in found:
            crossing = search.crossing
            interval = f"{crossing.low:.2f} to {crossing.high:.2f}" if crossing else "-"
            taken = len(search.probes)
            miss = search.best / truth - 1
            print(f"  search: {search.best:6.2f} ({interval}), {miss:+.1%} off, {taken} runs = {taken / least:.0%}")
        misses = [abs(s.best / truth - 1) for s in found]
        taken_share = max(len(s.probes) for s in found) / least
        inside = sum(miss <= TOLERANCE for miss in misses)
        print(f"  {inside} of {len(found)} within {TOLERANCE:.0%}; at most {taken_share:.0%} of the runs")


def _search(case: Case, seed: int) -> RateSearch:
    search = RateSearch(1.0, TOLERANCE, 40)
    search.run(lambda rate, number: case.probe(rate, seed + number))
    return search


def brute_force(case: Case, near: float, seeds: int) -> tuple[float, float, int]:
    """The rate at which the pooled margins cross zero, its relative half interval, and the runs it took."""
    offsets = np.arange(-_REACH, _REACH + 1) * _STEP
    probes = [
        [case.probe(near * math.exp(x), 77_000 + 100 * i + s) for s in range(seeds)] for i, x in enumerate(offsets)
    ]
    best: tuple[float, float] | None = None
    for text in probes[0][0].judged:
        margins = np.array([[min(p.judged[text].margin, 0.7) for p in of_rate] for of_rate in probes])
        if (margins < 0).all() or (margins >= 0).all():
            continue
        slope, height = np.polyfit(offsets, margins.mean(axis=1), 1)
        root = -height / slope
        residual = margins - (height + slope * offsets)[:, None]
        count = margins.size
        error = math.sqrt(float((residual**2).sum()) / (count - 2)) / abs(slope) * math.sqrt(1 / count)
        rate = near * math.exp(root)
        if best is None or rate < best[0]:
            best = rate, critical(0.05, count - 2) * error
    assert best is not None, "the grid lies around the limit"
    return *best, len(offsets) * seeds


if __name__ == "__main__":
    main()
