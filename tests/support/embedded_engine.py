"""The embedded engine as a process of its own, for those who only need its address."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def embedded_engine(*flags: str, slowdown: float = 1.0) -> Iterator[str]:
    """Its URL, once it serves; `flags` are `vllm serve`'s, such as `max-num-seqs=1`."""
    command = [sys.executable, "-m", "vllm_launch.simulated", "--port", "0", "--slowdown", str(slowdown)]
    command += [word for flag in flags for word in ("--flag", flag)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        ready = next(line for line in process.stdout if line.startswith("Ready on"))
        yield f"http://127.0.0.1:{int(ready.rsplit(':', 1)[1])}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
