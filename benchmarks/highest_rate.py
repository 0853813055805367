"""The most events a second that one core carries within 1 %, by the clock: where the suite's figures stop being true.

A load is carried if every p50, p95 and p99 of TTFT and ITL is within 1 % (or 0.05 ms) of the truth, at least 98.5 % of
the streams asked for are in flight at the server, and the run calls itself valid.
"""

from __future__ import annotations

from benchmarks.bench import TruthServer
from benchmarks.suite import METRICS, QUANTILES, SuiteRun, run_suite

_SECONDS = 6.0
_WITHIN, _WITHIN_MS, _IN_FLIGHT = 0.01, 0.05, 0.985
_RANGES = {"wire": (300, 1500), "kernel": (100, 700), "user": (20, 600)}
_STEPS = 4


def main(quick: bool = False) -> None:
    print(f"{'clock':<8}{'streams':>8}{'events/s':>10}{'worst error':>13}{'in flight':>11}  {'valid':<7}carried")
    for clock, (low, high) in _RANGES.items():
        best = highest(clock, low, high, steps=2 if quick else _STEPS, tell=True)
        found = "none" if best is None else f"{best.steady.events_per_s:,.0f} events/s at {best.streams} streams"
        print(f"{clock}: the highest that was carried: {found}\n", flush=True)


def highest(clock: str, low: int, high: int, steps: int, tell: bool = False) -> SuiteRun | None:
    """The most demanding run that was carried, by bisection between `low` and `high` streams; None if none was."""
    best = None
    for _ in range(steps + 1):
        streams = round((low + high) / 2 / 10) * 10
        with TruthServer() as server:
            run = run_suite(server, streams, _SECONDS, "--clock", clock)
        if carried(run):
            best, low = run, streams
        else:
            high = streams
        if tell:
            print(f"{clock:<8}{streams:>8}{run.steady.events_per_s:>10.0f}{run.worst_error:>13.2%}", end="")
            print(f"{run.in_flight_share:>11.1%}  {run.summary['valid']!s:<7}{carried(run)}", flush=True)
    return best


def carried(run: SuiteRun) -> bool:
    return run.summary["valid"] and run.in_flight_share >= _IN_FLIGHT and _true(run)


def _true(run: SuiteRun) -> bool:
    for metric in METRICS:
        for quantile in QUANTILES:
            error, measured_ms = run.error(metric, quantile), run.measured_ms(metric, quantile)
            if error is None or measured_ms is None:
                return False
            if abs(error) > _WITHIN and abs(error) * measured_ms > _WITHIN_MS:
                return False
    return True
