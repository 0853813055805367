"""Poisson arrivals as Locust really sends them: achieved rate, the shape of the gaps, and how late requests leave.

Each run takes a minute, on one worker and on four. The offered schedule is random, so the achieved rate is held against
the number of requests that were due, not against the rate's long mean. The gaps are tested twice against exponential
ones (Kolmogorov-Smirnov, all gaps of the window): as scheduled, and as the requests were handed to the kernel.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from benchmarks.bench import TruthServer, python
from exporters.record import decode_records
from tests.support.locust_runs import free_port

_RATES, _QUICK_RATES = (50, 200, 500), (200,)
_SECONDS, _QUICK_SECONDS = 60, 20
_WARMUP_S = 2
_SEED = 20
_PROMPT_TOKENS, _OUTPUT_TOKENS = 512, 2
_WORKLOAD = f"""
name: arrivals
description: Prompts of {_PROMPT_TOKENS} tokens with the shortest of answers, to measure how they leave.
classes:
  chat: {{input-tokens: {_PROMPT_TOKENS}, output-tokens: {_OUTPUT_TOKENS}}}
"""

Floats = npt.NDArray[np.float64]


def main(quick: bool = False) -> None:
    seconds = _QUICK_SECONDS if quick else _SECONDS
    print(f"Poisson, prompts of {_PROMPT_TOKENS} tokens, {seconds} s; KS: p-value and distance, all gaps of the run.\n")
    print(f"{'req/s':>6}{'workers':>8}{'due':>7}{'sent':>7}{'achieved':>10}", end="")
    print(f"{'KS scheduled':>20}{'KS sent':>20}{'lag p50':>10}{'p99':>10}{'max':>10}{'CPU':>6}  valid")
    for rate in _QUICK_RATES if quick else _RATES:
        for workers in (1, 4):
            measure(rate, workers, seconds)


def measure(rate: float, workers: int, seconds: float, *options: str) -> None:
    """One run, printed as a line; `options` are more of Locust's."""
    folder = Path(tempfile.mkdtemp(prefix="tailgate-bench-"))
    workload, results = folder / "arrivals.yaml", folder / "run"
    workload.write_text(_WORKLOAD)
    with TruthServer() as server:
        port = free_port()
        command = python("locust", "-f", "locustfiles/chat.py", "--headless", "-H", server.url)
        command += ["-t", f"{seconds + _WARMUP_S:.0f}s", "--warmup", f"{_WARMUP_S}", "--workload", str(workload)]
        command += ["--request-rate", f"{rate}", "--seed", f"{_SEED}", "--results", str(results)]
        command += ["--master-bind-port", f"{port}", "--master-port", f"{port}"]
        command += [*options, *(["--processes", f"{workers}"] if workers > 1 else [])]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        meta, summary = (json.loads((results / name).read_text()) for name in ("run.json", "summary.json"))
    except OSError:
        print(ended.stderr, file=sys.stderr)
        raise
    print_line(rate, workers, meta, summary, results / "requests.jsonl")
    shutil.rmtree(folder)


def print_line(rate: float, workers: int, meta: dict[str, Any], summary: dict[str, Any], records: Path) -> None:
    """Everything counted inside the window."""
    begins, ends = meta["window"]["start_ns"], meta["window"]["end_ns"]
    inside = [r for r in decode_records(records) if r.scheduled_ns is not None and begins <= r.scheduled_ns < ends]
    scheduled = np.sort(np.array([r.scheduled_ns for r in inside], float)) / 1e9
    sent = np.sort(np.array([r.sent_ns for r in inside], float)) / 1e9
    due, lag = meta["schedule"]["due_in_window"], summary["metrics"]["send_lag_s"]
    late = np.array([(r.sent_ns - (r.scheduled_ns or 0)) / 1e6 for r in inside])
    print(f"{rate:>6}{workers:>8}{due:>7}{len(inside):>7}{len(inside) / due:>10.2%}", end="")
    print(f"{shape_of(np.diff(scheduled), rate):>20}{shape_of(np.diff(sent), rate):>20}", end="")
    p50, p99 = np.quantile(late, [0.5, 0.99])
    assert lag["count"], "every request has a lag"
    cpu = summary["quality"]["worker_cpu_max"]
    print(f"{p50:>7.3f} ms{p99:>7.3f} ms{late.max():>7.2f} ms{cpu:>6.0%}  {summary['valid']}", flush=True)


def shape_of(gaps: Floats, rate: float) -> str:
    """The test of the gaps against exponential ones of that rate."""
    found = stats.kstest(gaps, stats.expon(scale=1 / rate).cdf)
    return f"p {found.pvalue:.3f} (D {found.statistic:.4f})"


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
