"""The whole suite as a user runs it (`locust -f locustfiles/chat.py`), on one core, against the truth server."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import TOKENS, Steady, TruthServer, compiled, cores, pinned, python, watch_steadily
from tailgate.exits import BadInput

QUANTILES = ("p50", "p95", "p99")
METRICS = {"TTFT": ("ttft_s", "ttft_ms"), "ITL": ("itl_s", "itl_ms")}
_LEAD_S, _TAIL_S = 6.0, 2.0
# No warm-up: the truth knows of none either.
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


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """One run: what it said, what was true, and what it did in mid-run. `exit_code` is the command's own."""

    streams: int
    summary: dict[str, Any]
    true: dict[str, Any]
    steady: Steady
    exit_code: int

    @property
    def in_flight_share(self) -> float:
        return self.steady.in_flight / self.streams

    def measured_ms(self, metric: str, quantile: str) -> float | None:
        value = self.summary["metrics"][METRICS[metric][0]][quantile]
        return None if value is None else value * 1e3

    def error(self, metric: str, quantile: str) -> float | None:
        """Relative error against the truth; None where the run had too few to say."""
        measured = self.measured_ms(metric, quantile)
        return None if measured is None else measured / self.true[METRICS[metric][1]][quantile] - 1

    @property
    def worst_error(self) -> float:
        """The greatest of all six; infinite where one is missing."""
        errors = [self.error(metric, quantile) for metric in METRICS for quantile in QUANTILES]
        return max(float("inf") if error is None else abs(error) for error in errors)


@contextmanager
def in_scratch(server: TruthServer, streams: int, seconds: float, *options: object) -> Iterator[list[str]]:
    """The command that keeps `streams` users busy for `seconds`, with further Locust `options`; its run directory, the
    last word of the command, is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="tailgate-bench-"))
    workload = folder / "truth.yaml"
    workload.write_text(_WORKLOAD)
    command = python("locust", "-f", "locustfiles/chat.py", "--headless", "-u", streams, "-r", streams)
    command += ["-t", f"{seconds:.0f}s", "-H", server.url, "--workload", str(workload)]
    command += [*(str(option) for option in options), "--results", str(folder / "run")]
    try:
        yield command
    finally:
        shutil.rmtree(folder)


def run_suite(server: TruthServer, streams: int, seconds: float, *options: object, core: int | None = None) -> SuiteRun:
    """`streams` users for `seconds` in mid-run, with further Locust `options`. All of it on one core: the client's."""
    server.get("reset")
    with in_scratch(server, streams, _LEAD_S + seconds + _TAIL_S, *options) as command:
        on = cores()[0] if core is None else core
        process = pinned(command, on, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            steady = watch_steadily(process, server, _LEAD_S, seconds)
        finally:
            _, said = process.communicate()
        try:
            summary = json.loads((Path(command[-1]) / "summary.json").read_text())
        except OSError:
            raise BadInput("the suite left no summary", f"it said: {said.strip()[-500:]}") from None
    return SuiteRun(streams, summary, server.get("truth"), steady, process.returncode)


def c_reader_us(server: TruthServer, streams: int, seconds: float = 4.0) -> float:
    """CPU in us an event of a C program that reads the same streams and parses nothing, on the client's core."""
    lead_s = 3.0
    command = [str(compiled("bare_reader")), str(server.port), str(streams), str(lead_s + seconds + 1), str(TOKENS)]
    process = pinned(command, cores()[0])
    steady = watch_steadily(process, server, lead_s, seconds)
    process.wait()
    return steady.cpu_us_per_event
