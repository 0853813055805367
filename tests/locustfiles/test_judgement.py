"""What a run is held against at its end: objectives, a baseline; and its live metrics."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.locust_runs import end, free_port, headless, run, start
from tests.support.openai_server import Running


def test_metrics_on_a_port_of_their_own_while_the_run_goes(server: Running, small: Path, tmp_path: Path) -> None:
    directory, port = tmp_path / "run", free_port()
    options = ("--workload", small, "-u", 4, "-r", 100, "-t", "4s", "--processes", 2, "--label", "mine")
    process = start(*headless(server.url, directory, *options, "--prometheus-port", port))
    wanted = 'tailgate_requests_total{error="",label="mine"'
    deadline, page = time.monotonic() + 20, ""
    while wanted not in page:
        assert time.monotonic() < deadline, page
        time.sleep(0.2)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
                page = response.read().decode()
        except OSError:
            continue
    assert 'simulated="true"' in page
    assert "tailgate_ttft_seconds_bucket" in page
    workers = next(line for line in page.splitlines() if line.startswith("tailgate_workers{"))
    assert float(workers.split()[-1]) == 2
    assert end(process, directory).summary["requests"]["ok"] > 0


@pytest.mark.parametrize(("limit", "missed"), [("10s", False), ("1us", True)])
def test_an_objective_that_is_missed_is_said_and_shows_in_the_exit_code(
    server: Running, small: Path, tmp_path: Path, limit: str, missed: bool
) -> None:
    options = ("--workload", small, "-u", 4, "-r", 100, "--num-requests", 40, "--slo", f"ttft_p50<{limit}")
    ended = run(server.url, tmp_path / "run", *options)
    # 4 where this machine was too busy for a valid run, and of several codes 4 comes first.
    assert ended.code in ((3, 4) if missed else (0, 4))
    assert f"objective ttft_p50<{limit}: {'MISSED' if missed else 'met'}" in ended.out


def test_a_baseline_that_is_not_there(server: Running, small: Path, tmp_path: Path) -> None:
    ended = run(server.url, tmp_path / "run", "--workload", small, "--baseline", "no-such")
    assert ended.code == 2
    assert "locust: --baseline: no baseline and no run directory 'no-such'" in ended.err


def test_a_run_beside_another(server: Running, small: Path, tmp_path: Path) -> None:
    options = ("--workload", small, "-u", 4, "-r", 100, "--num-requests", 60, "--seed", 3)
    first = run(server.url, tmp_path / "first", *options)
    second = run(server.url, tmp_path / "second", *options, "--baseline", first.directory)
    # Too few requests for a verdict either way; what is said of them comes after the run's own figures.
    said = "\n".join(second.out.split("run directory:")[1].splitlines()[1:]).strip()
    assert any(verdict in said.lower() for verdict in ("undecided", "same", "better", "worse", "not comparable")), said
    assert second.code in (0, 3, 4)
