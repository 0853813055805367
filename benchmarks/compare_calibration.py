"""How often the comparison cries wolf, how much it finds, and whether its intervals hold what they promise.

Traffic is a first-come-first-served queue with Poisson arrivals (Lindley's recursion), whose waits feed both TTFT and
the gaps between tokens: latencies near in time hang together, as behind a real engine, more so the higher the load.
Every run has a seed of its own, unless it says "paired": then both sides answer one schedule, as two runs of one seed
do. More pairs: `python -m benchmarks.compare_calibration 200`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.made_runs import START_NS, columns
from exporters.blocks import blocks_of
from exporters.columns import Ints
from exporters.compare import Comparison, Measurement, compare
from exporters.quantiles import Floats
from exporters.run import Run

RATE, TOKENS, SECONDS = 10.0, 12, 120.0


@dataclass(frozen=True)
class Setting:
    """One row of the table: how loaded the server is, runs a side, how much slower B is, noise between launches."""

    name: str
    load: float
    runs: int = 1
    slower: float = 1.0
    launch_spread: float = 0.0
    paired: bool = False
    seconds: float = SECONDS


SETTINGS = (
    Setting("A/A, load 30 %", 0.3),
    Setting("A/A, load 60 %", 0.6),
    Setting("A/A, load 90 %", 0.9),
    Setting("A/A, load 60 %, 20 s", 0.6, seconds=20.0),
    Setting("A/A, load 60 %, 2 runs", 0.6, runs=2),
    Setting("A/A, load 90 %, 2 runs", 0.9, runs=2),
    Setting("A/A, load 60 %, launches differ by 3 %", 0.6, launch_spread=0.03),
    Setting("A/A, load 60 %, launches differ by 3 %, 2 runs", 0.6, runs=2, launch_spread=0.03),
    Setting("A/A, load 60 %, launches differ by 6 %, 2 runs", 0.6, runs=2, launch_spread=0.06),
    Setting("B 10 % slower, load 60 %, 2 runs", 0.6, runs=2, slower=1.1),
    Setting("B 10 % slower, load 60 %, 2 runs, paired", 0.6, runs=2, slower=1.1, paired=True),
    Setting("B 25 % slower, load 60 %, 1 run", 0.6, slower=1.25),
    Setting("B 2 times slower, load 60 %, 1 run", 0.6, slower=2.0),
)
COVERED = ("ttft_p50", "ttft_p95", "itl_p95", "itl_p99", "e2e_p95")


def queue(seeds: Ints, load: float, seconds: float) -> tuple[Floats, Floats, Floats]:
    """Arrivals, waits and service times (seconds), each requests x seeds, of one queue for each seed."""
    count = int(RATE * seconds)
    arrivals = np.empty((count, seeds.size))
    service = np.empty((count, seeds.size))
    for column, seed in enumerate(seeds):
        rng = np.random.default_rng(int(seed))
        arrivals[:, column] = np.sort(rng.uniform(0, seconds, count))
        service[:, column] = rng.gamma(4.0, load / RATE / 4.0, count)
    waits = np.zeros((count, seeds.size))
    between = np.diff(arrivals, axis=0)
    for i in range(1, count):
        waits[i] = np.maximum(0.0, waits[i - 1] + service[i - 1] - between[i - 1])
    return arrivals, waits, service


def run_of(arrivals: Floats, waits: Floats, service: Floats, seed: int, factor: float, seconds: float) -> Run:
    """One run with those waits, every latency `factor` times as long."""
    rng = np.random.default_rng(seed + 1_000_003)
    count = arrivals.size
    gaps = 0.01 * factor * (1 + 2 * waits[:, None]) * rng.gamma(40.0, 1 / 40.0, (count, TOKENS - 1))
    sent = START_NS + (arrivals * 1e9).astype(np.int64)
    first = sent + ((waits + service + 0.02) * factor * 1e9).astype(np.int64)
    gaps_ns = (gaps * 1e9).astype(np.int64)
    last = first + gaps_ns.sum(axis=1)
    made = columns(sent, first, last, gaps_ns.ravel(), np.arange(count + 1) * (TOKENS - 1))
    window = {"start_ns": START_NS, "end_ns": START_NS + int(seconds * 1e9)}
    return Run(None, {"window": window, "clock": "wire", "arrival": {"kind": "poisson"}}, made)  # type: ignore[arg-type]


def study(setting: Setting, pairs: int, seed: int) -> list[Comparison]:
    """`pairs` comparisons of fresh runs."""
    rng = np.random.default_rng(seed)
    wanted = pairs * 2 * setting.runs
    seeds = rng.integers(0, 2**40, wanted)
    if setting.paired:
        seeds = np.repeat(seeds[: wanted // 2], 2)
    arrivals, waits, service = queue(seeds, setting.load, setting.seconds)
    spread = np.exp(rng.normal(0, setting.launch_spread, wanted))
    found = []
    for pair in range(pairs):
        sides: tuple[list[Measurement], list[Measurement]] = ([], [])
        for k in range(2 * setting.runs):
            at, side = pair * 2 * setting.runs + k, k % 2
            factor = float(spread[at]) * (setting.slower if side else 1.0)
            noise = int(seeds[at]) + side
            run = run_of(arrivals[:, at], waits[:, at], service[:, at], noise, factor, setting.seconds)
            facts = {**run.meta, "seed": int(seeds[at])} if setting.paired else run.meta
            if not setting.paired:
                # Unlike seeds on purpose: told apart, so that nothing is drawn in pairs.
                facts = {**facts, "arrival": {"kind": "closed"}}
            run.meta = facts
            sides[side].append(Measurement(run.facts, {"valid": True}, blocks_of(run)))
        found.append(compare(*sides, force=True))
    return found


def main(pairs: int = 40) -> None:
    """Prints the table: false alarms or finds of the gate, coverage of the plain 95 % intervals."""
    print(f"comparison calibrated on {pairs} pairs a row, {RATE:g} requests/s, {SECONDS:g} s a run\n")
    head = f"{'setting':<50} {'worse':>6} {'better':>6} {'same':>6}  coverage of the 95 % interval"
    print(head)
    print("-" * len(head))
    for number, setting in enumerate(SETTINGS):
        begun = time.monotonic()
        found = study(setting, pairs, seed=number)
        worse = np.mean([any(m.verdict == "worse" for m in c.gated) for c in found])
        better = np.mean([any(m.verdict == "better" for m in c.gated) for c in found])
        same = np.mean([c.verdict == "same" for c in found])
        covered = []
        for name in COVERED:
            told = [m for c in found for m in c.metrics if m.name == name and m.low is not None]
            hits = [m.low <= setting.slower <= m.high for m in told if m.low is not None and m.high is not None]
            covered.append(f"{name} {np.mean(hits):.1%}" if hits else f"{name} -")
        line = f"{setting.name:<50} {worse:>6.1%} {better:>6.1%} {same:>6.1%}  {', '.join(covered)}"
        print(f"{line}  ({time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
