"""Whether a run that may not be believed says so, every time, and one that may be believed never cries wolf.

Ten runs each: at half of what the core carries; at four fifths of it while a busy loop takes half of the core; and with
a packet ring far too small. Only the first may call themselves valid.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.bench import TruthServer, cores, pinned
from benchmarks.highest_rate import highest
from benchmarks.suite import SuiteRun, run_suite

_RUNS, _QUICK_RUNS = 10, 3
_SECONDS = 4.0
_SMALL_RING = 256


def main(quick: bool = False) -> None:
    best = highest("wire", 300, 1500, steps=2 if quick else 3)
    full = best.streams if best else 300
    print(f"The core carries {full} streams of 10 ms events with the wire clock.\n")
    half, most = round(full / 2), round(full * 0.8)
    runs = _QUICK_RUNS if quick else _RUNS
    _tell("half load", [_run(half) for _ in range(runs)], expected=True)
    with _busy_loop():
        _tell("80 % load, a busy loop beside it", [_run(most) for _ in range(runs)], expected=False)
    _tell(f"a ring of {_SMALL_RING} packets", [_run(half, "--ring-packets", _SMALL_RING) for _ in range(runs)], False)


def _run(streams: int, *options: object) -> SuiteRun:
    with TruthServer() as server:
        return run_suite(server, streams, _SECONDS, *options)


@contextmanager
def _busy_loop() -> Iterator[None]:
    """A process of the same priority that never rests: the scheduler gives it half of the client's core."""
    process = pinned([sys.executable, "-c", "while True: pass"], cores()[0], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _tell(name: str, runs: list[SuiteRun], expected: bool) -> None:
    right = sum(run.summary["valid"] == expected and (run.exit_code == 4) == (not expected) for run in runs)
    print(f"{name}, {runs[0].streams} streams: {right} of {len(runs)} runs {'valid' if expected else 'not valid'}")
    for run in runs:
        if run.summary["valid"] != expected:
            print(f"    error {run.worst_error:.2%}, in flight {run.in_flight_share:.1%}", end="")
            print(f", exit {run.exit_code}: {'; '.join(run.summary['quality']['reasons']) or 'no reason'}")
    reasons = {
        reason.partition(";")[0].partition("(")[0] for run in runs for reason in run.summary["quality"]["reasons"]
    }
    for reason in sorted(reasons):
        print(f"    said: {reason}")
    sys.stdout.flush()
