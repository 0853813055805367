"""How far a comparison's verdicts can be believed on runs of a real scheduler whose truth is known.

python -m benchmarks.compare_on_engine [--pairs N] [--seeds N] [--first-seed N] [--loads 0.3,0.6,0.9] [--processes N]

The embedded engine in virtual time (Llama-3.1-8B on one H100, Poisson arrivals at 30, 60 and 90 % of what it can do)
correlates latencies through its own queue and batches. A side is two runs of two minutes. Three kinds of pairs:

- *one engine*: every run has a seed of its own, and the engine is exactly the same each time;
- *launches*: besides, every run is a launch of its own, whose speed is spread around the nominal one;
- *launches, same seeds*: both sides replay the same two schedules, as an experiment has it.

"worse" is a run with every latency 10 % longer, so that the true ratio is known. Intervals are made for launches that
differ; for one engine they are too wide by what they allow for that.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.made_runs import START_NS, columns
from exporters.columns import Columns
from exporters.compare import CONFIDENCE, DEFAULT_GATE, Measurement, compare
from exporters.record import RequestRecord
from exporters.run import Run
from exporters.run_store import RunStore
from tailgate.exits import BadInput, Exit, run_command
from tailgate.thresholds import COMPARED, LEVELS_COMPARED
from vllm_launch.simulated.settings import EngineSettings
from vllm_launch.simulated.virtual import Ask, Outcome, open_loop

LOADS = (0.3, 0.6, 0.9)
RUN_S, WARM_UP_S = 120.0, 15.0
LAUNCH_SIGMA = 0.0075
SLOWER = 1.1
_PROMPT, _ANSWER = (64, 1024), (32, 96)
_PUBLIC = "meta-llama/Llama-3.1-8B-Instruct", "h100-sxm"
COVERAGE = (0.92, 0.98)
_LESS = 0.4
"""Share of the pairs in which what is worse is looked for."""

_LATENCIES = tuple(f"{metric}_{level}" for metric in COMPARED for level in LEVELS_COMPARED)

Sides = tuple[list[Measurement], list[Measurement], list[Measurement]]


@dataclass
class Bank:
    """Runs of one load, a list a seed: `nominal` by the engine as it is, `launches` two of their own speed, `slower`
    the same as `nominal` (first) and `launches`, 10 % slower."""

    nominal: list[Measurement]
    launches: list[list[Measurement]]
    slower: list[list[Measurement]]


def main(
    quick: bool = False,
    pairs: int = 1000,
    seeds: int = 300,
    first_seed: int = 0,
    loads: tuple[float, ...] = LOADS,
    processes: int = 2,
) -> None:
    """Prints false alarms, power and coverage by load, then what a comparison of ten million gaps costs."""
    if quick:
        pairs, seeds = 20, 6
    print(f"SIMULATED. {_PUBLIC[0]} on {_PUBLIC[1]}; sides of two {RUN_S:.0f}-s runs, drawn from {seeds} seeds a load")
    print(f"(from {first_seed} on); launch speeds spread by {LAUNCH_SIGMA:.2%}. Gate: {', '.join(DEFAULT_GATE)}.")
    print("In brackets the number of pairs. Coverage: the least and the most of the gate's latencies, how many of all")
    print(
        f"{len(_LATENCIES)} latencies lie in {COVERAGE[0]:.0%} to {COVERAGE[1]:.0%}, those that do not; throughput.\n"
    )
    columns = f"{'false alarms':>15}{f'x {SLOWER} found':>14}"
    print(f"{'load':>4}  {'pairs':<21}{columns}  {CONFIDENCE:.0%} interval holds the truth")
    waiting, started = list(loads), list[subprocess.Popen[str]]()
    while waiting or started:
        while waiting and len(started) < processes:
            started.append(_started(waiting.pop(0), pairs, seeds, first_seed))
        said, _ = started.pop(0).communicate()
        print(said, end="", flush=True)
    print()
    gaps = 1_000_000 if quick else 10_000_000
    print(speed(gaps))
    print(speed_from_disk(gaps), flush=True)


def _started(load: float, pairs: int, seeds: int, first_seed: int) -> subprocess.Popen[str]:
    words = ["--only", load, "--pairs", pairs, "--seeds", seeds, "--first-seed", first_seed]
    # Matrices here are so small that a second thread only gets in the way.
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.compare_on_engine", *map(str, words)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def one_load(load: float, pairs: int, seeds: range) -> None:
    """Prints the lines of one load."""
    settings, _ = EngineSettings.from_flags(*_PUBLIC, {})
    bank = _bank(settings, _capacity(settings) * load, seeds)
    kinds: dict[str, Callable[[Any, Bank], Sides]] = {
        "launches": _other_seeds,
        "launches, same seeds": _same_seeds,
        "one engine": _one_engine,
    }
    for name, draw in kinds.items():
        print(f"{load:>4.0%}  {name:<21}{_line(load, draw, bank, pairs, round(pairs * _LESS))}", flush=True)


def _line(load: float, draw: Callable[[Any, Bank], Sides], bank: Bank, pairs: int, worse_pairs: int) -> str:
    rng = np.random.default_rng(round(load * 100))
    alarms = found = 0
    covered: dict[str, list[bool]] = {}
    for number in range(pairs):
        base, same, worse = draw(rng, bank)
        null = compare(base, same)
        alarms += null.exit_code == Exit.REGRESSION
        for figure in null.metrics:
            if figure.low is not None and figure.high is not None and not figure.is_difference:
                covered.setdefault(figure.name, []).append(figure.low <= 1.0 <= figure.high)
        if number < worse_pairs:
            found += compare(base, worse).exit_code == Exit.REGRESSION
    alarmed, seen = f"{alarms / pairs:.1%} ({pairs})", f"{found / worse_pairs:.0%} ({worse_pairs})"
    return f"{alarmed:>15}{seen:>14}  {_coverage({name: float(np.mean(hits)) for name, hits in covered.items()})}"


def _coverage(shares: dict[str, float]) -> str:
    gated = [shares[name] for name in _LATENCIES if name in DEFAULT_GATE]
    outside = [name for name in _LATENCIES if not COVERAGE[0] <= shares[name] <= COVERAGE[1]]
    told = ", ".join(f"{name} {shares[name]:.1%}" for name in outside)
    within = f"{len(_LATENCIES) - len(outside)} within" + (f", not {told}" if told else "")
    return f"{min(gated):.1%} to {max(gated):.1%}; {within}; {shares['throughput']:.1%}"


def _one_engine(rng: Any, bank: Bank) -> Sides:
    seeds = rng.choice(len(bank.nominal), 4, replace=False)
    return (
        [bank.nominal[s] for s in seeds[:2]],
        [bank.nominal[s] for s in seeds[2:]],
        [bank.slower[s][0] for s in seeds[2:]],
    )


def _other_seeds(rng: Any, bank: Bank) -> Sides:
    seeds, which = rng.choice(len(bank.launches), 4, replace=False), rng.integers(0, 2, 4)
    drawn = list(zip(seeds, which, strict=True))
    return (
        [bank.launches[s][k] for s, k in drawn[:2]],
        [bank.launches[s][k] for s, k in drawn[2:]],
        [bank.slower[s][k + 1] for s, k in drawn[2:]],
    )


def _same_seeds(rng: Any, bank: Bank) -> Sides:
    seeds, which = rng.choice(len(bank.launches), 2, replace=False), rng.integers(0, 2, 2)
    drawn = list(zip(seeds, which, strict=True))
    return (
        [bank.launches[s][k] for s, k in drawn],
        [bank.launches[s][1 - k] for s, k in drawn],
        [bank.slower[s][2 - k] for s, k in drawn],
    )


def _capacity(settings: EngineSettings) -> float:
    """Requests/s that the engine gets done when all of them wait from the start."""
    asks = [replace(ask, arrival_s=0.0) for ask in _asks(np.random.default_rng(0), 100.0, 20.0)]
    outcome = open_loop(settings, asks)
    return len(asks) / outcome.virtual_s


def _asks(rng: Any, rate: float, seconds: float) -> list[Ask]:
    arrivals = np.cumsum(rng.exponential(1 / rate, int(rate * seconds * 1.2)))
    arrivals = arrivals[arrivals < seconds]
    prompts = rng.integers(*_PROMPT, size=arrivals.size)
    answers = rng.integers(*_ANSWER, size=arrivals.size)
    return [Ask(int(p), int(a), float(t)) for p, a, t in zip(prompts, answers, arrivals, strict=True)]


def _bank(settings: EngineSettings, rate: float, seeds: range) -> Bank:
    bank = Bank([], [], [])
    for seed in seeds:
        rng = np.random.default_rng([seed, 1])
        asks = _asks(np.random.default_rng([seed, 0]), rate, WARM_UP_S + RUN_S)
        speeds = [1.0, *np.exp(rng.normal(0, LAUNCH_SIGMA, 2)).tolist()]
        outcomes = [open_loop(replace(settings, slowdown=speed), asks, keep_tokens=True) for speed in speeds]
        nominal, *launches = (_measured(outcome, seed, rate, 1.0) for outcome in outcomes)
        bank.nominal.append(nominal)
        bank.launches.append(launches)
        bank.slower.append([_measured(outcome, seed, rate, SLOWER) for outcome in outcomes])
    return bank


def _measured(outcome: Outcome, seed: int, rate: float, slower: float) -> Measurement:
    return Measurement.of(Run(Path(), _meta(seed, rate, RUN_S), _columns_of(outcome, slower)))


def _columns_of(outcome: Outcome, slower: float) -> Columns:
    """The requests after the warm-up, each latency `slower` times as long."""
    chosen = [served for served in outcome.served if served.arrival_s >= WARM_UP_S and served.token_s]
    times = [np.array(served.token_s) - served.arrival_s for served in chosen]
    after = [np.round(one * (slower * 1e9)).astype(np.int64) for one in times]
    sent = START_NS + np.array([round((served.arrival_s - WARM_UP_S) * 1e9) for served in chosen])
    counts = np.array([one.size for one in after])
    gaps = np.concatenate([np.diff(one) for one in after])
    firsts, lasts = np.array([one[0] for one in after]), np.array([one[-1] for one in after])
    return columns(sent, sent + firsts, sent + lasts, gaps, np.concatenate(([0], np.cumsum(counts - 1))))


def _meta(seed: int, rate: float | None, seconds: float) -> dict[str, Any]:
    return {
        "workload": "calibration",
        "model": _PUBLIC[0],
        "seed": seed,
        "seed_drawn": True,
        "arrival": {"kind": "poisson"},
        "clock": "wire",
        "simulated": True,
        "engine": {"name": "tailgate-simulated", "simulated": True},
        "window": {"start_ns": START_NS, "end_ns": START_NS + round(seconds * 1e9)},
    }


def speed(gaps: int) -> str:
    """Time and memory that comparing two runs of `gaps` gaps each takes, from columns in memory to the verdict."""
    runs = [Run(Path(), _meta(side, None, 600.0), _many(gaps, side)) for side in range(2)]
    before = _peak_mb()
    started, cpu_s = time.perf_counter(), time.process_time()
    compare(runs[:1], runs[1:])
    took, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
    return (
        f"two runs of {gaps:,} gaps: compared in {took:.1f} s ({cpu_s:.1f} s of CPU); "
        f"peak memory {_peak_mb():.0f} MB, {before:.0f} MB of it the runs themselves"
    )


def speed_from_disk(gaps: int) -> str:
    """The same as a user has it: the command, two run directories, and all their records to be read."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("base", "candidate")]
        for side, path in enumerate(paths):
            _write(path, side, _many(gaps, side))
        started = time.perf_counter()
        words = [sys.executable, "-m", "exporters", "compare", *map(str, paths), "--json"]
        done = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(done.pid, 0)
        done.returncode = os.waitstatus_to_exitcode(status)
        took = time.perf_counter() - started
    if done.returncode not in (Exit.GOOD, Exit.REGRESSION):
        raise RuntimeError(f"exporters compare ended with {done.returncode}")
    cpu_s = used.ru_utime + used.ru_stime
    said = f"{took:.1f} s ({cpu_s:.1f} s of CPU) and {used.ru_maxrss / 1000:.0f} MB at most"
    return f"the same from two run directories on disk, with python -m exporters compare: {said}"


def _write(path: Path, side: int, run: Columns) -> None:
    with RunStore.create(path, _meta(side, None, 600.0)) as store:
        for i in range(len(run)):
            gaps = run.gaps_ns[run.gap_starts[i] : run.gap_starts[i + 1]].tolist()
            sent, first, last = (int(getattr(run, f"{what}_ns")[i]) for what in ("sent", "first", "last"))
            record = RequestRecord(
                index=i, worker="w0", request_class="chat", endpoint="/v1/chat/completions", scheduled_ns=sent,
                sent_ns=sent, first_ns=first, last_ns=last, end_ns=last, gaps_ns=gaps, events=len(gaps) + 1,
                output_tokens=len(gaps) + 1, outcome="ok", clock="wire",
            )  # fmt: skip
            store.append([record])


def _many(gaps: int, side: int) -> Columns:
    """A run of `gaps` gaps, 500 a request, as columns; made in place so that making it is not what costs memory."""
    rng = np.random.default_rng(side)
    count = gaps // 500
    sent = START_NS + np.sort(rng.integers(0, int(580e9), count))
    flat = (rng.gamma(16.0, 0.0006, count * 500) * 1e9).astype(np.int64)
    first = sent + (rng.gamma(4.0, 0.02, count) * 1e9).astype(np.int64)
    last = first + flat.reshape(count, 500).sum(axis=1)
    return columns(sent, first, last, flat, np.arange(count + 1) * 500)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def _command() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_on_engine", description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000, help="pairs of sides a line (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=300, help="schedules to draw them from (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument(
        "--loads", default="0.3,0.6,0.9", help="shares of what the engine can do (default: %(default)s)"
    )
    parser.add_argument("--processes", type=int, default=2, help="loads looked at at once (default: %(default)s)")
    parser.add_argument("--only", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    pairs, seeds = max(options.pairs, 10), max(options.seeds, 4)
    if options.only is not None:
        one_load(options.only, pairs, range(options.first_seed, options.first_seed + seeds))
        return 0
    try:
        loads = tuple(float(word) for word in options.loads.split(","))
    except ValueError:
        raise BadInput(f"--loads: '{options.loads}' holds no numbers", "write it like 0.3,0.9") from None
    main(pairs=pairs, seeds=seeds, first_seed=options.first_seed, loads=loads, processes=max(options.processes, 1))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(_command, "compare_on_engine"))
