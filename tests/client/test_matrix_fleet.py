"""The catalogue through Locust: 200 users on two workers, every count equal to the server's to the last request."""

from __future__ import annotations

import csv
import json
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.catalogue import REPLIES
from tests.support.scripted_server import ScriptedServer

ROOT = Path(__file__).parents[2]
REQUESTS = 1500
# Whatever a chat stream may be. Not those that the client answers by sending anew, which the server counts twice.
STREAMED = [
    name
    for name, reply in REPLIES.items()
    if reply.asked.stream
    and reply.asked.endpoint == "/v1/chat/completions"
    and name not in ("closed_before_head", "reset_before_head", "large_event", "never_starts", "endless")
]
TENTHS = [
    *("plain", "http_500_html", "http_429", "error_first", "error_mid"),
    *("malformed_json", "empty_200", "abort", "html_200", "closed_mid"),
]


def _free_port() -> str:
    """A port of this run's own: on Locust's usual one, the workers of some other run might join."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


@pytest.mark.parametrize("mix", [TENTHS, STREAMED], ids=["a tenth of each kind", "the whole catalogue"])
def test_two_workers_count_what_the_server_counts(mix: list[str], tmp_path: Path) -> None:
    results = tmp_path / "results"
    port = _free_port()
    with ScriptedServer("--mix", ",".join(mix)) as server:
        command = [
            *(sys.executable, "-m", "locust", "-f", "locustfiles/chat.py", "--headless", "-H", server.url),
            *("-u", "200", "-r", "200", "-t", "90s", "--processes", "2", "--workload", "chat-short"),
            *("--csv", str(tmp_path / "locust"), "--master-bind-port", port, "--master-port", port),
            *("--num-requests", str(REQUESTS), "--results", str(results), "--json-file", str(tmp_path / "locust")),
            *("--first-token-timeout", "3", "--idle-timeout", "3", "--request-timeout", "30"),
        ]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
        served = server.truth()["served"]
    assert run.returncode in (1, 4), run.stderr[-2000:]

    expected: Counter[str] = Counter()
    for name, count in served.items():
        expected[REPLIES[name].error or "ok"] += count
    requests = json.loads((results / "summary.json").read_text())["requests"]
    assert expected.total() == REQUESTS
    assert (requests["sent"], requests["cancelled"]) == (REQUESTS, 0)
    assert {"ok": requests["ok"], **requests["by_error"]} == dict(expected)
    assert requests["ok"] + requests["failed"] == REQUESTS

    records = [json.loads(line) for line in (results / "requests.jsonl").read_text().splitlines()]
    assert len({(record["worker"], record["sequence"]) for record in records}) == REQUESTS
    assert Counter(record.get("error", "ok") for record in records) == expected
    # What came before a failure is kept, marked failed.
    cut = [record for record in records if record.get("error") == "truncated" and record.get("events")]
    assert cut
    assert all(len(record["gaps_ns"]) == record["events"] - 1 for record in cut if record["events"] > 1)

    rows = {row["method"]: row for row in json.loads((tmp_path / "locust.json").read_text())}
    assert rows["POST"]["num_requests"] == REQUESTS
    assert rows["POST"]["num_failures"] == requests["failed"]
    assert rows["TTFT"]["num_requests"] <= requests["ok"]
    with (tmp_path / "locust_failures.csv").open() as file:
        table = list(csv.DictReader(file))
    causes = {(record["error"], record.get("error_message")) for record in records if record.get("error")}
    assert len(table) == len(causes) <= 60
    assert sum(int(row["Occurrences"]) for row in table) == requests["failed"]
