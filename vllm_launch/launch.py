"""Starts the engine of a launch config, waits until it serves, and ends it surely.

with launch(config, "simulated", log=Path("engine.log")) as engine:
    ... engine.url, engine.model ...
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from tailgate.exits import BadInput
from vllm_launch import cpu_vllm, engine_api
from vllm_launch.config import LaunchConfig
from vllm_launch.engines import command, require_vllm
from vllm_launch.processes import Child

HOST = "127.0.0.1"
START_TIMEOUT_S = {"simulated": 60.0, "vllm": 1800.0}
# Below every system's range for outgoing connections: a port from that range, free a moment ago, may belong to
# somebody's connection by the time the engine binds it.
_UNASSIGNED = range(18_000, 30_000)
Say = Callable[[str], None]


class LaunchFailed(BadInput):
    """The engine died or did not come up; `log_tail` holds its own last lines."""

    def __init__(self, problem: str, mend: str, log_tail: list[str]) -> None:
        super().__init__(problem, mend)
        self.log_tail = log_tail


@dataclass(frozen=True)
class RunningEngine:
    """An engine that serves: it has answered `/health` and streamed a first token."""

    url: str
    model: str
    child: Child
    started_in_s: float
    version: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raises `LaunchFailed` if the engine has died since."""
        status = self.child.poll()
        if status is not None:
            raise _failed(self.child, f"the engine ended by itself ({_status(status)})")


@contextlib.contextmanager
def launch(
    config: LaunchConfig,
    engine: str,
    *,
    log: Path | None,
    port: int | None = None,
    host: str = HOST,
    python: str | None = None,
    say: Say = lambda text: None,
    timeout_s: float | None = None,
) -> Iterator[RunningEngine]:
    """The engine, ready to serve; ended with all it started on leaving. `port` None: a free one.

    Raises `BadInput` where it cannot be started, `LaunchFailed` where it died or was not ready after `timeout_s`.
    """
    if port is not None:
        require_free(host, port)
    chosen = free_port(host) if port is None else port
    asked = command(config, engine, host=host, port=chosen, python=python)
    if engine == "vllm":
        require_vllm(asked.argv[0], config)
        if config.model.startswith(cpu_vllm.GENERATED):
            cpu_vllm.make_model(config.model)
    started = time.monotonic()
    with Child(asked.argv, log, asked.env) as child:
        reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        url = f"http://{reached}:{chosen}"
        model = _await(child, url, timeout_s or START_TIMEOUT_S[engine], say)
        yield RunningEngine(url, model, child, time.monotonic() - started, engine_api.version(url))


def _await(child: Child, url: str, timeout_s: float, say: Say) -> str:
    """Polls until the engine has streamed a token; returns the model's name."""
    started = time.monotonic()
    problem = "no answer on /health"
    while (waited := time.monotonic() - started) < timeout_s:
        status = child.poll()
        if status is not None:
            raise _failed(child, f"the engine died while starting ({_status(status)})")
        if engine_api.healthy(url):
            try:
                model = engine_api.model_name(url)
                engine_api.first_token(url, model)
            except engine_api.EngineUnreachable as error:
                problem = str(error)
            else:
                return model
        say(f"engine starting, {waited:.0f} s")
        time.sleep(0.1 if waited < 5 else 0.5)
    raise _failed(child, f"the engine was not ready after {timeout_s:.0f} s ({problem})")


def _failed(child: Child, problem: str) -> LaunchFailed:
    where = f"its log is {child.log}" if child.log else "see its output above"
    hint = hint_for(child.tail(80))
    return LaunchFailed(problem, f"{hint} ({where})" if hint else where, child.tail())


def hint_for(lines: list[str]) -> str | None:
    """What mends an engine that ended with these lines, where they are known; the last telling line decides."""
    for line in reversed(lines):
        for pattern, hint in _hints():
            if pattern.search(line):
                return hint
    return None


@functools.cache
def _hints() -> list[tuple[re.Pattern[str], str]]:
    loaded = yaml.safe_load(Path(__file__).with_name("hints.yaml").read_text(encoding="utf-8"))
    return [(re.compile(entry["pattern"], re.IGNORECASE), entry["hint"]) for entry in loaded]


def _status(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def free_port(host: str = HOST) -> int:
    """A port that nobody holds now, and that no outgoing connection will be given before it is taken."""
    for port in random.sample(_UNASSIGNED, len(_UNASSIGNED)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise BadInput(f"no port is free on {host}", "end what holds them, or name one with --port")


def require_free(host: str, port: int) -> None:
    """Raises `BadInput` naming who holds the port, as far as this user may know."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BadInput(
                f"port {port} on {host} cannot be used: {error.strerror}{_holder(port)}", "give another --port"
            ) from None


def _holder(port: int) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            held = connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:2] == (port,)
            if held and connection.pid:
                return f" (held by process {connection.pid}, {psutil.Process(connection.pid).name()})"
    return ""
