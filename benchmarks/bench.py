"""What every client benchmark shares: C programs, cores to pin to, the truth server, what a process costs."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tailgate.exits import BadInput

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "benchmarks"
TTFT_MS, ITL_MS, JITTER, TOKENS = 50.0, 10.0, 0.2, 100
QUANTILES = ("p50", "p95", "p99", "max")


def cores() -> tuple[int, int]:
    """The core for the client and the one for the server; the same where there is but one."""
    free = sorted(os.sched_getaffinity(0))
    return free[0], free[1 % len(free)]


def compiled(name: str) -> Path:
    """The C program `name`, compiled where it is missing or older than its source. Raises `BadInput` without `cc`."""
    source, program = HERE / f"{name}.c", BUILD / name
    if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
        return program
    BUILD.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-O2", "-o", str(program), str(source)]
    try:
        if subprocess.run([*command, "-DWITH_TLS", "-lssl", "-lcrypto"], capture_output=True, check=False).returncode:
            subprocess.run(command, capture_output=True, check=True, text=True)
    except FileNotFoundError:
        raise BadInput("the benchmarks need a C compiler", "install cc (gcc or clang)") from None
    except subprocess.CalledProcessError as error:
        raise BadInput(f"{source.name} does not compile: {error.stderr}") from None
    return program


def pinned(command: Sequence[str], core: int, **options: Any) -> subprocess.Popen[str]:
    """`command` started on one core."""
    options.setdefault("cwd", HERE.parent)
    return subprocess.Popen(command, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {core}), **options)


class TruthServer:
    """`truth_server.c` on its core, as a context manager."""

    def __init__(self, *, itl_ms: float = ITL_MS, certificate: Path | None = None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._certificate = certificate
        self._delays = [str(round(TTFT_MS * 1000)), str(round(itl_ms * 1000)), str(JITTER)]

    def __enter__(self) -> TruthServer:
        files = [str(self._certificate)] if self._certificate else []
        command = [str(compiled("truth_server")), str(self.port), *self._delays, *files]
        self.process = pinned(command, cores()[1])
        end = time.monotonic() + 5
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise BadInput("the truth server did not start", f"run: {' '.join(command)}") from None
                time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    @property
    def url(self) -> str:
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self.port}"

    def get(self, page: str) -> dict[str, Any]:
        """`truth`, `reset` or `counters`."""
        context = ssl._create_unverified_context() if self._certificate else None
        with urllib.request.urlopen(f"{self.url}/{page}", timeout=30, context=context) as reply:
            got: dict[str, Any] = json.load(reply)
            return got


@dataclass(frozen=True, slots=True)
class Steady:
    """What a client's processes did between two moments, in mid-run."""

    cpu_us_per_event: float
    events_per_s: float
    in_flight: float  # mean number of streams at the server
    memory_kb: float


def watch_steadily(process: subprocess.Popen[str], server: TruthServer, lead_s: float, seconds: float) -> Steady:
    """Waits `lead_s`, then measures for `seconds`. The CPU is that of `process` and its children."""
    time.sleep(lead_s)
    before, cpu_before = server.get("counters"), _cpu_s(process.pid)
    time.sleep(seconds)
    after, cpu_after = server.get("counters"), _cpu_s(process.pid)
    events = after["events"] - before["events"]
    took_s = after["at_s"] - before["at_s"]
    return Steady(
        cpu_us_per_event=(cpu_after - cpu_before) / max(events, 1) * 1e6,
        events_per_s=events / took_s,
        in_flight=(after["stream_seconds"] - before["stream_seconds"]) / took_s,
        memory_kb=sum(one.memory_info().rss for one in _family(process.pid)) / 1024,
    )


def _cpu_s(pid: int) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in _family(pid))


def _family(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def python(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", module, *(str(argument) for argument in arguments)]
