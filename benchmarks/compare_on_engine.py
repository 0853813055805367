"""How far a comparison's verdicts can be believed on runs of a real scheduler whose truth is known.

python -m benchmarks.compare_on_engine [--pairs N] [--seeds N]

The embedded engine in virtual time (Llama-3.1-8B on one H100, Poisson arrivals at 30, 60 and 90 % of what it can do)
correlates latencies through its own queue and batches. Every run is a launch of its own, with a speed that is spread
around the nominal one; "worse" is the same launch with every latency 10 % longer, so that the true ratio is known.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from exporters.columns import ABSENT, Columns
from exporters.compare import CONFIDENCE, DEFAULT_GATE, Comparison, Measurement, compare
from exporters.record import RequestRecord
from exporters.run import Run
from tailgate.command_line import Parser
from tailgate.exits import Exit, run_command
from vllm_launch.simulated.settings import EngineSettings
from vllm_launch.simulated.virtual import Ask, Outcome, open_loop

LOADS = (0.3, 0.6, 0.9)
RUN_S, WARM_UP_S = 120.0, 15.0
LAUNCH_SIGMA = 0.01
SLOWER = 1.1
START_NS = 1_790_000_000_000_000_000
_PROMPT, _ANSWER = (64, 1024), (32, 96)
_PUBLIC = "meta-llama/Llama-3.1-8B-Instruct", "h100-sxm"


@dataclass
class Bank:
    """Runs of one load: `launches[seed][k]` is launch k under that seed's schedule, `slower` the same 10 % slower."""

    launches: list[list[Measurement]]
    slower: list[list[Measurement]]


def main(quick: bool = False, pairs: int = 30, seeds: int = 10) -> None:
    """Prints false alarms, power and coverage by load, then what a comparison of ten million gaps costs."""
    if quick:
        pairs, seeds = 10, 6
    settings, _ = EngineSettings.from_flags(*_PUBLIC, {})
    capacity = _capacity(settings)
    print(f"SIMULATED. {_PUBLIC[0]} on {_PUBLIC[1]}: {capacity:.1f} requests/s at most; two {RUN_S:.0f}-s runs a side;")
    print(f"{pairs} pairs a line, drawn from {seeds} seeds x 4 launches; launch speeds spread by {LAUNCH_SIGMA:.1%}.")
    print(f"Gate: {', '.join(DEFAULT_GATE)}. In brackets the upper end of a share's 95 % interval.\n")
    columns = f"{'false alarms':>16}{f'x {SLOWER} found':>16}  {CONFIDENCE:.0%} interval covers the truth"
    print(f"{'load':>5}  {'seeds':<9}{columns}")
    for load in LOADS:
        bank = _bank(settings, capacity * load, seeds)
        for same_seeds in (True, False):
            print(_line(load, same_seeds, bank, pairs), flush=True)
    print()
    print(speed(1_000_000 if quick else 10_000_000))


def _line(load: float, same_seeds: bool, bank: Bank, pairs: int) -> str:
    rng = np.random.default_rng(round(load * 100))
    alarms = found = 0
    covered: dict[str, list[bool]] = {}
    for _ in range(pairs):
        base, same, worse = _draw(rng, bank, same_seeds)
        null, effect = compare(base, same), compare(base, worse)
        alarms += null.exit_code == Exit.REGRESSION
        found += effect.exit_code == Exit.REGRESSION
        for comparison, truth in ((null, 1.0), (effect, SLOWER)):
            _note_coverage(comparison, truth, covered)
    shares = {name: float(np.mean(hits)) for name, hits in covered.items()}
    text = "  ".join(f"{name} {shares[name]:.1%}" for name in ("ttft_p95", "ttft_p99", "itl_p95", "itl_p99", "e2e_p95"))
    seeds = "the same" if same_seeds else "drawn"
    return f"{load:>5.0%}  {seeds:<9}{_share(alarms, pairs):>16}{_share(found, pairs):>16}  {text}"


def _draw(rng: Any, bank: Bank, same_seeds: bool) -> tuple[list[Measurement], list[Measurement], list[Measurement]]:
    """Two launches of a side under two seeds each; with `same_seeds` both sides replay the same two schedules."""
    if same_seeds:
        of_base = of_other = rng.choice(len(bank.launches), 2, replace=False)
    else:
        of_base, of_other = np.split(rng.choice(len(bank.launches), 4, replace=False), 2)
    mine, others = zip(*(rng.choice(4, 2, replace=False) for _ in range(2)), strict=True)
    return (
        [bank.launches[seed][k] for seed, k in zip(of_base, mine, strict=True)],
        [bank.launches[seed][k] for seed, k in zip(of_other, others, strict=True)],
        [bank.slower[seed][k] for seed, k in zip(of_other, others, strict=True)],
    )


def _note_coverage(comparison: Comparison, truth: float, covered: dict[str, list[bool]]) -> None:
    for figure in comparison.metrics:
        if figure.unit == "s" and figure.low is not None and figure.high is not None:
            covered.setdefault(figure.name, []).append(figure.low <= truth <= figure.high)


def _share(hits: int, of: int) -> str:
    """A share with the upper end of its 95 % interval (Wilson)."""
    p, z = hits / of, 1.96
    high = (p + z * z / (2 * of) + z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))) / (1 + z * z / of)
    return f"{p:.1%} (<{high:.1%})"


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


def _bank(settings: EngineSettings, rate: float, seeds: int) -> Bank:
    bank = Bank([], [])
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 1])
        asks = _asks(np.random.default_rng([seed, 0]), rate, WARM_UP_S + RUN_S)
        outcomes = [
            open_loop(replace(settings, slowdown=float(np.exp(rng.normal(0, LAUNCH_SIGMA)))), asks, keep_tokens=True)
            for _ in range(4)
        ]
        bank.launches.append([_measured(outcome, seed, rate, 1.0) for outcome in outcomes])
        bank.slower.append([_measured(outcome, seed, rate, SLOWER) for outcome in outcomes])
    return bank


def _measured(outcome: Outcome, seed: int, rate: float, slower: float) -> Measurement:
    columns = Columns.of(_records(outcome, slower))
    return Measurement.of(Run(Path(), _meta(seed, rate, RUN_S), columns))


def _records(outcome: Outcome, slower: float) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    for served in outcome.served:
        if served.arrival_s < WARM_UP_S or served.token_s is None:
            continue
        sent = START_NS + round((served.arrival_s - WARM_UP_S) * 1e9)
        events = sent + np.round((np.array(served.token_s) - served.arrival_s) * (slower * 1e9)).astype(np.int64)
        records.append(
            RequestRecord(
                index=len(records),
                worker="w0",
                request_class="chat",
                endpoint="/v1/chat/completions",
                scheduled_ns=sent,
                sent_ns=sent,
                first_ns=int(events[0]),
                last_ns=int(events[-1]),
                end_ns=int(events[-1]),
                gaps_ns=np.diff(events).tolist(),
                events=events.size,
                output_tokens=events.size,
                outcome="ok",
                clock="wire",
            )
        )
    return records


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
    started = time.perf_counter()
    compare(runs[:1], runs[1:])
    return (
        f"two runs of {gaps:,} gaps: compared in {time.perf_counter() - started:.1f} s; "
        f"peak memory {_peak_mb():.0f} MB, {before:.0f} MB of it the runs themselves"
    )


def _many(gaps: int, side: int) -> Columns:
    """A run of `gaps` gaps, 500 a request, as columns; made in place so that making it is not what costs memory."""
    rng = np.random.default_rng(side)
    count = gaps // 500
    sent = START_NS + np.sort(rng.integers(0, int(580e9), count))
    flat = (
        rng.gamma(
            16.0,
            0.0006,
            count * 500,
        )
        * 1e9
    ).astype(np.int64)
    first = sent + (rng.gamma(4.0, 0.02, count) * 1e9).astype(np.int64)
    last = first + flat.reshape(count, 500).sum(axis=1)
    nothing = np.full(count, ABSENT)
    zero, tokens = np.zeros(count, dtype=np.int64), np.full(count, 501)
    return Columns(
        index=np.arange(count),
        scheduled_ns=sent,
        sent_ns=sent,
        first_ns=first,
        last_ns=last,
        end_ns=last,
        connect_ns=nothing,
        events=tokens,
        coalesced=zero,
        prompt_tokens=nothing,
        output_tokens=tokens,
        cached_tokens=nothing,
        outcome=zero,
        class_code=zero,
        worker_code=zero,
        in_window=np.ones(count, dtype=bool),
        counted_events=np.zeros(count, dtype=bool),
        gaps_ns=flat,
        gap_starts=np.arange(count + 1) * 500,
        gap_tokens=None,
        classes=["chat"],
        workers=["w0"],
        errors=[None] * count,
        clocks={"wire"},
    )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def _command() -> int:
    parser = Parser(prog="python -m benchmarks.compare_on_engine", description=__doc__)
    parser.add_argument("--pairs", type=int, default=30, help="pairs of sides a line (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="schedules to draw them from (default: %(default)s)")
    options = parser.parse_args()
    main(pairs=options.pairs, seeds=max(options.seeds, 4))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(_command, "compare_on_engine"))
