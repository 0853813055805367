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
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from tailgate.addresses import family_of, url_of
from tailgate.exits import BadInput
from vllm_launch import cpu_vllm
from vllm_launch.config import LaunchConfig
from vllm_launch.engine import api, in_effect
from vllm_launch.engine.commands import command, require_launchable
from vllm_launch.engine.in_effect import EngineConfig
from vllm_launch.engine.processes import After, Child
from vllm_launch.engine.warm_up import WarmUp, warm_up

HOST = "127.0.0.1"
START_TIMEOUT_S = {"simulated": 60.0, "vllm": 1800.0, "docker": 3600.0, "attach": 10.0}
# What it has read of itself and its prefix cache's reset, vLLM answers in development mode only. It also answers
# requests that no stranger should send, so that it is asked for only where no other machine can reach the engine.
_INSPECTED = {"VLLM_SERVER_DEV_MODE": "1"}
_REACHED = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Below every system's range for outgoing connections: a port from that range, free a moment ago, may belong to
# somebody's connection by the time the engine binds it.
_UNASSIGNED = range(18_000, 30_000)
# One error of the engine's core is followed by a traceback of each process that misses it.
_LOOKED_AT = 200
_ERROR = re.compile(r"(?:\([^)]*\) )?(?:ERROR \S+ \S+ \[[^\]]*\] )?((?:[\w.]+(?:Error|Exception):|  Value error,) .*)")
Say = Callable[[str], None]


class LaunchFailed(BadInput):
    """The engine died or did not come up; `log_tail` holds its own last lines."""

    def __init__(self, problem: str, mend: str, log_tail: list[str]) -> None:
        super().__init__(problem, mend)
        self.log_tail = log_tail


@dataclass(frozen=True)
class RunningEngine:
    """An engine that serves: it has answered `/health` and streamed a first token. `child` is None where it is none of
    ours, but one that ran already.
    """

    url: str
    model: str
    child: Child | None
    started_in_s: float
    version: dict[str, Any] = field(default_factory=dict)
    config: EngineConfig = field(default_factory=EngineConfig)
    warm_up: WarmUp | None = None
    prefix_cache: str = "fresh"

    def check(self) -> None:
        """Raises `LaunchFailed` if the engine has died since."""
        if self.child is None:
            return
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
    warm: bool = True,
) -> Iterator[RunningEngine]:
    """The engine, ready to serve; ended with all it started on leaving, but for one that ran already (`attach`).

    `port` None: a free one. `warm`: sends a real engine requests until its latency has settled, and empties its
    prefix cache after.
    Raises `BadInput` where it cannot be started, `LaunchFailed` where it died or was not ready after `timeout_s`.
    """
    require_launchable(config, engine, python)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    if engine == "attach":
        yield _attach(config, warm, timeout_s or START_TIMEOUT_S[engine], say)
        return
    if port is not None:
        require_free(host, port)
    chosen = free_port(host) if port is None else port
    inspected = _INSPECTED if host in _LOOPBACK else {}
    asked = command(config, engine, host=host, port=chosen, python=python, more_env=inspected)
    if engine != "simulated" and config.model.startswith(cpu_vllm.GENERATED):
        cpu_vllm.make_model(config.model)
    started = time.monotonic()
    url = url_of(_REACHED.get(host, host), chosen)
    # What an engine leaves in the folder for temporary files when it is killed (sockets, locks) goes with the folder.
    scratch = Path(tempfile.mkdtemp(prefix="tailgate-"))
    env = {"TMPDIR": str(scratch), **asked.env}
    with Child(asked.argv, log, env, after=After(asked.removal, scratch)) as child:
        model = _await(child, url, timeout_s or START_TIMEOUT_S[engine], say)
        yield _running(url, model, child, time.monotonic() - started, config, engine, warm, say)
    _await_free(host, chosen)


def _attach(config: LaunchConfig, warm: bool, timeout_s: float, say: Say) -> RunningEngine:
    assert config.url is not None
    started = time.monotonic()
    model = _await(None, config.url, timeout_s, say)
    return _running(config.url, model, None, time.monotonic() - started, config, "attach", warm, say)


def _running(
    url: str,
    model: str,
    child: Child | None,
    started_in_s: float,
    config: LaunchConfig,
    engine: str,
    warm: bool,
    say: Say,
) -> RunningEngine:
    warm = warm and engine != "simulated"
    try:
        warmed = warm_up(url, model, say=say) if warm else None
    except api.EngineUnreachable as error:
        problem = f"the engine failed while it was warmed up ({error})"
        if child is None:
            raise LaunchFailed(problem, "look in its log", []) from None
        raise _failed(child, problem) from None
    path = api.reset_prefix_cache(url) if warm else None
    untouched = "not emptied: the server has no way to do it" if warm else "as it was"
    return RunningEngine(
        url,
        model,
        child,
        started_in_s,
        api.version(url),
        in_effect.read(url, child.log if child else None, config, engine),
        warmed,
        f"emptied by {path}" if path else "fresh" if child else untouched,
    )


def _await_free(host: str, port: int, timeout_s: float = 5.0) -> None:
    """Waits until the port can be bound again: a socket may outlive its process for a moment."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(BadInput):
            return require_free(host, port)
        time.sleep(0.05)
    return None


def _await(child: Child | None, url: str, timeout_s: float, say: Say) -> str:
    """Polls until the engine has streamed a token; returns the model's name."""
    started = time.monotonic()
    problem = "no answer on /health"
    while (waited := time.monotonic() - started) < timeout_s:
        if child is not None and (status := child.poll()) is not None:
            raise _failed(child, f"the engine died while starting ({_status(status)})")
        if api.healthy(url):
            try:
                model = api.model_name(url)
                api.first_token(url, model)
            except api.EngineUnreachable as error:
                problem = str(error)
            else:
                return model
        say(f"engine starting, {waited:.0f} s")
        time.sleep(0.1 if waited < 5 else 0.5)
    if child is None:
        raise LaunchFailed(f"no engine serves at {url} ({problem})", "start it, or mend the address", [])
    raise _failed(child, f"the engine was not ready after {timeout_s:.0f} s ({problem})")


def _failed(child: Child, problem: str) -> LaunchFailed:
    where = f"its log is {child.log}" if child.log else "see its output above"
    lines = child.tail(_LOOKED_AT)
    hint = hint_for(lines)
    if cause := root_cause(lines):
        problem = f"{problem}: {cause:.300}"
    return LaunchFailed(problem, f"{hint} ({where})" if hint else where, child.tail() if child.log else [])


def root_cause(lines: list[str]) -> str | None:
    """The error that an engine with these last lines ended with, which vLLM buries under the one that it led to."""
    named = (match[1].partition(" [type=")[0].strip(" .") for line in reversed(lines) if (match := _ERROR.match(line)))
    return next((error for error in named if "See root cause above" not in error), None)


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
    family = _family(host)
    for port in random.sample(_UNASSIGNED, len(_UNASSIGNED)):
        with socket.socket(family) as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise BadInput(f"no port is free on {host}", "end what holds them, or name one with --port")


def require_free(host: str, port: int) -> None:
    """Raises `BadInput` naming who holds the port, as far as this user may know."""
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BadInput(
                f"port {port} on {host} cannot be used: {error.strerror}{_holder(port)}", "give another --port"
            ) from None


def _family(host: str) -> socket.AddressFamily:
    try:
        return family_of(host)
    except OSError as error:
        raise BadInput(f"{host} is no address of a machine: {error.strerror}", "give another --host") from None


def _holder(port: int) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            held = connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:2] == (port,)
            if held and connection.pid:
                return f" (held by process {connection.pid}, {psutil.Process(connection.pid).name()})"
    return ""
