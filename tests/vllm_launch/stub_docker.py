"""Stands in for the `docker` command: runs the stub engine as a container would be run, apart from the command itself.

`docker run` starts the engine in a session of its own (so that killing the command does not reach it), waits for it,
and passes SIGTERM on to it; `docker rm --force NAME` kills it. What was asked is appended to `$STUB_DOCKER/calls`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

HOME = Path(os.environ["STUB_DOCKER"])


def run(words: list[str]) -> int:
    name = words[words.index("--name") + 1]
    published = words[words.index("-p") + 1].split(":")
    stub = str(Path(__file__).with_name("stub_engine.py"))
    engine = subprocess.Popen([sys.executable, stub, "--port", published[-2]], start_new_session=True)
    (HOME / name).write_text(str(engine.pid))
    signal.signal(signal.SIGTERM, lambda *_: engine.terminate())
    return engine.wait()


def remove(name: str) -> int:
    container = HOME / name
    if container.is_file():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(container.read_text()), signal.SIGKILL)
        container.unlink()
    return 0


def main() -> int:
    """Answers one command line."""
    with (HOME / "calls").open("a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\n")
    if "no-daemon" in os.environ.get("STUB_ENGINE", ""):
        print("docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?", flush=True)
        return 125
    return run(sys.argv[2:]) if sys.argv[1] == "run" else remove(sys.argv[3])


if __name__ == "__main__":
    sys.exit(main())
