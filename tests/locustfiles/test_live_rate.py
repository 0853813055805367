"""The rate of an open loop while it runs: changed by hand on the web UI, by Locust's users, by a LoadTestShape."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.locust_runs import Ended, end, free_port, headless, start
from tests.support.openai_server import Running

SHAPED = """
import sys
sys.path.insert(0, {root!r})
from locust import LoadTestShape
from locustfiles.users import StreamUser


class ChatUser(StreamUser):
    pass


class Steps(LoadTestShape):
    def tick(self):
        seconds = self.get_run_time()
        return (10, 100) if seconds < 3 else (40, 100) if seconds < 6 else None
"""


def ask(port: int, path: str, **form: object) -> Any:
    data = urllib.parse.urlencode(form).encode() if form else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        return json.load(error)


def rate_between(ended: Ended, begin_s: float, end_s: float) -> float:
    """Requests/s scheduled between these times after the start."""
    offsets = [((record.scheduled_ns or 0) - ended.meta["window"]["start_ns"]) / 1e9 for record in ended.records]
    return sum(begin_s <= offset < end_s for offset in offsets) / (end_s - begin_s)


def test_the_rate_is_changed_by_hand_and_not_by_users(server: Running, small: Path, tmp_path: Path) -> None:
    directory, port, workers_port = tmp_path / "run", free_port(), free_port()
    process = start(
        *("-f", "locustfiles/chat.py", "--web-host", "127.0.0.1", "--web-port", port, "--processes", 2),
        *("--master-bind-port", workers_port, "--master-port", workers_port),
        *("--workload", small, "--results", directory, "--arrival", "constant", "--request-rate", 20),
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                if ask(port, "/worker-count")["worker_count"] == 2:
                    break
            except OSError:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert ask(port, "/tailgate/rate")["text"] == "There is no run"
        assert ask(port, "/swarm", user_count=1, spawn_rate=1, host=server.url)["success"] is True
        assert ask(port, "/tailgate/rate")["rate"] == 20
        assert ask(port, "/tail-latency/data")["run"]["open_loop"] is True, "the tab links to the rate's page"
        time.sleep(1)
        assert ask(port, "/tailgate/rate", rate="many")["message"].startswith("'many' is not a rate")
        assert ask(port, "/tailgate/rate", rate=80)["rate"] == 80
        time.sleep(1)
        # Locust's own edit: users do not count, a rate in it does.
        assert ask(port, "/swarm", user_count=30, spawn_rate=30)["success"] is True
        time.sleep(1)
        assert ask(port, "/swarm", user_count=30, spawn_rate=30, request_rate=10)["success"] is True
        time.sleep(2)
        ask(port, "/tailgate/rate", rate=0)
        time.sleep(1.5)
        urllib.request.urlopen(f"http://127.0.0.1:{port}/stop", b"", timeout=60).close()
        while not (directory / "summary.json").exists():
            assert time.monotonic() < deadline + 30
            time.sleep(0.2)
    finally:
        os.kill(process.pid, signal.SIGTERM)
        ended = end(process, directory)
    assert "Traceback" not in ended.err
    (first, fast), (second, slow), (third, rest) = ended.meta["rate_changes"]
    assert (fast, slow, rest) == (80, 10, 0)
    assert rate_between(ended, 0, first) == pytest.approx(20, abs=2)
    assert rate_between(ended, first, second) == pytest.approx(80, rel=0.05)
    assert rate_between(ended, second, third) == pytest.approx(10, abs=2)
    assert rate_between(ended, third, third + 9) == 0
    indices = sorted(record.index for record in ended.records)
    assert indices == list(range(len(indices)))
    assert ended.summary["quality"]["requests_missing"] == 0
    assert ended.meta["sent"]["count"] == len(indices)


def test_a_shapes_users_set_the_rate_where_each_stands_for_some(server: Running, small: Path, tmp_path: Path) -> None:
    root, locustfile, directory = str(Path(__file__).parents[2]), tmp_path / "shaped.py", tmp_path / "run"
    locustfile.write_text(SHAPED.format(root=root))
    arguments = headless(server.url, directory, "--workload", small, "--arrival", "constant", "--rate-per-user", 2)
    arguments[1] = str(locustfile)
    ended = end(start(*arguments), directory)
    assert "Traceback" not in ended.err
    changes = ended.meta["rate_changes"]
    assert [rate for _, rate in changes if rate in (20, 80)] == [20, 80]
    slow, fast = (next(at for at, rate in changes if rate == wanted) for wanted in (20, 80))
    assert rate_between(ended, slow, fast) == pytest.approx(20, abs=2)
    assert rate_between(ended, fast, fast + 2) == pytest.approx(80, abs=4)
    # A process held up as the end comes misses what that moment brings; a rate misjudged would miss a hundred.
    assert ended.summary["quality"]["requests_missing"] <= 0.1 * 80


def test_a_closed_loops_changed_number_of_users_is_kept(server: Running, small: Path, tmp_path: Path) -> None:
    root, locustfile, directory = str(Path(__file__).parents[2]), tmp_path / "shaped.py", tmp_path / "run"
    locustfile.write_text(SHAPED.format(root=root))
    arguments = headless(server.url, directory, "--workload", small, "-u", 10)
    arguments[1] = str(locustfile)
    ended = end(start(*arguments), directory)
    [(at_s, users)] = ended.meta["user_changes"]
    assert users == 40
    assert at_s > 2
