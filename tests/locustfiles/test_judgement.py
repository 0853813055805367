"""What a run is held against at its end: objectives, a baseline; and its live metrics."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.locust_runs import ROOT, end, free_port, headless, run, start
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


@pytest.mark.parametrize(("from_file", "limit", "broken"), [(True, "1us", True), (False, "10s", False)])
def test_a_gate_of_the_workload_or_of_the_line_decides(
    server: Running, small: Path, tmp_path: Path, from_file: bool, limit: str, broken: bool
) -> None:
    gate = f"ttft_p50<{limit},throughput_drop<20%"
    workload = tmp_path / "gated.yaml"
    workload.write_text(small.read_text() + (f"gate: '{gate}'\n" if from_file else ""))
    options = ("--workload", workload, "-u", 4, "-r", 100, "--num-requests", 40)
    line = () if from_file else ("--gate", f"ttft_p50<{limit},throughput>1")
    ended = run(server.url, tmp_path / "run", *options, *line)
    # 4 where this machine was too busy for a valid run.
    assert ended.code in ((3, 4) if broken else (0, 4))
    assert f"threshold ttft_p50<{limit}: {'failed' if broken else 'passed'}, reached " in ended.out
    if from_file:
        assert "threshold throughput_drop<20%: not looked at, for want of a baseline" in ended.out


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("throughput_drop<20%", "locust: --gate: 'throughput_drop<20%' is held against a baseline; name one with"),
        ("ttft_p99<5", "locust: --gate: 'ttft_p99<5' names no unit; write ttft_p99<5ms or ttft_p99<5s"),
    ],
)
def test_a_gate_that_cannot_be_meant(server: Running, small: Path, tmp_path: Path, gate: str, said: str) -> None:
    ended = run(server.url, tmp_path / "run", "--workload", small, "--gate", gate)
    assert ended.code == 2
    assert said in ended.err


def test_a_baseline_of_a_newer_suite_is_refused_before_anything_is_sent(
    server: Running, small: Path, tmp_path: Path
) -> None:
    newer = tmp_path / "newer.json"
    newer.write_text('{"schema": "tailgate.baseline/9", "runs": []}')
    ended = run(server.url, tmp_path / "run", "--workload", small, "--baseline", newer)
    assert ended.code == 2
    assert f"locust: {newer}: schema tailgate.baseline/9 is newer than this suite" in ended.err
    assert not (tmp_path / "run").exists()


def test_where_no_baseline_can_be_kept_none_is_measured(server: Running, small: Path, tmp_path: Path) -> None:
    (tmp_path / "baselines").write_text("in the way")
    process = start(
        *("-f", ROOT / "locustfiles" / "chat.py", "--headless", "-t", "5s", "-H", server.url, "--workload", small),
        *("--results", tmp_path / "run", "--save-baseline", "main"),
        cwd=tmp_path,
    )
    ended = end(process, tmp_path / "run")
    assert ended.code == 2
    assert "locust: --save-baseline: baselines: File exists; start where baselines/ can be written" in ended.err
    assert not (tmp_path / "run").exists()


def test_a_worker_needs_no_place_for_baselines(server: Running, small: Path, tmp_path: Path) -> None:
    """In a fleet of containers all have the same options, and the master alone has the volume."""
    here, there, port = tmp_path / "here", tmp_path / "there", free_port()
    here.mkdir()
    there.mkdir()
    (there / "baselines").write_text("in the way")
    env = {"LOCUST_SAVE_BASELINE": "main", "LOCUST_WORKLOAD": str(small)}
    worker = start("-f", ROOT / "locustfiles" / "chat.py", "--worker", "--master-port", port, cwd=there, env=env)
    master = start(
        *("-f", ROOT / "locustfiles" / "chat.py", "--headless", "-H", server.url, "--num-requests", 40, "--no-report"),
        *("--results", tmp_path / "run", "--master", "--master-bind-port", port, "--expect-workers", 1),
        cwd=here,
        env=env,
    )
    ended = end(master, tmp_path / "run")
    # 4 where this machine was too busy for the run to be valid: such a run is kept as no baseline.
    assert ended.code in (0, 4), ended.err
    assert ended.summary["requests"]["ok"] == 40
    assert end(worker, tmp_path, timeout_s=20).code == 0


def test_a_run_beside_another(server: Running, small: Path, tmp_path: Path) -> None:
    options = ("--workload", small, "-u", 4, "-r", 100, "--num-requests", 60, "--seed", 3)
    first = run(server.url, tmp_path / "first", *options)
    second = run(server.url, tmp_path / "second", *options, "--baseline", first.directory)
    # Too few requests for a verdict either way; what is said of them comes after the run's own figures.
    said = "\n".join(second.out.split("run directory:")[1].splitlines()[1:]).strip()
    assert any(verdict in said.lower() for verdict in ("undecided", "same", "better", "worse", "not comparable")), said
    assert second.code in (0, 3, 4)
