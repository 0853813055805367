"""`python -m vllm_launch` as a user types it, and what is left of processes afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def start(*words: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`python -m vllm_launch WORDS`, running."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LOCUST_", "OPENAI_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "vllm_launch", *map(str, words)],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(ROOT), **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def launch(*words: object, cwd: Path = ROOT, env: dict[str, str] | None = None, timeout_s: float = 120) -> Ended:
    """`python -m vllm_launch WORDS` from start to end."""
    process = start(*words, cwd=cwd, env=env)
    return end(process, timeout_s)


def end(process: subprocess.Popen[str], timeout_s: float = 60) -> Ended:
    """Waits for a command that must end by itself."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        raise AssertionError(f"it did not end by itself:\n{out}\n{err}") from None
    return Ended(process.returncode, out, err)


def marked(mark: str) -> list[psutil.Process]:
    """The processes that have `TAILGATE_TEST_MARK=mark` in their environment: a command and all that it started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("TAILGATE_TEST_MARK") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found
