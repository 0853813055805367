"""What other people's Locust code gets: request events, LoadTestShape, subclasses, entry points, the environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.locust_runs import ROOT, end, start
from tests.support.openai_server import Running

LISTENER = """
import collections
from locust import LoadTestShape, events
from locustfiles.chat import ChatUser

seen = collections.Counter()

@events.request.add_listener
def on_request(request_type, name, response_time, context, **_):
    seen[request_type] += 1
    assert context["record"].request_class == name
    assert response_time > 0

@events.quitting.add_listener
def on_quitting(**_):
    print("SEEN", dict(seen))
"""

SHAPE = """
class Steps(LoadTestShape):
    def tick(self):
        age = self.get_run_time()
        return (3, 50) if age < 1.2 else (1, 50) if age < 2.4 else None
"""


@pytest.mark.parametrize("itl_events", [False, True])
def test_listeners_hear_of_requests_and_of_gaps_if_they_ask(
    server: Running, small: Path, tmp_path: Path, itl_events: bool
) -> None:
    locustfile = tmp_path / "mine.py"
    locustfile.write_text(LISTENER)
    directory = tmp_path / "run"
    ended = end(
        start(
            *("-f", locustfile, "--headless", "-H", server.url, "--workload", small, "--num-requests", 20),
            *("-u", 4, "-r", 50, "--results", directory, *(("--itl-events",) if itl_events else ())),
        ),
        directory,
    )
    gaps = sum(len(record.gaps_ns) for record in ended.records)
    expected = {"POST": 20, "TTFT": 20, "TPOT": 20} | ({"ITL": gaps} if itl_events else {})
    seen = next(line for line in ended.out.splitlines() if line.startswith("SEEN"))
    assert eval(seen.removeprefix("SEEN ")) == expected
    assert "Traceback" not in ended.err


def test_a_load_shape_drives_the_users(server: Running, small: Path, tmp_path: Path) -> None:
    locustfile = tmp_path / "mine.py"
    locustfile.write_text(LISTENER + SHAPE)
    directory = tmp_path / "run"
    ended = end(
        start(
            "-f",
            locustfile,
            "--headless",
            "-H",
            server.url,
            "--workload",
            small,
            "--results",
            directory,
            "--loglevel",
            "INFO",
        ),
        directory,
    )
    start_ns = ended.meta["window"]["start_ns"]
    flying = [
        sum(r.sent_ns <= start_ns + at_s * 1e9 < r.end_ns for r in ended.records) for at_s in (0.9, 1.0, 2.1, 2.2)
    ]
    assert max(flying[:2]) > 1
    assert max(flying[2:]) <= 1
    assert ended.summary["requests"]["cancelled"] == 0


def test_inside_the_folder_and_by_environment(server: Running, small: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    ended = end(
        start(
            *("-f", "completions.py", "--headless", "-u", 4),
            cwd=ROOT / "locustfiles",
            env={
                "LOCUST_HOST": server.url,
                "LOCUST_WORKLOAD": str(small),
                "LOCUST_NUM_REQUESTS": "24",
                "LOCUST_RESULTS": str(directory),
                "LOCUST_SAVE_OUTPUTS": "true",
                "LOCUST_LABEL": "by-env",
            },
        ),
        directory,
    )
    assert ended.summary["requests"]["ok"] == 24, ended.err
    assert {record.endpoint for record in ended.records} == {"/v1/completions"}
    assert ended.meta["label"] == "by-env"
    outputs = (directory / "outputs" / "worker-0.jsonl").read_text().splitlines()
    assert len(outputs) == 24


def test_answers_that_are_not_streamed_have_no_parts(server: Running, small: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    ended = end(
        start(
            *("-f", "locustfiles/chat.py", "--headless", "-H", server.url, "--workload", small, "--no-stream"),
            *("--num-requests", 24, "-u", 4, "--results", directory, "--csv", directory),
        ),
        directory,
    )
    assert ended.summary["requests"]["ok"] == 24
    assert {row["Type"] for row in ended.csv_rows()} == {"POST", ""}


def test_the_options_and_exit_codes_can_be_read() -> None:
    shown = subprocess.run([sys.executable, "-m", "locustfiles"], cwd=ROOT, capture_output=True, text=True, check=True)
    text = " ".join(shown.stdout.split())
    assert "0 good, 1 requests failed, 2 bad input, 3 an objective missed or" in text
    assert "--request-rate R" in text
    assert "[env var: LOCUST_REQUEST_RATE]" in text
