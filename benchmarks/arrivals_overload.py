"""Waiting under load as queueing theory has it, in open loop; and how a closed loop hides it.

The embedded engine serves one request at a time, each of the same length: a queue of one server with a constant service
time s. Below saturation the mean wait under Poisson arrivals of load a is a s / 2 (1 - a) (Pollaczek and Khinchine;
Kleinrock, Queueing Systems 1, 1975, 5.7); above it who comes at time t waits (a - 1) t.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.bench import python
from exporters.record import RequestRecord, decode_records
from tests.support.embedded_engine import embedded_engine
from workloads.arrivals import ArrivalSpec
from workloads.schedule import make_schedule

_WORKLOAD = """
name: queue
description: Requests that all take the engine equally long.
classes:
  one: {input-tokens: 256, output-tokens: 12}
"""
_SEED = 11

Floats = npt.NDArray[np.float64]


def main(quick: bool = False) -> None:
    folder = Path(tempfile.mkdtemp(prefix="tailgate-bench-"))
    (folder / "queue.yaml").write_text(_WORKLOAD)
    count = 120 if quick else 400
    with embedded_engine("max-num-seqs=1", "max-model-len=4096") as url:
        alone = run(url, folder, "-u", "1", "--num-requests", "20")
        # With two users the server never rests: it is the time between two ends, which knows nothing of ways and hosts.
        ends = np.sort([r.end_ns for r in run(url, folder, "-u", "2", "-r", "100", "--num-requests", "60")]) / 1e9
        service_s = float(np.median(np.diff(ends)))
        print(f"service time {service_s * 1e3:.1f} ms; TTFT counted from the scheduled time in open loop\n")
        print(f"{'loop':<10}{'load':>6}{'requests':>10}{'mean wait':>12}{'by theory':>12}{'this schedule':>15}", end="")
        print(f"{'wait grows by':>15}{'by theory':>11}")
        shortest_s = min(ttft(alone, scheduled=False))
        for load in (0.5, 0.8, 1.5):
            found = run(url, folder, "--request-rate", f"{load / service_s:.4f}", "--num-requests", f"{count}")
            print_line("open", load, ttft(found, scheduled=True) - shortest_s, service_s, begun(found))
        for users in (2, 8):
            found = run(url, folder, "-u", f"{users}", "-r", "100", "--num-requests", f"{count}")
            print_line(f"{users} users", None, ttft(found, scheduled=False) - shortest_s, service_s, begun(found))
    shutil.rmtree(folder)


def run(url: str, folder: Path, *options: str) -> list[RequestRecord]:
    """The records of a run, in the order in which they were sent."""
    directory = folder / "run"
    shutil.rmtree(directory, ignore_errors=True)
    command = python("locust", "-f", "locustfiles/chat.py", "--headless", "-H", url, "--drain", "120", *options)
    command += ["--workload", str(folder / "queue.yaml"), "--seed", f"{_SEED}", "--results", str(directory)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        records = list(decode_records(directory / "requests.jsonl"))
    except OSError:
        print(ended.stderr, file=sys.stderr)
        raise
    return sorted((r for r in records if r.first_ns is not None), key=lambda r: r.scheduled_ns or r.sent_ns)


def ttft(records: list[RequestRecord], scheduled: bool) -> Floats:
    """Seconds to the first token."""
    return np.array(
        [((r.first_ns or 0) - ((r.scheduled_ns if scheduled else None) or r.sent_ns)) / 1e9 for r in records]
    )


def begun(records: list[RequestRecord]) -> Floats:
    """When they were due, or sent, in seconds from the first."""
    at = np.array([r.scheduled_ns or r.sent_ns for r in records], np.int64)
    return (at - at[0]) / 1e9


def lindley(load: float, service_s: float, count: int) -> float:
    """The mean wait that this very schedule must lead to (Lindley's recursion)."""
    schedule = make_schedule(ArrivalSpec(kind="poisson", request_rate=load / service_s), _SEED)
    wait = total = 0.0
    for index in range(1, count):
        wait = max(0.0, wait + service_s - (schedule.at(index) - schedule.at(index - 1)))
        total += wait
    return total / count


def print_line(loop: str, load: float | None, waits: Floats, service_s: float, at: Floats) -> None:
    grows = np.polyfit(at, waits, 1)[0]
    theory = "" if load is None else "grows" if load >= 1 else f"{load * service_s / 2 / (1 - load) * 1e3:.1f} ms"
    mine = "" if load is None else f"{lindley(load, service_s, waits.size) * 1e3:.1f} ms"
    slope = "" if load is None else f"{max(load - 1, 0):.2f} s/s"
    print(f"{loop:<10}{'' if load is None else f'{load:.1f}':>6}{waits.size:>10}{waits.mean() * 1e3:>9.1f} ms", end="")
    print(f"{theory:>12}{mine:>15}{grows:>11.2f} s/s{slope:>11}", flush=True)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
