"""What a long run leaves in memory: the suite under Locust at 20,000 events/s, its growth for each finished request.

    python -m benchmarks.memory_growth [--minutes M]

The growth is the slope of resident memory over finished requests in the run's second half, once caches and pools are
full, and is carried forward to two hours. What records weigh lies on the disk, not in memory.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import numpy as np
import psutil

from benchmarks.bench import TOKENS, TruthServer, cores, pinned
from benchmarks.suite import in_scratch
from tailgate.exits import run_command

_STREAMS = 200
_LEAD_S, _TAIL_S, _PERIOD_S = 8.0, 3.0, 1.0
_LONG_S = 2 * 3600.0


def main(quick: bool = False, minutes: float = 10.0) -> None:
    seconds = (2.0 if quick else minutes) * 60
    with TruthServer() as server, in_scratch(server, _STREAMS, _LEAD_S + seconds + _TAIL_S) as command:
        process = pinned(command, cores()[0], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        measured = psutil.Process(process.pid)
        time.sleep(_LEAD_S)
        began, samples = time.monotonic(), list[tuple[float, float]]()
        while time.monotonic() - began < seconds:
            samples.append((server.get("counters")["events"] / TOKENS, measured.memory_info().rss))
            time.sleep(_PERIOD_S)
        took_s = time.monotonic() - began
        most = 0.0
        while process.poll() is None:
            try:
                most = max(most, measured.memory_info().rss)
            except psutil.NoSuchProcess:
                break
            time.sleep(_PERIOD_S / 10)
        process.wait()
    requests, resident = np.array(samples).T
    per_s = (requests[-1] - requests[0]) / took_s
    half = len(samples) // 2
    slope = float(np.polyfit(requests[half:], resident[half:], 1)[0])
    print(f"{_STREAMS} streams, {per_s * TOKENS:,.0f} events/s for {took_s:.0f} s: {requests[-1]:,.0f} requests ended.")
    print(f"Resident: {resident[0] / 1e6:.1f} MB at first, {resident[half] / 1e6:.1f} MB half way, ", end="")
    print(f"{resident[-1] / 1e6:.1f} MB at last, {most / 1e6:.1f} MB while it was summed up.")
    print(f"A finished request leaves {slope:.0f} bytes: {slope * per_s * _LONG_S / 1e6:.0f} MB in two hours.")


def _command_line() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_growth", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to run (default: 10)")
    main(minutes=parser.parse_args().minutes)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(_command_line, "memory_growth"))
