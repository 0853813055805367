"""Real Locust processes, as a user starts them, and what they leave behind."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters.record import RequestRecord, decode_records

ROOT = Path(__file__).resolve().parents[2]

SMALL = """
name: small
classes:
  short: {input-tokens: 12, output-tokens: 10}
  long: {input-tokens: 40, output-tokens: 30}
"""


@dataclass
class Ended:
    """A finished Locust process and its run directory."""

    code: int
    out: str
    err: str
    directory: Path

    @property
    def meta(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "run.json").read_text()))

    @property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "summary.json").read_text()))

    @property
    def records(self) -> list[RequestRecord]:
        return list(decode_records(self.directory / "requests.jsonl"))

    def csv_rows(self) -> list[dict[str, str]]:
        """Locust's statistics table, from --csv."""
        with (self.directory.parent / f"{self.directory.name}_stats.csv").open() as file:
            return list(csv.DictReader(file))


def free_port() -> int:
    """A port below those that the kernel gives to outgoing connections, of which other tests may open hundreds."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def start(*arguments: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Locust with these arguments, in a process group of its own."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LOCUST_", "OPENAI_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "locust", *map(str, arguments)],
        cwd=cwd,
        env=clean | (env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str], directory: Path, timeout_s: float = 60) -> Ended:
    """Waits for the process, which must end by itself."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"locust did not end by itself:\n{out}\n{err}") from None
    return Ended(process.returncode, out, err, directory)


def headless(url: str, directory: Path, *arguments: object) -> list[object]:
    """The arguments of a headless chat run whose run directory and CSV are `directory` and beside it."""
    port = free_port()
    return [
        *("-f", "locustfiles/chat.py", "--headless", "-H", url, "--master-bind-port", port, "--master-port", port),
        *("--results", directory, "--csv", directory, "--only-summary", "--no-report"),
        *arguments,
    ]


def run(
    url: str, directory: Path, *arguments: object, env: dict[str, str] | None = None, timeout_s: float = 60
) -> Ended:
    """One headless chat run from start to end."""
    return end(start(*headless(url, directory, *arguments), env=env), directory, timeout_s)


def run_distributed(url: str, directory: Path, workers: int, *arguments: object) -> Ended:
    """The same as master and workers started by hand."""
    port = free_port()
    master = start(
        *headless(url, directory, *arguments),
        *("--master", "--master-bind-port", port, "--expect-workers", workers),
    )
    others = [
        start("-f", "locustfiles/chat.py", "--worker", "--master-port", port, "--loglevel", "WARNING")
        for _ in range(workers)
    ]
    ended = end(master, directory)
    for worker in others:
        assert end(worker, directory, timeout_s=20).code == 0
    return ended
