"""What servers send, through real Locust: each entry point, retries, saved outputs, whole answers, time limits."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from exporters.record import RequestRecord
from tests.support.catalogue import REPLIES
from tests.support.locust_runs import Ended, run
from tests.support.scripted_server import ScriptedServer

WORKLOAD = "name: eight\nclasses:\n  eight: {input-tokens: 40, output-tokens: 8, system-prompt-tokens: 16}\n"
RESPONSES = [name for name, reply in REPLIES.items() if reply.asked.endpoint == "/v1/responses" and reply.asked.stream]


@dataclass
class Played:
    """A run and what the server says of it."""

    ended: Ended
    truth: dict[str, Any]

    @property
    def served(self) -> Counter[str]:
        return Counter(self.truth["served"])

    @property
    def records(self) -> list[RequestRecord]:
        return self.ended.records

    def failures(self) -> list[dict[str, str]]:
        """Locust's failures table."""
        path = self.ended.directory
        with (path.parent / f"{path.name}_failures.csv").open() as file:
            return list(csv.DictReader(file))

    def outputs(self) -> list[dict[str, Any]]:
        files = sorted((self.ended.directory / "outputs").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


RUNS: dict[str, tuple[str, int, tuple[object, ...]]] = {
    # name: (what the server deals, requests, options)
    "responses": (",".join(RESPONSES), 4 * len(RESPONSES), ("-f", "locustfiles/responses.py", "--save-outputs")),
    "retries": (
        "plain:3,http_503_soon:2,http_503_in_an_hour,http_500_html:2,closed_before_head,http_404,error_first",
        20,
        ("--retries", 2),
    ),
    "whole": ("whole:4,whole_503,whole_html,whole_cut", 21, ("--no-stream", "--save-outputs")),
    "streams": ("plain:2,reset_mid,short_output,gzip,no_done", 24, ("--save-outputs",)),
    "limits": (
        "plain,no_first_byte,no_first_token,only_keep_alives,stall,endless",
        24,
        ("-u", 24, "--first-token-timeout", "4", "--idle-timeout", "4s", "--request-timeout", "6000ms"),
    ),
    "messages": (
        "plain,http_500_with_id,error_mid_with_id,http_502_until_close,redirect_302,http_429,garbage,closed_mid",
        40,
        ("--processes", 2),
    ),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Played]:
    """Runs by name, all begun at once, three at a time."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "eight.yaml").write_text(WORKLOAD)

    def play(name: str) -> Played:
        mix, count, options = RUNS[name]
        with ScriptedServer("--mix", mix) as server:
            common = ("--workload", folder / "eight.yaml", "-u", 6, "-r", 100, "--seed", 1, "--num-requests", count)
            ended = run(server.url, folder / name, *common, *options)
            return Played(ended, server.truth())

    pool = ThreadPoolExecutor(3)
    futures: dict[str, Future[Played]] = {name: pool.submit(play, name) for name in RUNS}
    return lambda name: futures[name].result()


@pytest.mark.parametrize("name", RUNS)
def test_counts_are_the_servers(played: Callable[[str], Played], name: str) -> None:
    one = played(name)
    requests = one.ended.summary["requests"]
    expected: Counter[str] = Counter()
    for reply, count in one.served.items():
        expected[REPLIES[reply].error or "ok"] += count
    assert {"ok": requests["ok"], **requests["by_error"]} == dict(expected)
    assert requests["sent"] == expected.total() == requests["ok"] + requests["failed"]
    assert requests["cancelled"] == 0
    # Each failure once, in groups.
    causes = Counter((record.error, record.error_message) for record in one.records if record.error)
    table = one.failures()
    assert len(table) == len(causes)
    assert sum(int(row["Occurrences"]) for row in table) == requests["failed"]
    assert {row["Method"] for row in table} == {"POST"}
    assert one.ended.code in (1, 4), one.ended.err
    assert "Traceback" not in one.ended.err


def test_the_responses_api_is_asked_and_read_in_its_own_words(played: Callable[[str], Played]) -> None:
    one = played("responses")
    (path,) = one.truth["bodies"]
    body = one.truth["bodies"][path]
    assert path == "/v1/responses"
    assert [message["role"] for message in body.pop("input")] == ["system", "user"]
    assert body == {"model": "scripted", "stream": True, "store": False, "max_output_tokens": 8, "ignore_eos": True}
    by_kind = Counter((record.finish_reason, record.error) for record in one.records)
    for name in RESPONSES:
        assert by_kind[(REPLIES[name].finish, REPLIES[name].error)] >= one.served[name]
    said = {record.error_message for record in one.records if record.error}
    assert {"server_error: died", "x: no more", "finish_reason abort"} <= said
    good = [record for record in one.records if record.outcome == "ok"]
    assert {(record.events, record.output_tokens) for record in good} == {(2, 4), (4, 4)}
    metrics = one.ended.summary["metrics"]
    assert metrics["ttft_s"]["count"] == len(good)
    assert metrics["itl_s"]["count"] == sum(record.events - 1 for record in good)
    # Four tokens came where eight were demanded.
    assert one.ended.summary["answers"]["short_output"] == len(good)
    assert "ab" in {line["text"] for line in one.outputs()}


def test_retries_wait_and_are_counted_apart(played: Callable[[str], Played]) -> None:
    one = played("retries")
    retried = {"http_503", "http_500", "empty", "api_error"}
    attempts: dict[int, list[RequestRecord]] = {}
    for record in sorted(one.records, key=lambda record: record.attempt):
        attempts.setdefault(record.index, []).append(record)
    assert sorted(attempts) == list(range(20))
    for records in attempts.values():
        assert [record.attempt for record in records] == list(range(len(records)))
        assert all(record.error in retried for record in records[:-1])
        # A server that wants to be left alone for an hour is.
        assert not any((record.retry_after_s or 0) > 1 for record in records[:-1])
        assert len(records) == 3 or records[-1].error not in retried or records[-1].retry_after_s == 3600
        for number, (before, after) in enumerate(itertools.pairwise(records)):
            least_s = before.retry_after_s or 0.5 * 2**number
            assert least_s * 0.99 <= (after.sent_ns - before.end_ns) / 1e9
            assert before.retry_after_s == (1.0 if before.error == "http_503" else None)
    again = [record for record in one.records if record.attempt]
    assert again
    answers = one.ended.summary["answers"]
    assert answers["retries"] == {
        "sent": len(again),
        **{kind: sum(record.outcome == kind for record in again) for kind in ("ok", "failed", "cancelled")},
    }
    assert one.ended.summary["requests"]["sent"] == 20 + len(again)
    assert f"{len(again)} were retries" in one.ended.out
    # What was sent, by its bytes, is the plan: a retry is the same request.
    assert one.ended.meta["sent"]["count"] == 20


def test_whole_answers_have_an_end_and_tokens_and_no_first_token(played: Callable[[str], Played]) -> None:
    one = played("whole")
    assert one.truth["bodies"]["/v1/chat/completions"]["stream"] is False
    summary = one.ended.summary
    good = one.served["whole"]
    assert summary["metrics"]["e2e_s"]["count"] == good
    for metric in ("ttft_s", "itl_s", "itl_token_s", "stall_s", "tpot_s"):
        assert summary["metrics"][metric]["count"] == 0
    assert summary["tokens"]["output"] == 2 * good
    assert {row["Type"] for row in one.ended.csv_rows()} == {"POST", ""}
    assert Counter(line["text"] for line in one.outputs())["hi"] == good


def test_saved_outputs_stand_beside_the_records(played: Callable[[str], Played]) -> None:
    one = played("streams")
    texts = {(line["index"], line["attempt"]): line["text"] for line in one.outputs()}
    assert set(texts) == {(record.index, record.attempt) for record in one.records}
    for record in one.records:
        assert texts[record.index, record.attempt] == "".join(f" w{number}" for number in range(record.events))
    # A broken one keeps what came.
    assert {record.events for record in one.records if record.error == "reset"} == {3}


def test_oddities_and_short_answers_are_told(played: Callable[[str], Played]) -> None:
    one = played("streams")
    answers = one.ended.summary["answers"]
    served = one.served
    assert answers["notes"] == {"compressed unasked (gzip)": served["gzip"], "no [DONE]": served["no_done"]}
    assert sum(record.notes == ("no [DONE]",) for record in one.records) == served["no_done"]
    # Eight tokens were demanded of each, and these say in their usage that they have fewer.
    short = sum(served[name] for name in ("plain", "short_output", "gzip", "no_done"))
    assert answers["short_output"] == short == sum(record.short_output for record in one.records)
    assert f"short answers: {short} requests" in one.ended.out
    assert "no [DONE]" in one.ended.out


def test_each_limit_has_its_own_kind(played: Callable[[str], Played]) -> None:
    one = played("limits")
    by_error = one.ended.summary["requests"]["by_error"]
    firsts = sum(one.served[name] for name in ("no_first_byte", "no_first_token", "only_keep_alives"))
    assert by_error == {
        "timeout_first": firsts,
        "timeout_idle": one.served["stall"],
        "timeout_total": one.served["endless"],
    }
    limit_s = {"timeout_first": 4.0, "timeout_idle": 4.0, "timeout_total": 6.0}
    for record in one.records:
        if record.error:
            assert (record.end_ns - record.sent_ns) / 1e9 >= limit_s[record.error] * 0.99
    # Their tokens' times are kept.
    assert {record.events for record in one.records if record.error == "timeout_idle"} == {3}
    assert all(len(record.gaps_ns) == record.events - 1 for record in one.records if record.events)


def test_messages_group_and_tell_no_ids_times_or_addresses(played: Callable[[str], Played]) -> None:
    one = played("messages")
    said = {row["Error"] for row in one.failures()}
    assert said == {
        "http_500: request ID at TIME from ADDRESS died after N s",
        "api_error: request ID at TIME from ADDRESS died after N s",
        "http_502: upstream ADDRESS is gone",
        "http_302: redirect not followed (to http://other:N/v1/x)",
        "http_429: slow down",
        "malformed: not HTTP/1.x",
        "truncated: connection closed within the answer",
    }
    assert not any(re.search(r"[0-9a-f]{8}", error) for error in said)
