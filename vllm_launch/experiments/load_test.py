"""One load test as a user would start it: a Locust master and its workers, as processes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tailgate.exits import BadInput, Exit
from vllm_launch.engine.launch import free_port
from vllm_launch.engine.processes import Child

ROOT = Path(__file__).resolve().parents[2]
_LOCUSTFILE = ROOT / "locustfiles" / "chat.py"
# What Locust itself needs beyond the run time: start, drain, reports.
_START_S, _END_S = 60.0, 120.0
# Locust takes any option from the environment too: what a user's shell holds for other runs must not bend a leg.
_NOT_INHERITED = ("LOCUST_",)


@dataclass(frozen=True)
class Load:
    """What is sent and for how long. `users` is a closed loop's, `request_rate` (per second) a Poisson schedule's.

    `slo` replaces the workload's own objectives.
    """

    workload: str
    users: int | None
    request_rate: float | None
    run_time_s: float
    warm_up_s: float
    seed: int
    workers: int
    slo: str | None = None


def options(load: Load, url: str, label: str, results: Path) -> list[str]:
    """Locust's options for `load` against `url`, as one would type them (without the master's and workers' own)."""
    users = load.users or load.workers
    words = ["-H", url, "-u", str(users), "-r", str(users), "-t", f"{load.run_time_s:g}s"]
    words += ["--workload", load.workload, "--warmup", f"{load.warm_up_s:g}", "--seed", str(load.seed)]
    if load.request_rate is not None:
        words += ["--arrival", "poisson", "--request-rate", f"{load.request_rate:g}"]
    if load.slo is not None:
        words += ["--slo", load.slo]
    return [*words, "--label", label, "--results", str(results)]


def run(
    load: Load,
    url: str,
    label: str,
    results: Path,
    *,
    logs: Path,
    env: dict[str, str],
    tick: Callable[[float], None],
) -> Exit:
    """Runs the load test to its end and returns its exit code; `tick` gets the seconds since its start, often.

    `logs` is a folder for the processes' output. Raises `BadInput` where Locust refused to run, died, or did not end.
    """
    port = free_port()
    locust = [sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE)]
    master_words = ["--headless", "--only-summary", "--no-report", "--master", "--master-bind-host", "127.0.0.1"]
    master_words += ["--master-bind-port", str(port), "--expect-workers", str(load.workers)]
    worker_words = ["--worker", "--master-host", "127.0.0.1", "--master-port", str(port)]
    master_log = logs / f"{results.name}-master.log"
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(
            Child(
                [*locust, *master_words, *options(load, url, label, results)], master_log, env, without=_NOT_INHERITED
            )
        )
        for number in range(load.workers):
            log = logs / f"{results.name}-worker-{number}.log"
            stack.enter_context(Child([*locust, *worker_words], log, env, without=_NOT_INHERITED))
        started = time.monotonic()
        while (status := master.poll()) is None:
            waited = time.monotonic() - started
            if waited > _START_S + load.run_time_s + _END_S:
                raise BadInput(f"Locust had not ended after {waited:.0f} s", f"see its log {master_log}")
            tick(waited)
            time.sleep(0.1)
    if status < 0:
        raise BadInput(f"the load test was ended by signal {-status}", f"its log is {master_log}")
    # A crash of Locust's own ends as failed requests do; only a summary tells them apart.
    ran = status in (Exit.GOOD, Exit.REQUESTS_FAILED, Exit.REGRESSION, Exit.NOT_VALID)
    if not ran or not (results / "summary.json").is_file():
        last = next(iter(master.tail(1)), f"exit status {status}")
        raise BadInput(f"the load test did not run: {last.removeprefix('locust: ')}", f"its log is {master_log}")
    return Exit(status)
