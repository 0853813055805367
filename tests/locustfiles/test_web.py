"""The web UI over its own HTTP API: faults shown to whoever pressed Start, runs one after the other, reset, stop."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.locust_runs import Ended, end, free_port, start
from tests.support.openai_server import Running


@dataclass
class Ui:
    """Locust's web server of one test."""

    port: int
    directory: Path

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as response:
            return str(response.read().decode())

    def post(self, path: str, **form: object) -> str:
        data = urllib.parse.urlencode(form).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, timeout=90) as response:
            return str(response.read().decode())

    def swarm(self, **form: object) -> dict[str, Any]:
        return dict(json.loads(self.post("/swarm", user_count=4, spawn_rate=50, **form)))

    def stats(self) -> dict[str, Any]:
        return dict(json.loads(self.get("/stats/requests")))

    def wait_for_state(self, *states: str) -> None:
        deadline = time.monotonic() + 20
        while (state := self.stats()["state"]) not in states:
            assert time.monotonic() < deadline, state
            time.sleep(0.2)


@pytest.fixture(params=[(), ("--processes", "2")], ids=["alone", "processes"])
def ui(request: pytest.FixtureRequest, small: Path, tmp_path: Path) -> Iterator[Ui]:
    found, workers_port = Ui(free_port(), tmp_path / "run"), free_port()
    process = start(
        *("-f", "locustfiles/chat.py", "--web-host", "127.0.0.1", "--web-port", found.port),
        *("--workload", small, "--results", found.directory, *request.param),
        *("--master-bind-port", workers_port, "--master-port", workers_port),
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                found.get("/")
                # A master is ready once its workers are.
                if not request.param or json.loads(found.get("/worker-count"))["worker_count"] == 2:
                    break
            except OSError:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield found
    finally:
        os.kill(process.pid, signal.SIGTERM)
        assert "Traceback" not in end(process, found.directory).err


def test_a_session_with_the_web_ui(ui: Ui, server: Running, small: Path) -> None:
    page = ui.get("/")
    assert "request_rate" in page
    assert "api_key_file" not in page

    down = ui.swarm(host="http://127.0.0.1:1", workload=small)
    assert down["success"] is False
    assert down["message"].startswith("no server answers at http://127.0.0.1:1 (connection refused)")
    unknown = ui.swarm(host=server.url, workload="chat-shrt")
    assert unknown["message"] == "unknown workload 'chat-shrt'; did you mean 'chat-short'?"
    assert "chat-shrt" in json.dumps(json.loads(ui.get("/logs")))
    assert ui.stats()["state"] in ("ready", "stopped")

    # The form sends every field, most of them empty.
    form = {"host": server.url, "workload": small, "request_rate": "", "warmup": "", "arrival": "workload"}
    assert ui.swarm(**form, seed="3")["success"] is True
    time.sleep(1.5)
    ui.post("/stats/reset")
    time.sleep(1.5)
    ui.post("/stop")
    ui.wait_for_state("stopped", "ready")
    first = Ended(0, "", "", ui.directory)
    sent_first = first.summary["requests"]["sent"]
    assert sent_first == first.summary["requests"]["ok"] > 0
    assert first.meta["seed"] == 3

    assert ui.swarm(**form, seed="4")["success"] is True
    time.sleep(2.5)
    ui.post("/stop")
    ui.wait_for_state("stopped", "ready")
    second = Ended(0, "", "", ui.directory)
    assert second.meta["seed"] == 4
    earlier = [path for path in ui.directory.parent.glob("run.*") if path.is_dir()]
    assert len(earlier) == 1
    assert Ended(0, "", "", earlier[0]).summary["requests"]["sent"] == sent_first

    # Locust's table is that of the second run alone.
    time.sleep(2.1)
    rows = {(row["method"], row["name"]): row["num_requests"] for row in ui.stats()["stats"]}
    sent = second.summary["requests"]["sent"]
    assert rows["", "Aggregated"] == sent == rows["POST", "short"] + rows["POST", "long"]
    assert rows["ITL", "short"] + rows["ITL", "long"] == second.summary["metrics"]["itl_s"]["count"]
