"""A damaged requests.jsonl is told as such; and what a run that is not valid is told to do helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exporters.__main__ import main
from exporters.run_store import Run
from tailgate.exits import run_command
from tests.support.runs import START_NS, failed, queueing_records, store

OVERFLOWING = (
    b'{"index":1,"worker":"w","request_class":"c","endpoint":"e","sent_ns":99999999999999999999,"end_ns":1,'
    b'"outcome":"ok"}\n'
)
KERNEL: dict[str, Any] = {"clock": "kernel"}


def _call(*words: str | Path) -> int:
    return run_command(lambda: main([str(word) for word in words]), "exporters")


def test_lines_that_cannot_be_read_make_a_run_not_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = store(tmp_path / "run", queueing_records(1))
    file = run.path / "requests.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[6] = b"\x00\xff not a request\n"
    lines[9] = lines[9][:40] + b"\n"
    file.write_bytes(b"".join(lines))
    said = "2 lines of requests.jsonl cannot be read, the first is line 7: requests are missing here"
    damaged = Run.load(run.path)
    assert damaged.summary["quality"]["reasons"][0].startswith(said)
    assert _call("summary", run.path) == 4
    assert said in capsys.readouterr().out
    assert _call("compare", run.path, run.path) == 4
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\r\n\x1a\n" * 30, "damaged, none of its "),
        (OVERFLOWING, "damaged, "),
    ],
    ids=["foreign", "overflow"],
)  # fmt: skip
def test_a_file_that_holds_no_requests_is_one_line(
    tmp_path: Path, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = store(tmp_path / "run", queueing_records(1, seconds=5), seconds=5.0)
    (run.path / "requests.jsonl").write_bytes(content)
    assert _call("summary", run.path) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"exporters: {run.path}/requests.jsonl: {said}")
    assert err.endswith(f"; make it from the journals with: python -m exporters recover {run.path}\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "tailgate.run/2"}, "schema tailgate.run/2 is newer than this suite, "),
        ({"schema": "tailgate.summary/1"}, "no run's (schema 'tailgate.summary/1'); "),
        ({"window": {"start_ns": "x", "end_ns": 5}}, "window.start_ns: expected `int | null`, got `str`; "),
        ({"window": {"start_ns": 0, "end_ns": 10**30}}, "window.end_ns: expected "),
        ({"arrival": {"kind": "poisson", "rate": "fast"}}, "arrival.rate: expected `float | null`, got `str`; "),
        ({"schedule": {"due_in_window": []}}, "schedule.due_in_window: expected `int | null`, got `array`; "),
        ({"prefix_cache": {"queried_tokens": "x"}}, "prefix_cache.queried_tokens: expected `float"),
        ({"launch": {"args": 5}}, "launch.args: expected `object | null`, got `int`; "),
        ({"workers": {"w0": {"cores": "x"}}}, "workers[...].cores: expected `int | null`, got `str`; "),
    ],
)
def test_a_run_json_that_no_suite_of_today_wrote_is_one_line(
    tmp_path: Path, change: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store(tmp_path / "run", queueing_records(1, seconds=5), seconds=5.0).path
    meta = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(meta | change))
    for words in (("summary", path), ("compare", path, path), ("report", path, "-o", tmp_path / "r.html")):
        assert _call(*words) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"exporters: {path}/run.json: {said}"), err
        assert err.count("\n") == 1


def test_what_is_no_number_in_the_engines_samples_is_left_out(tmp_path: Path) -> None:
    run = store(tmp_path / "run", queueing_records(1, seconds=5), seconds=5.0)
    counters = ("simulated_behind_steps_total", "step_tokens_count", "ttft_s_count", "ttft_s_sum")
    good: list[dict[str, Any]] = [
        {"time_ns": START_NS + i * 10**9, "running": i, "ttft_s_buckets": {"+Inf": i}, **dict.fromkeys(counters, i)}
        for i in range(4)
    ]
    worse = {**good[1], **dict.fromkeys(counters, "x"), "running": None, "ttft_s_buckets": {"+Inf": "x"}}
    bad = [{**good[1], "time_ns": "x"}, worse, [1], "x"]
    (run.path / "engine.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [*good, *bad]))
    found = Run.load(run.path)
    assert found.engine == [*good, {"time_ns": START_NS + 10**9}]
    assert _call("report", run.path, "-o", tmp_path / "r.html") in (0, 4)


def test_a_run_of_no_time_at_all_can_be_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = store(tmp_path / "run", [], seconds=0.0)
    for kind in ("vllm-bench", "vllm-sweep", "csv"):
        assert _call("convert", run.path, "--to", kind) == 0
    assert '"request_throughput": 0.0' in capsys.readouterr().out


def _mends(tmp_path: Path, records: list[Any], workers: dict[str, Any]) -> str:
    run = store(tmp_path / "run", records, workers=workers, **KERNEL)
    return "\n".join(run.summary["quality"]["reasons"])


def test_a_worker_too_many_is_not_asked_of_a_full_machine(tmp_path: Path) -> None:
    busy = {"cpu_share": 0.97, "host": "here"}
    records = queueing_records(1)
    assert "add 1 worker (--processes 2)" in _mends(tmp_path / "room", records, {"w0": busy | {"cores": 4}})
    for name, workers in {
        "by its own workers": {"w0": busy | {"cores": 2}, "w1": busy | {"cores": 2}},
        "by others": {"w0": busy | {"cores": 8, "machine_busy": 0.99}},
    }.items():
        said = _mends(tmp_path / name, records, workers)
        assert "every core of here is busy, so more workers there would not help" in said
        assert "add 1 worker (" not in said


def test_no_worker_is_asked_for_where_the_server_refuses_everything(tmp_path: Path) -> None:
    refused = [failed(i, at_s=i / 20, error="http_503") for i in range(1200)]
    said = _mends(tmp_path, refused, {"w0": {"cpu_share": 0.95, "in_flight_mean": 1.0, "in_flight_asked": 64.0}})
    assert "100% of the requests failed (most with http_503)" in said
    assert "--processes" not in said
