"""The catalogue through Locust and two workers: every kind of reply, every count equal to the server's own."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.support.catalogue import REPLIES
from tests.support.locust_runs import Ended, run
from tests.support.scripted_server import ScriptedServer

LIMITS = ("--first-token-timeout", 10, "--idle-timeout", 10, "--request-timeout", 14)
"""Seconds: far more than a good reply takes on a machine that is busy with something else."""
# With a limit for the first token, that one runs out first.
UNDER_LIMITS = {"never_starts": "timeout_first"}
TENTHS = (
    *("plain", "http_500_html", "http_429", "error_first", "error_mid"),
    *("malformed_json", "empty_200", "abort", "html_200", "closed_mid"),
)


def _kinds(endpoint: str, stream: bool) -> tuple[str, ...]:
    return tuple(n for n, r in REPLIES.items() if (r.asked.endpoint, r.asked.stream) == (endpoint, stream))


@dataclass(frozen=True)
class Fleet:
    """A run's users, requests, mix of replies and options; two workers always."""

    users: int
    requests: int
    mix: tuple[str, ...]
    options: tuple[object, ...] = ()


FLEETS = {
    "a tenth of each kind": Fleet(200, 1200, TENTHS),
    "chat": Fleet(200, 1200, _kinds("/v1/chat/completions", True), LIMITS),
    "chat, whole": Fleet(20, 90, _kinds("/v1/chat/completions", False), ("--no-stream",)),
    "completions": Fleet(20, 60, _kinds("/v1/completions", True), ("-f", "locustfiles/completions.py")),
    "responses": Fleet(20, 90, _kinds("/v1/responses", True), ("-f", "locustfiles/responses.py")),
}


def test_every_streamed_kind_is_in_some_fleet() -> None:
    missing = set(REPLIES) - {name for fleet in FLEETS.values() for name in fleet.mix}
    # Too few to be worth a run of their own: their reading is the same as the streamed ones' and the chat's.
    assert missing == set(_kinds("/v1/completions", False)) | set(_kinds("/v1/responses", False))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Ended, Counter[str]]]:
    """By name: a fleet's run, and what the server says that it served; all begun at once, two at a time."""
    folder = tmp_path_factory.mktemp("fleets")

    def play(number: int, fleet: Fleet) -> tuple[Ended, Counter[str]]:
        with ScriptedServer("--mix", ",".join(fleet.mix)) as server:
            common = ("--processes", 2, "-u", fleet.users, "-r", fleet.users, "--num-requests", fleet.requests)
            directory = folder / f"fleet-{number}"
            one = run(server.url, directory, *common, *fleet.options, "--json-file", f"{directory}", timeout_s=150)
            return one, Counter(server.truth()["served"])

    pool = ThreadPoolExecutor(2)
    futures: dict[str, Future[tuple[Ended, Counter[str]]]] = {
        name: pool.submit(play, number, fleet) for number, (name, fleet) in enumerate(FLEETS.items())
    }
    return lambda name: futures[name].result()


@pytest.mark.parametrize("name", FLEETS)
def test_two_workers_count_what_the_server_counts(
    ended: Callable[[str], tuple[Ended, Counter[str]]], name: str
) -> None:
    one, served = ended(name)
    count = FLEETS[name].requests
    expected: Counter[str] = Counter()
    for reply, times in served.items():
        expected[UNDER_LIMITS.get(reply) or REPLIES[reply].error or "ok"] += times
    requests = one.summary["requests"]
    # 4 where this machine was too busy for the run to be valid.
    assert one.code in (1 if requests["failed"] else 0, 4), one.err[-2000:]
    assert set(served) == set(FLEETS[name].mix)
    assert expected.total() == count
    assert (requests["sent"], requests["cancelled"]) == (count, 0)
    assert {"ok": requests["ok"], **requests["by_error"]} == dict(expected)
    assert requests["ok"] + requests["failed"] == count
    workers = one.meta["workers"].values()
    assert len(workers) == 2
    assert all(worker["sent"] == worker["ok"] + worker["failed"] + worker["cancelled"] > 0 for worker in workers)
    assert sum(worker["sent"] for worker in workers) == count

    records = one.records
    assert len({(record.worker, record.sequence) for record in records}) == len(records) == count
    assert Counter(record.error or "ok" for record in records) == expected
    # What came before a failure is kept, marked failed.
    cut = [record for record in records if record.error == "truncated" and record.events]
    assert cut or "truncated" not in expected or "--no-stream" in FLEETS[name].options
    assert all(len(record.gaps_ns) == record.events - 1 for record in records if record.events)

    rows = {row["method"]: row for row in json.loads(one.directory.with_suffix(".json").read_text())}
    assert rows["POST"]["num_requests"] == count
    assert rows["POST"]["num_failures"] == requests["failed"]
    assert rows["TTFT"]["num_requests"] if "TTFT" in rows else "--no-stream" in FLEETS[name].options
    with (one.directory.parent / f"{one.directory.name}_failures.csv").open() as file:
        table = list(csv.DictReader(file))
    causes = {(record.error, record.error_message) for record in records if record.error}
    assert len(table) == len(causes) <= 80
    assert sum(int(row["Occurrences"]) for row in table) == requests["failed"]
