"""Engines launched and stopped many times, some of the launchers killed at random moments: is anything left behind?

A launcher is a process of its own that launches an engine as experiments do. It is told to end (SIGTERM) once its
engine serves, or is killed (SIGKILL) at a random moment between its start and a little after that. Looked for
afterwards: processes that it or its engine started, its port, files in the folder for temporary files and in shared
memory.
Full: fifty launches of the embedded engine, and ten of real vLLM on CPU where it is installed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from vllm_launch import cpu_vllm
from vllm_launch.engine.launch import free_port, require_free

_MARK = "TAILGATE_BENCHMARK_MARK"
_PATIENCE_S = 30.0
_LAUNCHER = """
import sys, time
from pathlib import Path
from vllm_launch.config import load_config
from vllm_launch.engine.launch import launch
from vllm_launch.engine.processes import tidy_on_signals
config, engine, port, log = sys.argv[1:]
with tidy_on_signals(), launch(load_config(config), engine, log=Path(log), port=int(port), warm=False) as running:
    print("serving", flush=True)
    time.sleep(600)
"""


@dataclass
class Tally:
    """What came of some launches. `left` says what was found, a line each."""

    launches: int = 0
    killed: int = 0
    killed_while_starting: int = 0
    seconds: list[float] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def run(engine: str, config: str, launches: int, killed: int, seed: int = 1) -> Tally:
    """Launches one after another; `killed` of them, drawn by `seed`, end by SIGKILL to the launcher."""
    draw = random.Random(seed)
    to_kill = set(draw.sample(range(launches), killed))
    tally = Tally()
    expected_s = 20.0 if engine == "vllm" else 3.0
    for number in range(launches):
        began = time.monotonic()
        _one(tally, engine, config, draw.uniform(0, 1.3) * expected_s if number in to_kill else None)
        tally.seconds.append(time.monotonic() - began)
        if number not in to_kill:
            expected_s = tally.seconds[-1]
    return tally


def _one(tally: Tally, engine: str, config: str, kill_after_s: float | None) -> None:
    mark, port = uuid.uuid4().hex, free_port()
    root = str(Path(__file__).resolve().parent.parent)
    with tempfile.TemporaryDirectory() as folder, _files_left(tally) as temporary:
        said = Path(folder) / "said"
        with said.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCHER, config, engine, str(port), str(Path(folder) / "engine.log")],
                env={**os.environ, _MARK: mark, "TMPDIR": temporary, "PYTHONPATH": root},
                stdout=output,
                stderr=subprocess.DEVNULL,
            )
        if kill_after_s is None:
            while "serving" not in said.read_text() and process.poll() is None:
                time.sleep(0.05)
            if process.poll() is not None:
                tally.left.append(f"launch {tally.launches + 1} did not serve")
            process.send_signal(signal.SIGTERM)
        else:
            tally.killed += 1
            time.sleep(kill_after_s)
            process.kill()
            tally.killed_while_starting += "serving" not in said.read_text()
        process.wait()
        tally.launches += 1
        _expect_nothing(tally, mark, port)


def _expect_nothing(tally: Tally, mark: str, port: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while (left := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    tally.left += [f"launch {tally.launches}: process {process.pid}" for process in left]
    try:
        require_free("127.0.0.1", port)
    except Exception as error:
        tally.left.append(f"launch {tally.launches}: {error}")


@contextlib.contextmanager
def _files_left(tally: Tally) -> Iterator[str]:
    """Yields a folder for temporary files; counts what is left in it, and what is new in shared memory."""
    before = _shared_memory()
    with tempfile.TemporaryDirectory() as temporary:
        yield temporary
        left = {str(path) for path in Path(temporary).iterdir()} | (_shared_memory() - before)
    tally.left += [f"launch {tally.launches}: {path}" for path in sorted(left)]


def _shared_memory() -> set[str]:
    """Segments such as engines make; others on this machine make others."""
    return {str(path) for kind in ("psm_*", "sem.mp-*", "torch_*", "nccl-*") for path in Path("/dev/shm").glob(kind)}


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == mark:
                found.append(process)
    return found


def main(quick: bool = False) -> None:
    plans = [("simulated", "h100-llama-8b-baseline", 6 if quick else 50, 2 if quick else 10)]
    if not quick and cpu_vllm.ready():
        plans.append(("vllm", "cpu-tiny-baseline", 10, 3))
    print("engine      launches  killed  of these while starting  mean time  left behind")
    for engine, config, launches, killed in plans:
        tally = run(engine, config, launches, killed)
        mean_s = sum(tally.seconds) / len(tally.seconds)
        print(
            f"{engine:<12}{tally.launches:>8}{tally.killed:>8}{tally.killed_while_starting:>25}{mean_s:>9.1f} s"
            f"{len(tally.left):>13}",
            flush=True,
        )
        for line in tally.left:
            print(f"  {line}")


if __name__ == "__main__":
    main()
