"""The whole suite as a user runs it (`locust -f locustfiles/chat.py`) against the truth, Locust's own cost included."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.bench import TOKENS, TruthServer, compiled, cores, pinned, python, watch_steadily

_STREAMS, _QUICK_STREAMS = ((100, 0), (300, 0), (300, 2), (700, 0)), ((100, 0), (300, 0))
_LEAD_S, _SECONDS, _TAIL_S = 6.0, 8.0, 2.0
_WORKLOAD = f"""
name: truth
description: Answers of {TOKENS} tokens, to measure the client by.
classes:
  chat:
    input-tokens: 16
    output-tokens: {TOKENS}
arrival: {{kind: closed, users: 16}}
warm-up: {{seconds: 0}}
"""


def main(quick: bool = False) -> None:
    print("Locust with its statistics, records and journal, on one core; ms, measured (error).\n")
    print(f"{'streams':>8}{'processes':>10}{'metric':>8}{'p50':>21}{'p95':>21}{'p99':>21}", end="")
    print(f"{'events/s':>10}{'in flight':>10}{'CPU us':>8}{'x C':>6}  valid")
    for streams, processes in _QUICK_STREAMS if quick else _STREAMS:
        _measure(streams, processes)


def _measure(streams: int, processes: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="tailgate-bench-"))
    workload, results = folder / "truth.yaml", folder / "run"
    workload.write_text(_WORKLOAD)
    with TruthServer() as server:
        reader = [str(compiled("bare_reader")), str(server.port), str(streams), "8", str(TOKENS)]
        floor = pinned(reader, cores()[0])
        floor_us = watch_steadily(floor, server, 3.0, 4.0).cpu_us_per_event
        floor.wait()
        server.get("reset")
        command = python("locust", "-f", "locustfiles/chat.py", "--headless", "-u", streams, "-r", streams)
        command += ["-t", f"{_LEAD_S + _SECONDS + _TAIL_S:.0f}s", "-H", server.url, "--workload", str(workload)]
        command += ["--results", str(results)] + (["--processes", str(processes)] if processes else [])
        process = pinned(command, cores()[0], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        steady = watch_steadily(process, server, _LEAD_S, _SECONDS)
        _, said = process.communicate()
        true = server.get("truth")
    try:
        summary = json.loads((results / "summary.json").read_text())
    except OSError:
        print(said, file=sys.stderr)
        raise
    for name, metric, truth in (("TTFT", "ttft_s", "ttft_ms"), ("ITL", "itl_s", "itl_ms")):
        cells = ""
        for quantile in ("p50", "p95", "p99"):
            measured = summary["metrics"][metric][quantile]
            cells += (
                f"{measured * 1e3:.3f} ({(measured * 1e3 / true[truth][quantile] - 1) * 100:+.1f} %)"
                if measured is not None
                else "too few"
            ).rjust(21)
        print(f"{streams:>8}{processes or 1:>10}{name:>8}{cells}", end="")
        if name == "TTFT":
            print(f"{steady.events_per_s:>10.0f}{steady.in_flight / streams:>10.1%}", end="")
            print(
                f"{steady.cpu_us_per_event:>8.1f}{steady.cpu_us_per_event / floor_us:>6.2f}  {summary['valid']}", end=""
            )
        print(flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
