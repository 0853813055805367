"""An embedded engine as a process of its own, and the least client to talk to it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@dataclass
class EngineProcess:
    process: subprocess.Popen[str]
    port: int
    said: list[str] = field(default_factory=list)

    def ask(
        self, path: str, body: object = None, headers: dict[str, str] | None = None, method: str | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; `body` is sent as JSON, or as it is if it is bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method or ("GET" if data is None else "POST"), path, data, headers or {})
        answer = connection.getresponse()
        read = answer.read()
        connection.close()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, read

    def json(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> Any:
        return json.loads(self.ask(path, body, headers)[2])

    def events(self, path: str, body: object) -> list[str]:
        """The `data:` payloads of a stream."""
        status, _, read = self.ask(path, body)
        assert status == 200, read
        return [event.removeprefix("data: ") for event in read.decode().split("\n\n") if event]

    def metric(self, name: str) -> float:
        """The value of a sample; `name` with or without its labels."""
        page = self.ask("/metrics")[2].decode()
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
        assert found, f"{name} is not on the page"
        return sum(map(float, found))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


def start(*options: str, env: dict[str, str] | None = None) -> EngineProcess:
    command = [sys.executable, "-m", "vllm_launch.simulated", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("Ready on"):
            return EngineProcess(process, int(line.rsplit(":", 1)[1]), said)
    raise AssertionError(f"the engine did not start: {said}")


@pytest.fixture
def launch() -> Iterator[Callable[..., EngineProcess]]:
    """Starts engines with the given options, and ends them after the test."""
    started: list[EngineProcess] = []

    def begin(*options: str, env: dict[str, str] | None = None) -> EngineProcess:
        started.append(start(*options, env=env))
        return started[-1]

    yield begin
    for engine in started:
        engine.process.kill()
        engine.process.wait()


@pytest.fixture(scope="session")
def engine() -> Iterator[EngineProcess]:
    """One engine many tests share: served as `tiny` with the limits of the captured server, and quick."""
    flags = ("served-model-name=tiny", "max-model-len=4096")
    running = start("--slowdown", "0.1", *(option for flag in flags for option in ("--flag", flag)))
    yield running
    running.process.kill()
    running.process.wait()
