"""How many workers one master carries: a real master, fed by simulated workers, each reporting 5,000 events/s."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.bench import cores, pinned, python
from tailgate.exits import BadInput

EVENTS_PER_S = 5000.0
# As in locustfiles.fleet, which cannot be imported here: Locust would patch this process's threads.
_REPORT_S = 1.0
FULL_SHARE, FULL_LAG_S = 0.95, 1.0
_WATCH_S, _SETTLE_S = 8.0, 3.0
_QUICK_CROWDS = ((10, False), (200, False), (200, True))
_CROWDS = ((10, False), (100, False), (200, False), (1000, False), (10, True), (200, True))


@dataclass(frozen=True, slots=True)
class Load:
    """What a master did under so many workers, in mid-run."""

    workers: int
    page: bool
    cpu_share: float
    memory_mb: float
    lag_p50_s: float
    lag_p99_s: float
    report_bytes: int
    events_taken_share: float

    @property
    def full(self) -> bool:
        return self.cpu_share >= FULL_SHARE or self.lag_p99_s > FULL_LAG_S


def main(quick: bool = False) -> None:
    print(f"One master on one core, its workers simulated, {EVENTS_PER_S:.0f} token events/s each (100 an answer).")
    print(
        "page: with /metrics and the web UI's numbers kept, as with --prometheus-port. lag: from a worker's report to"
    )
    print("the master having dealt with it. taken: records written, of those sent.\n")
    print(f"{'workers':>8}{'page':>6}{'events/s':>11}{'CPU of a core':>15}{'memory MB':>11}", end="")
    print(f"{'lag p50 ms':>12}{'p99 ms':>9}{'bytes/worker/s':>16}{'taken':>8}")
    loads = []
    for workers, page in _QUICK_CROWDS if quick else _CROWDS:
        load = measure(workers, page)
        loads.append(load)
        print(f"{workers:>8}{'yes' if page else 'no':>6}{workers * EVENTS_PER_S:>11,.0f}", end="")
        print(f"{load.cpu_share:>15.1%}{load.memory_mb:>11.0f}", end="")
        print(f"{load.lag_p50_s * 1e3:>12.1f}{load.lag_p99_s * 1e3:>9.1f}{load.report_bytes:>16,}", end="")
        print(f"{load.events_taken_share:>8.1%}{'  FULL' if load.full else ''}", flush=True)
    able = [load for load in loads if not load.full]
    for page in (False, True):
        _say_limit([load for load in able if load.page is page], "with its page" if page else "without a page")
    print(
        "Where one is full: fewer users or shorter answers, or a second fleet beside the first, whose run is the first"
    )
    print("one's repeat to `exporters compare`.")


def _say_limit(able: list[Load], which: str) -> None:
    """A line through the origin and these loads: the cost is the events'."""
    if not able:
        return
    events = np.array([load.workers * EVENTS_PER_S for load in able])
    cost_us = float((events @ np.array([load.cpu_share for load in able])) / (events @ events)) * 1e6
    most = FULL_SHARE / cost_us * 1e6
    print(
        f"\n{which}: {cost_us:.2f} us of the master a token event (least squares through zero), so that it is full",
        end="",
    )
    print(f" at about {most / 1e6:.1f} million events/s: {most / EVENTS_PER_S:.0f} such workers.")


def measure(workers: int, page: bool) -> Load:
    """One master under `workers`, started, watched for some seconds in mid-run, and ended."""
    folder = Path(tempfile.mkdtemp(prefix="tailgate-capacity-"))
    port, engine_port = _free_port(), _free_port()
    engine = pinned(python("vllm_launch.simulated", "--port", engine_port), cores()[1], stdout=subprocess.DEVNULL)
    crowd: subprocess.Popen[str] | None = None
    master: subprocess.Popen[str] | None = None
    told: list[dict[str, Any]] = []
    try:
        _wait_for(engine_port, engine)
        command = python("locust", "-f", "locustfiles/chat.py", "--master", "--headless", "--only-summary")
        command += ["-H", f"http://127.0.0.1:{engine_port}", "--master-bind-port", str(port), "-t", "1h"]
        command += ["-u", str(workers), "-r", str(workers), "--expect-workers", str(workers), "--warmup", "0"]
        command += ["--results", str(folder / "run")]
        command += ["--prometheus-port", str(_free_port())] if page else []
        log = (folder / "log").open("w")
        master = pinned(command, cores()[0], stdout=log, stderr=log)
        _wait_for(port, master)
        crowd = pinned(
            python("benchmarks.simulated_workers", port, workers, EVENTS_PER_S, _REPORT_S),
            cores()[1],
            stdout=subprocess.PIPE,
        )
        listener = threading.Thread(target=_listen, args=(crowd, told), daemon=True)
        listener.start()
        requests = folder / "run" / "requests.jsonl"
        deadline = time.monotonic() + 90
        while not (requests.exists() and requests.stat().st_size):
            if time.monotonic() > deadline or master.poll() is not None:
                raise BadInput("the master did not begin its run", f"look at {folder / 'log'}")
            time.sleep(0.1)
        time.sleep(_SETTLE_S)
        process = psutil.Process(master.pid)
        began, cpu, size = time.monotonic(), sum(process.cpu_times()[:2]), requests.stat().st_size
        told.clear()
        time.sleep(_WATCH_S)
        took = time.monotonic() - began
        lags = np.array([lag for line in told for lag in line["lags_s"]])
        report_bytes = int(told[-1]["report_bytes"])
        line_bytes = requests.open("rb").readline()
        written = (requests.stat().st_size - size) / len(line_bytes)
        return Load(
            workers=workers,
            page=page,
            cpu_share=(sum(process.cpu_times()[:2]) - cpu) / took,
            memory_mb=process.memory_info().rss / 2**20,
            lag_p50_s=float(np.quantile(lags, 0.5)),
            lag_p99_s=float(np.quantile(lags, 0.99)),
            report_bytes=round(report_bytes / _REPORT_S),
            events_taken_share=min(written * 100 / (workers * EVENTS_PER_S * took), 1.0),
        )
    finally:
        for one in (crowd, master, engine):
            if one is not None:
                one.kill()
                one.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _listen(crowd: subprocess.Popen[str], told: list[dict[str, Any]]) -> None:
    assert crowd.stdout is not None, "a pipe"
    told.extend(map(json.loads, crowd.stdout))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise BadInput(f"nothing listens on port {port}", "try again") from None
            time.sleep(0.05)
