"""The small parts: shares, late and repeated reports, options as text, secrets, what a server may answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st
from locust.env import Environment
from locust.stats import RequestStats

import tailgate
from exporters.quality import WorkerHealth
from exporters.record import RequestRecord, decode_records, encode_record
from locustfiles import __main__ as options_command
from locustfiles.discovery import Api, discover, server_url
from locustfiles.engine_page import read_page
from locustfiles.feed import NOBODY, Share, digest_of
from locustfiles.fleet import REPORT_KEY, Distributed
from locustfiles.messages import Assignment, Introduction, Report, pack
from locustfiles.options import OPTIONS
from locustfiles.record_share import thin
from locustfiles.run_facts import redacted
from locustfiles.settings import ApiKey, chosen, read_settings
from tailgate.exits import BadInput


def every(share: Share, count: int = 1000) -> list[int]:
    """The first `count` indices of a share."""
    found: list[int] = []
    while len(found) < count and (index := share.first(found[-1] + 1 if found else 0)) is not None:
        found.append(index)
    return found


@given(st.integers(1, 9), st.integers(0, 200))
def test_shares_cover_every_request_once(slots: int, limit: int) -> None:
    dealt = [index for slot in range(slots) for index in every(Share(slot, slots, limit))]
    assert sorted(dealt) == list(range(limit))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), max_size=5), st.integers(0, 200))
def test_whatever_is_dealt_anew_every_request_has_one_owner(redeals: list[tuple[int, int]], limit: int) -> None:
    """Each deal begins so far after the one before it, among so many of five workers."""
    deals, at = [(0, 5)], 0
    for further, workers in redeals:
        at += further + 1
        deals.append((at, workers))
    dealt = []
    for worker in range(5):
        share = Share(worker, 5, limit)
        share.deal([(start, worker if worker < workers else NOBODY, workers) for start, workers in deals])
        dealt += every(share)
    assert sorted(dealt) == list(range(limit))


def test_a_guests_requests_are_nobody_elses() -> None:
    regular = set(every(Share(0, 2, None)))
    one = set(every(Share.guest(2, None, open_loop=False)))
    other = set(every(Share.guest(3, None, open_loop=False)))
    assert len(regular | one | other) == 3000
    assert every(Share.guest(2, 100, open_loop=False)) == every(Share.guest(2, None, open_loop=True)) == []


def test_the_digest_binds_a_body_to_its_index() -> None:
    assert digest_of(1, b"a") != digest_of(2, b"a")
    assert digest_of(1, b"a") + digest_of(2, b"b") != digest_of(1, b"b") + digest_of(2, b"a")


class _FakeMaster:
    """As much of Locust's master as `Distributed` touches; answers assignments as a worker would, but the first
    `unheard` of them."""

    def __init__(self, unheard: int = 0) -> None:
        self.unheard = unheard
        self.stats = RequestStats()
        self.clients = {"host_a": SimpleNamespace(id="host_a", state="ready")}
        self.listeners: dict[str, Any] = {}

    def register_message(self, kind: str, listener: Any) -> None:
        self.listeners[kind] = listener

    def get_worker_index(self, client_id: str) -> int:
        return sorted(self.clients).index(client_id)

    def send_message(self, kind: str, data: dict[str, Any], client_id: str) -> None:
        if kind == "tailgate-assign" and self.unheard:
            self.unheard -= 1
        elif kind == "tailgate-assign":
            message = {"message": pack(Introduction(run_id="run", version=tailgate.__version__))}
            self.listeners["tailgate-ready"](environment=None, msg=SimpleNamespace(node_id=client_id, data=message))


def _report(number: int, run_id: str = "run", final: bool = False) -> dict[str, Any]:
    record = RequestRecord(
        index=number,
        worker="worker-0",
        request_class="c",
        endpoint="/v1/completions",
        sent_ns=1,
        end_ns=2,
        outcome="ok",
    )
    report = Report(
        run_id=run_id,
        worker="worker-0",
        number=number,
        lines=encode_record(record),
        counted={},
        health=WorkerHealth(),
        in_flight=0,
        bodies_sum="0",
        bodies_count=1,
        schedule_sum="0",
        done=False,
        final=final,
    )
    rows = RequestStats()
    rows.log_request("POST", "c", 5, 0)
    return {
        REPORT_KEY: pack(report),
        "stats": rows.serialize_stats(),
        "stats_total": rows.total.get_stripped_report(),
        "errors": {"key": {}},
    }


def _assignment(slot: int, slots: int, guest: bool) -> Assignment:
    texts = dict.fromkeys(("run_id", "directory", "worker", "url", "model"), "run") | {"worker": f"worker-{slot}"}
    return Assignment(
        **texts,
        slot=slot,
        slots=slots,
        guest=guest,
        seed=0,
        salt="",
        options={},
        workload={},
        calibration={},
        usage_per_chunk=False,
        longest=None,
        spacing_s=0.0,
        sent_ns=0,
        live=False,
    )


def test_a_worker_that_did_not_listen_yet_is_asked_again() -> None:
    """Locust connects a worker before its locustfile has said what it listens to."""
    fleet = Distributed(Environment(), _FakeMaster(unheard=1), lambda report: None)  # type: ignore[arg-type]
    assert list(fleet.enlist(_assignment)) == ["worker-0"]


def test_a_report_that_comes_late_or_twice_changes_nothing() -> None:
    taken: list[int] = []
    environment, master = Environment(), _FakeMaster()
    fleet = Distributed(environment, master, lambda report: taken.append(report.number))  # type: ignore[arg-type]

    fleet.enlist(_assignment)
    for number, run_id in ((0, "run"), (2, "run"), (2, "run"), (1, "run"), (1, "run"), (7, "an earlier run")):
        environment.events.worker_report.fire(client_id="host_a", data=_report(number, run_id))
    assert taken == [0, 2, 1]
    repeated = _report(2)
    environment.events.worker_report.fire(client_id="host_a", data=repeated)
    assert repeated["stats"] == []
    assert repeated["errors"] == {}
    assert repeated["stats_total"]["num_requests"] == 0
    assert fleet.lost == {}
    environment.events.worker_report.fire(client_id="host_a", data=_report(5, final=True))
    assert fleet.lost == {"worker-0": "2 of its reports never arrived"}


def test_who_looks_at_a_busy_master_gets_a_turn() -> None:
    """Locust takes all reports that wait, one after the other, and lets nobody else run meanwhile."""
    environment, turns = Environment(), list[int]()
    fleet = Distributed(environment, _FakeMaster(), lambda report: time.sleep(0.002))  # type: ignore[arg-type]
    fleet.enlist(_assignment)

    def look() -> None:
        while True:
            turns.append(number)
            gevent.sleep(0)

    looker = gevent.spawn(look)
    for number in range(200):
        environment.events.worker_report.fire(client_id="host_a", data=_report(number))
    looker.kill()
    assert len(set(turns)) >= 4


def test_the_options_are_printed_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    options_command.main()
    said = capsys.readouterr().out
    assert [option.flag for option in OPTIONS if option.flag not in said] == []


def test_every_option_may_be_empty_as_the_web_form_sends_it() -> None:
    empty = dict.fromkeys(chosen(SimpleNamespace()), "")
    assert read_settings(empty).workload.name == "chat-short"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"run_time": 8.0}, 2.0),
        ({"run_time": 3600.0}, 5.0),
        ({"num_requests": "10"}, 0.0),
        ({"warmup": "500ms"}, 0.5),
        ({"run_time": 8.0, "warmup": "7"}, 7.0),
    ],
)
def test_the_warm_up_leaves_room_for_the_run(options: dict[str, Any], expected: float) -> None:
    assert read_settings({"workload": "chat-and-documents"} | options).warmup_s == expected


def test_the_drain_follows_locusts_stop_timeout() -> None:
    assert read_settings({}).drain_s == 30.0
    assert read_settings({"stop_timeout": 7.0}).drain_s == 7.0
    assert read_settings({"stop_timeout": 7.0, "drain": "1m"}).drain_s == 60.0


def test_a_key_shows_itself_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234")
    key = ApiKey.find(None)
    assert key.headers() == {"Authorization": "Bearer sk-1234"}
    assert "1234" not in f"{key!r} {key!s}"
    monkeypatch.setenv("OPENAI_API_KEY", "two\nlines")
    with pytest.raises(BadInput, match="holds no key") as caught:
        ApiKey.find(None)
    assert "two" not in str(caught.value)


def test_the_recorded_command_line_hides_secrets() -> None:
    argv = ["locust", "--api-key", "sk-1", "--api-key-file=sk-2", "-H", "http://me:sk-3@host:1/x", "-u", "4"]
    kept = redacted(argv)
    assert "sk-" not in " ".join(kept)
    assert kept[-2:] == ["-u", "4"]
    assert "http://REDACTED@host:1/x" in kept


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000"),
        ("https://h/base/v1/", "https://h/base"),
    ],
)
def test_a_base_url_may_end_like_an_openai_clients(host: str, url: str) -> None:
    assert server_url(host) == url


@pytest.fixture
def answers() -> Iterator[tuple[Api, dict[str, tuple[int, Any]]]]:
    """A server that answers each path with what the test puts into the dict, else with 404."""
    found: dict[str, tuple[int, Any]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, value = found.get(self.path, (404, {}))
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Api(f"http://127.0.0.1:{server.server_port}"), found
    server.shutdown()
    server.server_close()


def _cards(*names: str, **adapters: str) -> tuple[int, Any]:
    cards = [{"id": name, "max_model_len": 4096} for name in names]
    return 200, {"data": cards + [{"id": name, "parent": parent} for name, parent in adapters.items()]}


def test_the_only_model_is_the_default_and_adapters_are_no_rivals(answers: Any) -> None:
    api, found = answers
    found["/v1/models"] = _cards("base", adapter="base")
    server = discover(api, None)
    assert (server.model, server.longest) == ("base", 4096)
    assert server.engine.to_dict() == {"name": None, "version": None, "simulated": False}
    assert discover(api, "adapter").model == "adapter"


@pytest.mark.parametrize(
    ("models", "asked", "others", "line"),
    [
        (_cards("a", "b"), None, (), "has 2 models; choose one with --model: a, b"),
        (_cards("a", "b"), "c", (), "has no model 'c'; it has: a, b"),
        (_cards("a"), None, ("lora",), "has no model 'lora'; it has: a"),
        ((200, {"object": "list"}), None, (), "is no OpenAI-compatible one"),
        ((404, {}), None, (), "has no /v1/models; name the model with --model"),
        ((503, {}), "a", (), "answers /v1/models with HTTP 503; wait until it is ready"),
    ],
)
def test_what_a_server_lacks_is_said(
    answers: Any, models: tuple[int, Any], asked: str | None, others: tuple[str, ...], line: str
) -> None:
    api, found = answers
    found["/v1/models"] = models
    with pytest.raises(BadInput) as caught:
        discover(api, asked, others)
    assert line in str(caught.value)


def test_a_server_without_a_model_list_is_believed(answers: Any) -> None:
    api, found = answers
    found["/version"] = (200, {"version": "0.32.0"})
    server = discover(api, "mine")
    assert server.model == "mine"
    assert server.engine.to_dict() == {"name": "vllm", "version": "0.32.0", "simulated": False}
    assert server.engine.reports_usage_per_chunk


def test_the_engines_page_is_read_for_what_is_wanted() -> None:
    page = (
        "# HELP vllm:num_requests_running Number of requests\n"
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 4.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5\n'
        'vllm:num_requests_running_other{engine="0"} 9.0\n'
        "vllm:prompt_tokens_total 1.5e+06\n"
    )
    assert read_page(page, 7) == {
        "time_ns": 7,
        "running": 7.0,
        "kv_cache_usage": 0.5,
        "prompt_tokens_total": 1.5e6,
    }


def test_thinned_records_keep_every_failure(tmp_path: Path) -> None:
    with (tmp_path / "requests.jsonl").open("wb") as file:
        for index in range(2000):
            outcome: Any = "failed" if index % 100 == 0 else "ok"
            file.write(
                encode_record(
                    RequestRecord(
                        index=index, worker="w", request_class="c", endpoint="/", sent_ns=1, end_ns=2, outcome=outcome
                    )
                )
            )
    thin(tmp_path, 0.25)
    kept = list(decode_records(tmp_path / "requests.jsonl"))
    assert sum(record.outcome == "failed" for record in kept) == 20
    assert 400 < len(kept) < 620
    thin(tmp_path, 0.0)
    assert (tmp_path / "requests.jsonl").read_bytes() == b""
