"""The whole suite against the truth, Locust's own cost included: how true it is, and what an event costs."""

from __future__ import annotations

import sys

from benchmarks.bench import TruthServer
from benchmarks.suite import METRICS, QUANTILES, SuiteRun, c_reader_us, run_suite

_STREAMS, _QUICK_STREAMS = ((100, 0), (300, 0), (300, 2), (700, 0)), ((100, 0), (300, 0))
_SECONDS = 8.0


def main(quick: bool = False) -> None:
    print("Locust with its statistics, records and journal, on one core; ms, measured (error).\n")
    print(f"{'streams':>8}{'processes':>10}{'metric':>8}{'p50':>21}{'p95':>21}{'p99':>21}", end="")
    print(f"{'events/s':>10}{'in flight':>10}{'CPU us':>8}{'x C':>6}  valid")
    for streams, processes in _QUICK_STREAMS if quick else _STREAMS:
        with TruthServer() as server:
            floor_us = c_reader_us(server, streams)
            options = ("--processes", processes) if processes else ()
            _print(run_suite(server, streams, _SECONDS, *options), processes or 1, floor_us)


def _print(run: SuiteRun, processes: int, floor_us: float) -> None:
    for metric in METRICS:
        cells = "".join(_cell(run, metric, quantile) for quantile in QUANTILES)
        print(f"{run.streams:>8}{processes:>10}{metric:>8}{cells}", end="")
        if metric == "TTFT":
            cpu_us = run.steady.cpu_us_per_event
            print(f"{run.steady.events_per_s:>10.0f}{run.in_flight_share:>10.1%}", end="")
            print(f"{cpu_us:>8.1f}{cpu_us / floor_us:>6.2f}  {run.summary['valid']}", end="")
        print(flush=True)


def _cell(run: SuiteRun, metric: str, quantile: str) -> str:
    measured, error = run.measured_ms(metric, quantile), run.error(metric, quantile)
    return ("too few" if measured is None or error is None else f"{measured:.3f} ({error * 100:+.1f} %)").rjust(21)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
