"""Workers that are lost or join in the middle of an open loop: nothing is sent twice, and what is missing is told."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from exporters.record import RequestRecord, decode_records
from tests.support.locust_runs import Ended, end, free_port, headless, start
from tests.support.openai_server import Running

RATE = 40


def everything_sent(ended: Ended) -> list[RequestRecord]:
    """What reached the run, and what only the lost worker's journal has."""
    journals = (r for path in (ended.directory / "journals").glob("*.jsonl") for r in decode_records(path))
    return list({record.identity: record for record in (*ended.records, *journals)}.values())


@pytest.fixture(scope="module")
def ended(server: Running, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Of a master's two workers one is killed, and another one comes; twenty seconds."""
    directory, port = tmp_path_factory.mktemp("runs") / "run", free_port()
    options = ("--workload", small, "--arrival", "constant", "--request-rate", RATE, "-t", "20s", "--seed", 1)
    master = start(
        *headless(server.url, directory, *options),
        *("--master", "--master-bind-port", port, "--expect-workers", 2),
    )

    def worker() -> subprocess.Popen[str]:
        return start("-f", "locustfiles/chat.py", "--worker", "--master-port", port)

    workers = [worker(), worker()]
    deadline = time.monotonic() + 30
    arrivals = directory / "requests.jsonl"
    while not (arrivals.exists() and all(f"worker-{k}" in arrivals.read_text() for k in range(2))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(workers[0].pid, signal.SIGKILL)
    time.sleep(3)
    workers.append(worker())
    found = end(master, directory)
    for process in workers:
        process.communicate(timeout=20)
    return found


def test_nothing_is_sent_twice(ended: Ended) -> None:
    indices = [record.index for record in everything_sent(ended)]
    assert len(indices) == len(set(indices))


def test_the_others_send_the_lost_ones_share_from_then_on(ended: Ended) -> None:
    schedule = ended.meta["schedule"]
    # The new one joins while the dead one is not yet given up; then it is.
    last = schedule["redeals"][-1]
    assert last["workers"] == 2
    began_ns, end_ns = (ended.meta["window"][key] for key in ("start_ns", "end_ns"))
    due = int((end_ns - began_ns) / 1e9 * RATE)
    assert last["from_index"] < due, "the run lasted long enough for the takeover"
    sent = {record.index for record in ended.records}
    assert sent >= set(range(last["from_index"], due - 1))
    assert {r.worker for r in ended.records if r.index >= last["from_index"]} == _workers_left(ended)


def test_what_nobody_sent_is_reported_as_missing(ended: Ended) -> None:
    quality, lost = ended.summary["quality"], _lost(ended)
    sent = {record.index for record in ended.records if (record.scheduled_ns or 0) < ended.meta["window"]["end_ns"]}
    assert quality["requests_due"] == ended.meta["schedule"]["due_in_window"]
    assert quality["requests_missing"] == quality["requests_due"] - len(sent) > 0
    assert ended.code == 4
    assert f"{quality['requests_missing']} requests that were due in the window were not heard of" in ended.out
    # One reason for one loss, on the console as in the summary.
    reasons = [reason for reason in quality["reasons"] if reason.startswith(lost)]
    assert len(reasons) == 1
    assert reasons[0] in ended.err


def _lost(ended: Ended) -> str:
    (name,) = (name for name, worker in ended.meta["workers"].items() if "lost" in worker)
    return name


def _workers_left(ended: Ended) -> set[str]:
    return set(ended.meta["workers"]) - {_lost(ended)}
