"""What is mistyped on any of our command lines ends in one line that names the mend, and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "vllm_launch frob",
            "vllm_launch: argument COMMAND: there is no 'frob'; known: ",
        ),
        ("vllm_launch chek x", "vllm_launch: argument COMMAND: there is no 'chek'; did you mean 'check'?\n"),
        (
            "vllm_launch serve c --port 0",
            (
                "vllm_launch: argument --port: '0' is no port, give one between 1 and 65535; "
                "see: python -m vllm_launch serve --help\n"
            ),
        ),
        ("vllm_launch check", "vllm_launch: the following arguments are required: CONFIG; see: python -m vllm_launch"),
        ("workloads shw x", "workloads: argument list | show | check | sample | schema: there is no 'shw'; "),
        ("workloads list --jsn", "workloads: unknown option --jsn; see: python -m workloads --help\n"),
        (
            "exporters convert r --to jso",
            "exporters: argument --to: there is no 'jso'; known: vllm-bench, ",
        ),
        ("benchmarks --quik", "benchmarks: unknown option --quik; did you mean --quick?\n"),
        ("vllm_launch.simulated --port x", "simulated engine: argument --port: invalid int value: 'x'; see: "),
        ("vllm_launch.cpu_vllm now", "vllm_launch.cpu_vllm: unrecognized arguments: now; see: "),
    ],
)
def test_a_mistake_is_one_line(words: str, line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words.split()], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(line), done.stderr
