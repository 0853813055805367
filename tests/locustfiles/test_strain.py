"""A master that is nearly full says so and has its workers report less often; nothing is lost by that."""

from __future__ import annotations

from pathlib import Path

import pytest

from locustfiles.strain import Strain
from tests.support.locust_runs import end, free_port, headless, start
from tests.support.openai_server import Running

# Most of the master's time goes to something else, and each worker's reports are noted as they come.
BUSY = """
import time
import gevent
from locust import events
from locust.runners import MasterRunner
from locustfiles.chat import ChatUser

came = {}

@events.init.add_listener
def on_init(environment, runner, **_):
    if isinstance(runner, MasterRunner):
        gevent.spawn(burn)

def burn():
    while True:
        ends = time.perf_counter() + 0.6
        while time.perf_counter() < ends:
            pass
        gevent.sleep(0.05)

@events.worker_report.add_listener
def on_report(client_id, **_):
    came.setdefault(client_id, []).append(time.monotonic())

@events.quitting.add_listener
def on_quitting(environment, **_):
    if came:
        print("LONGEST", min(max(b - a for a, b in zip(times, times[1:])) for times in came.values()))
"""


def test_a_busy_masters_workers_report_less_often(server: Running, small: Path, tmp_path: Path) -> None:
    locustfile = tmp_path / "busy.py"
    locustfile.write_text(BUSY)
    directory, port = tmp_path / "run", free_port()
    arguments = headless(server.url, directory, "--workload", small, "-u", 4, "-r", 50, "-t", "9s", "--warmup", 0)
    arguments[arguments.index("locustfiles/chat.py")] = locustfile
    arguments += ["--master", "--master-bind-port", port, "--expect-workers", 2, "--loglevel", "WARNING"]
    master = start(*arguments)
    workers = [start("-f", locustfile, "--worker", "--master-port", port) for _ in range(2)]
    ended = end(master, directory)
    for worker in workers:
        end(worker, directory, timeout_s=20)
    told = ended.meta["master"]
    assert told["report_interval_s"] >= 2
    assert told["loop_lag_s"] > 0.25
    said = told["said"][0]
    assert said.startswith("the master was nearly full (")
    assert said.endswith("workers report every 2 s since then")
    assert said in ended.out
    assert said in ended.err
    longest = next(line for line in ended.out.splitlines() if line.startswith("LONGEST"))
    assert float(longest.removeprefix("LONGEST ")) > 1.8
    assert len(ended.records) == ended.meta["sent"]["count"] == ended.summary["requests"]["sent"]


def test_the_interval_grows_to_a_limit_and_then_it_is_said_that_the_master_is_full() -> None:
    eased: list[float] = []
    strain = Strain(eased.append)
    strain.end()
    for cpu_share, lag_s in ((0.5, 0.1), (0.75, 0.0), (0.3, 0.3), (0.8, 0.4), (0.95, 0.02), (0.97, 0.0)):
        strain.judge(cpu_share, lag_s)
    assert eased == [2, 4]
    told = strain.facts()
    assert (told["cpu_share"], told["loop_lag_s"], told["report_interval_s"]) == (0.97, 0.4, 4)
    assert [line.split(" (")[0] for line in told["said"]] == ["the master was nearly full"] * 2 + [
        "the master was full"
    ]


@pytest.mark.parametrize(("cpu_share", "lag_s"), [(0.6, 0.2), (0.0, 0.0)])
def test_a_master_with_time_to_spare_changes_nothing(cpu_share: float, lag_s: float) -> None:
    eased: list[float] = []
    strain = Strain(eased.append)
    strain.end()
    strain.judge(cpu_share, lag_s)
    assert eased == strain.facts()["said"] == []
