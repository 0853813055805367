"""How many workers one master carries: a real master, fed by simulated workers, each reporting 5,000 events/s."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.bench import cores, pinned, python
from tailgate.exits import BadInput

EVENTS_PER_S = 5000.0
FULL_SHARE, FULL_LAG_S = 0.95, 1.0
_WATCH_S, _SETTLE_S = 8.0, 3.0
# As the tab's script does, and a Prometheus in a hurry.
_LOOKS_S = {"/tail-latency/data": 2.0, "/metrics": 5.0}
_CROWDS, _QUICK_CROWDS = (10, 100, 200, 1000), (10, 200)


@dataclass(frozen=True, slots=True)
class Load:
    """What a master did under so many workers, in mid-run."""

    workers: int
    page: bool
    cpu_share: float
    peak_mb: float
    lag_p50_s: float
    lag_p99_s: float
    bytes_per_s: float
    report_s: float
    slowest_look_s: float | None
    events_taken_share: float

    @property
    def full(self) -> bool:
        return self.cpu_share >= FULL_SHARE or self.lag_p99_s > FULL_LAG_S


def main(quick: bool = False) -> None:
    print(f"One master on one core, its workers simulated, {EVENTS_PER_S:.0f} token events/s each (100 an answer).")
    print("page: a web UI whose Tail latency tab is asked every 2 s, and /metrics every 5 s; look: the slowest answer.")
    print("lag: from a worker's report to the master having dealt with it. every: between a worker's reports.")
    print("taken: records written, of those sent.\n")
    print(f"{'workers':>8}{'page':>6}{'events/s':>11}{'CPU of a core':>15}{'peak MB':>9}", end="")
    print(f"{'lag p50 ms':>12}{'p99 ms':>8}{'look ms':>9}{'bytes/worker/s':>16}{'every s':>9}{'taken':>8}")
    for page in (False, True):
        loads = []
        for workers in _QUICK_CROWDS if quick else _CROWDS:
            load = measure(workers, page)
            loads.append(load)
            look = "-" if load.slowest_look_s is None else f"{load.slowest_look_s * 1e3:.0f}"
            print(f"{workers:>8}{'yes' if page else 'no':>6}{workers * EVENTS_PER_S:>11,.0f}", end="")
            print(f"{load.cpu_share:>15.1%}{load.peak_mb:>9.0f}", end="")
            print(f"{load.lag_p50_s * 1e3:>12.1f}{load.lag_p99_s * 1e3:>8.1f}{look:>9}", end="")
            print(f"{load.bytes_per_s:>16,.0f}{load.report_s:>9g}", end="")
            print(f"{load.events_taken_share:>8.1%}{'  FULL' if load.full else ''}", flush=True)
        _say_limit([load for load in loads if not load.full])
    print(
        "A master that is nearly full has its workers report every 2, then every 4 s; one that is full even so says it:"
    )
    print("have fewer users or shorter answers, or a second fleet, whose run is the first one's repeat to `compare`.")


def _say_limit(able: list[Load]) -> None:
    """A line through the origin and these loads: the cost is the reports'."""
    if not able:
        return
    workers = np.array([load.workers for load in able], dtype=float)
    each = float((workers @ np.array([load.cpu_share for load in able])) / (workers @ workers))
    print(f"a worker costs its master {each:.3%} of a core, {each / EVENTS_PER_S * 1e6:.3f} us a token event", end="")
    print(f" (least squares through zero): full at about {FULL_SHARE / each:.0f} such workers\n")


def measure(workers: int, page: bool) -> Load:
    """One master under `workers`, started, watched for some seconds in mid-run, and ended."""
    folder = Path(tempfile.mkdtemp(prefix="tailgate-capacity-"))
    port, engine_port, web_port = (_free_port() for _ in range(3))
    engine = pinned(python("vllm_launch.simulated", "--port", engine_port), cores()[1], stdout=subprocess.DEVNULL)
    crowd: subprocess.Popen[str] | None = None
    master: subprocess.Popen[str] | None = None
    told: list[dict[str, Any]] = []
    looks: list[float] = []
    over = threading.Event()
    try:
        _wait_for(engine_port, engine)
        command = python("locust", "-f", "locustfiles/chat.py", "--master", "--only-summary", "--warmup", "0")
        command += ["-H", f"http://127.0.0.1:{engine_port}", "--master-bind-port", str(port), "-t", "1h"]
        command += ["-u", str(workers), "-r", str(workers), "--expect-workers", str(workers)]
        command += ["--results", str(folder / "run")]
        command += ["--autostart", "--web-host", "127.0.0.1", "--web-port", str(web_port)] if page else ["--headless"]
        log = (folder / "log").open("w")
        master = pinned(command, cores()[0], stdout=log, stderr=log)
        _wait_for(port, master)
        crowd = pinned(
            python("benchmarks.simulated_workers", port, workers, EVENTS_PER_S), cores()[1], stdout=subprocess.PIPE
        )
        threading.Thread(target=_listen, args=(crowd, told), daemon=True).start()
        requests = folder / "run" / "requests.jsonl"
        deadline = time.monotonic() + 90
        while not (requests.exists() and requests.stat().st_size):
            if time.monotonic() > deadline or master.poll() is not None:
                raise BadInput("the master did not begin its run", f"look at {folder / 'log'}")
            time.sleep(0.1)
        for path, every_s in _LOOKS_S.items() if page else ():
            url = f"http://127.0.0.1:{web_port}{path}"
            threading.Thread(target=_look, args=(url, every_s, looks, over), daemon=True).start()
        time.sleep(_SETTLE_S)
        process = psutil.Process(master.pid)
        began, cpu, size = time.monotonic(), sum(process.cpu_times()[:2]), requests.stat().st_size
        told.clear()
        looks.clear()
        time.sleep(_WATCH_S)
        took = time.monotonic() - began
        lags = np.array([lag for line in told for lag in line["lags_s"]])
        line_bytes = requests.open("rb").readline()
        written = (requests.stat().st_size - size) / len(line_bytes)
        return Load(
            workers=workers,
            page=page,
            cpu_share=(sum(process.cpu_times()[:2]) - cpu) / took,
            peak_mb=_peak_mb(master.pid),
            lag_p50_s=float(np.quantile(lags, 0.5)),
            lag_p99_s=float(np.quantile(lags, 0.99)),
            bytes_per_s=told[-1]["bytes_per_s"],
            report_s=told[-1]["report_s"],
            slowest_look_s=max(looks, default=None),
            events_taken_share=min(written * 100 / (workers * EVENTS_PER_S * took), 1.0),
        )
    finally:
        over.set()
        for one in (crowd, master, engine):
            if one is not None:
                one.kill()
                one.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _look(url: str, every_s: float, looks: list[float], over: threading.Event) -> None:
    while not over.wait(every_s):
        began = time.monotonic()
        try:
            urllib.request.urlopen(url, timeout=30).read()
        except OSError:
            continue
        looks.append(time.monotonic() - began)


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


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
