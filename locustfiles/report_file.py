"""`report.html` of a finished run, made by a process of its own: drawing takes seconds, and workers want answers."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from gevent import subprocess

from exporters.run import REPORT

logger = logging.getLogger(__name__)

_PATIENCE_S = 300.0
_ROOT = Path(__file__).resolve().parents[1]


def write(directory: Path, baseline: str | None, gate: str | None) -> None:
    """Writes it into the run directory, beside `baseline` where there is one, judged by `gate` where that is given.

    A fault is logged, and spoils no run.
    """
    path = directory / REPORT
    sides = [str(Path(baseline).absolute()) if Path(baseline).exists() else baseline] if baseline else []
    command = [sys.executable, "-m", "exporters", "report", *sides, str(directory), "-o", str(path)]
    command += ["--gate", gate] if gate else []
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))}
    try:
        ended = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.error("no %s: %s", REPORT, error)
        return
    if not path.is_file():
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        logger.error("no %s: %s", REPORT, said[-1] if said else f"exit code {ended.returncode}")
