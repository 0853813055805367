"""How runs end: drained, cut off, interrupted, with a worker killed; and that nobody who was sent is forgotten."""

from __future__ import annotations

import os
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from exporters.run_store import recover
from tests.support.locust_runs import Ended, end, free_port, headless, run, start
from tests.support.openai_server import Running, serve
from tests.support.waiting import eventually

SLOW = """
name: slow
classes:
  long: {input-tokens: 12, output-tokens: 900}
"""


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers of two seconds: whenever a run of two seconds stops, its users are in the middle of one."""
    path = tmp_path_factory.mktemp("workloads") / "slow.yaml"
    path.write_text(SLOW)
    return path


@pytest.fixture(scope="module")
def ended(server: Running, slow: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """The same two seconds, with time to drain and without, alone and with two workers."""
    base = tmp_path_factory.mktemp("runs")
    options = ("--workload", slow, "-u", 6, "-r", 100, "-t", "2s", "--seed", 1)
    with ThreadPoolExecutor(4) as pool:
        started = {
            f"{drain} {processes}": pool.submit(
                run,
                server.url,
                base / f"{drain}-{processes}",
                *options,
                *("--drain", "20" if drain == "drained" else "0.2"),
                *(("--processes", 2) if processes == "two" else ()),
            )
            for drain in ("drained", "cut")
            for processes in ("one", "two")
        }
        return {name: future.result() for name, future in started.items()}


@pytest.mark.parametrize("processes", ["one", "two"])
def test_requests_in_flight_are_followed_to_their_end(ended: dict[str, Ended], processes: str) -> None:
    drained = ended[f"drained {processes}"]
    requests = drained.summary["requests"]
    assert requests["cancelled"] == 0
    assert requests["sent"] == requests["ok"]
    stop_ns = drained.meta["window"]["end_ns"]
    assert all(record.sent_ns <= stop_ns for record in drained.records)
    # Where one user was between two requests at that moment, it is one less.
    assert sum(record.end_ns > stop_ns for record in drained.records) in (4, 5, 6)


@pytest.mark.parametrize("processes", ["one", "two"])
def test_after_the_drain_the_rest_is_cancelled_and_recorded_with_its_age(
    ended: dict[str, Ended], processes: str
) -> None:
    cut = ended[f"cut {processes}"]
    requests = cut.summary["requests"]
    assert requests["cancelled"] > 0
    assert requests["sent"] == requests["ok"] + requests["cancelled"]
    for worker in cut.meta["workers"].values():
        assert worker["sent"] == worker["ok"] + worker["failed"] + worker["cancelled"]
    cancelled = [record for record in cut.records if record.outcome == "cancelled"]
    assert len(cancelled) == requests["cancelled"]
    stop_ns = cut.meta["window"]["end_ns"]
    for record in cancelled:
        assert record.sent_ns < stop_ns
        assert 0.2e9 <= record.end_ns - stop_ns < 3e9
    posts = sum(int(row["Request Count"]) for row in cut.csv_rows() if row["Type"] == "POST")
    assert posts == requests["ok"]
    assert cut.code == 4
    assert "were cut off before their end" in cut.out


def test_a_killed_worker_is_named_and_the_run_ends_by_itself(server: Running, small: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    options = ("--workload", small, "-u", 6, "-r", 100, "-t", "7s", "--processes", 3)
    process = start(*headless(server.url, directory, *options))
    arrivals = directory / "requests.jsonl"
    eventually(lambda: arrivals.exists() and all(f"worker-{k}" in arrivals.read_text() for k in range(3)))
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    os.kill(children[0], signal.SIGKILL)
    ended = end(process, directory)
    assert ended.code == 4
    lost = [name for name, worker in ended.meta["workers"].items() if "lost" in worker]
    assert len(lost) == 1
    assert f"{lost[0]} went silent" in ended.err
    assert ended.summary["valid"] is False
    assert any(lost[0] in reason for reason in ended.summary["quality"]["reasons"])
    (journal,) = (directory / "journals").glob(f"journal-{lost[0]}-*.jsonl")
    kept = journal.read_text().splitlines()
    arrived = sum(record.worker == lost[0] for record in ended.records)
    assert 0 < arrived <= len(kept)
    assert ended.summary["requests"]["sent"] == len(ended.records)


@pytest.mark.parametrize(("by", "processes"), [(signal.SIGINT, 2), (signal.SIGTERM, 0)])
def test_an_interrupted_run_is_summed_up(
    server: Running, small: Path, tmp_path: Path, by: signal.Signals, processes: int
) -> None:
    directory = tmp_path / "run"
    options = ("--workload", small, "-u", 4, "-r", 100, *(("--processes", processes) if processes else ()))
    process = start(*headless(server.url, directory, *options))
    eventually(lambda: any(path.stat().st_size for path in directory.glob("journals/*")))
    if by is signal.SIGINT:
        os.killpg(process.pid, by)
    else:
        process.send_signal(by)
    ended = end(process, directory)
    assert ended.code in (0, 4)
    assert ended.summary["requests"]["sent"] == ended.summary["requests"]["ok"] > 0
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("processes", ["one", "two"])
@pytest.mark.parametrize(("room", "code"), [(64 << 10, 4), (2 << 10, 2)])
def test_a_full_disk_ends_the_run(
    server: Running, small: Path, tmp_path: Path, room: int, code: int, processes: str
) -> None:
    """No file may grow beyond `room` bytes, as if that were all the disk had left: then the summary fits, or not."""
    port, directory = free_port(), tmp_path / "run"
    process = start(
        *("-f", "locustfiles/chat.py", "--headless", "-H", server.url, "--workload", small, "-u", 8, "-r", 100),
        *("-t", "50s", "--results", directory, "--only-summary", "--no-report"),
        *(("--processes", 2, "--master-bind-port", port, "--master-port", port) if processes == "two" else ()),
    )
    eventually(lambda: _has_text(directory / "requests.jsonl"))
    master = psutil.Process(process.pid)
    for writer in (master, *master.children()):
        resource.prlimit(writer.pid, resource.RLIMIT_FSIZE, (room, room))
    stopped = end(process, directory, timeout_s=40)
    said = stopped.out + stopped.err
    assert stopped.code == code, said
    assert f"{directory}/requests.jsonl: File too large; nothing more is written to it" in said
    assert "the run ends here, for its records cannot be kept" in said
    assert "Traceback" not in said
    if code == 4:
        assert any("arrived; gather the journals" in reason for reason in stopped.summary["quality"]["reasons"])
    else:
        assert f"free space, then run: python -m exporters recover {directory}" in said
        assert not (directory / "summary.json").exists()
        assert recover(directory).summary["requests"]["ok"] > 0
    assert not list(directory.glob(".*"))


def _has_text(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def test_failures_count_once_and_keep_out_of_the_percentiles(small: Path, tmp_path: Path) -> None:
    with serve("--fail-every", "4") as server:
        ended = run(
            server.url,
            tmp_path / "run",
            *("--workload", small, "-u", 4, "-r", 100, "--num-requests", 80, "--processes", 2),
        )
    requests = ended.summary["requests"]
    assert requests["failed"] == 20
    assert requests["by_error"] == {"http_503": 20}
    assert requests["sent"] == 80
    rows = {(row["Type"], row["Name"]): row for row in ended.csv_rows()}
    total = rows["", "Aggregated"]
    assert (int(total["Request Count"]), int(total["Failure Count"])) == (80, 20)
    assert sum(int(row["Failure Count"]) for (kind, _), row in rows.items() if kind == "POST") == 20
    # A refusal takes a millisecond, an answer 38 at the least: none may have entered.
    assert float(total["Min Response Time"]) > 30
    assert ended.code in (1, 4)


def test_a_refused_request_is_sent_again_where_asked(small: Path, tmp_path: Path) -> None:
    with serve("--fail-every", "4") as server:
        ended = run(server.url, tmp_path / "run", *("--workload", small, "-u", 2, "--num-requests", 12, "--retries", 3))
    answered = {record.index for record in ended.records if record.outcome == "ok"}
    assert answered == set(range(12))
    again = [record for record in ended.records if record.attempt]
    assert again
    assert len(ended.records) == 12 + len(again)
    assert ended.meta["sent"]["count"] == 12
