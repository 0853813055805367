"""The command as a user runs it: a process, its output and its exit code."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exporters import baseline
from exporters.compare import compare
from exporters.formats import vllm_bench
from exporters.run_store import Run
from tests.support.runs import failed, queueing_records, store

ROOT = Path(__file__).parents[2]


def _call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "exporters", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    where = tmp_path_factory.mktemp("runs")

    def made(name: str, seed: int, slower: float = 1.0, lost: int = 0, **about: Any) -> Path:
        records = queueing_records(seed, seconds=30, load=0.4, slower=slower) + [failed(9000 + i) for i in range(lost)]
        return store(where / name, records, seconds=30.0, label=name, **about).path

    return {
        "a": made("a", 1),
        "again": made("again", 2),
        "slow": made("slow", 1, 3.0),
        "failing": made("failing", 1, lost=2),
        "invalid": made("invalid", 1, clock="user", workers={"w0": {"loop_lag_p99_s": 0.02}}),
    }


def test_exit_codes_are_the_contracts(runs: dict[str, Path], tmp_path: Path) -> None:
    expected = [
        (("summary", runs["a"]), 0),
        (("summary", runs["failing"]), 1),
        (("summary", tmp_path), 2),
        (("summary", runs["invalid"]), 4),
        (("compare", runs["a"], runs["again"]), 0),
        (("compare", runs["a"], runs["slow"]), 3),
        (("compare", runs["a"], runs["invalid"]), 4),
        (("compare", "--base", runs["a"], runs["again"], "--run", runs["slow"]), 3),
        (("compare", f"{runs['a']},{runs['again']}", runs["slow"]), 3),
        (("report", runs["a"], runs["slow"], "-o", tmp_path / "report.html"), 3),
        (("report", runs["a"], "-o", tmp_path / "one.md"), 0),
    ]
    for words, code in expected:
        done = _call(*words)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert (done.stderr == "") is (code != 2), done.stderr
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "one.md").read_text().startswith("## a")


def test_json_is_json_and_says_the_same(runs: dict[str, Path]) -> None:
    summary = json.loads(_call("summary", runs["a"], "--json").stdout)
    assert summary["requests"]["ok"] == 600
    compared = json.loads(_call("compare", runs["a"], runs["slow"], "--json").stdout)
    assert (compared["verdict"], compared["exit_code"]) == ("worse", 3)
    text = _call("compare", runs["a"], runs["slow"]).stdout
    assert compared["sentence"] in text
    assert "itl_p95" in {m["name"] for m in compared["metrics"] if m["verdict"] == "worse"}


MISTAKES: list[tuple[tuple[str, ...], str]] = [
    (
        ("summary", "nowhere"),
        "nowhere/run.json: No such file or directory; a run directory holds run.json and requests.jsonl",
    ),
    (("compare", "nowhere"), "expected BASE and RUN, got 1 of them; repeats go with commas, or --base … --run …"),
    (("compare", "nowhere", "{a}"), "'nowhere' is neither a run directory nor a baseline in baselines; "),
    (("report", "{a}", "-o", "x.pdf"), "-o x.pdf: a report is HTML or Markdown; end the name in .html or .md"),
    (("compare", "--base", "x"), "name both sides one way; BASE RUN, or --base RUN… --run RUN…"),
    (("recover", "nowhere"), "nowhere: neither requests.jsonl nor journals; name a run directory"),
    (("import", "pyproject.toml"), "pyproject.toml: not valid JSON"),
    (
        ("baseline", "save", "{a}", "../x"),
        "'../x' is no name for a baseline; use letters, digits, dot, dash and underscore",
    ),
    (
        ("report", "{a}", "-o", "/nowhere/x.html"),
        "/nowhere/x.html: No such file or directory; name a file that can be written with -o",
    ),
    (("compare", "{a}", "{a}", "--gate", "ttft"), "--gate: unknown metric 'ttft'; known: ttft_p50, "),
]


@pytest.mark.parametrize(("words", "line"), MISTAKES, ids=[words[0] for words, _ in MISTAKES])
def test_a_mistake_is_one_line_and_exit_2(runs: dict[str, Path], words: tuple[str, ...], line: str) -> None:
    done = _call(*(word.format(a=runs["a"]) for word in words))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"exporters: {line}")


def test_help_is_there_for_every_command() -> None:
    for command in ("summary", "compare", "report", "recover", "baseline", "convert", "serve", "import"):
        assert f"usage: python -m exporters {command}" in _call(command, "--help").stdout


def test_recover_prints_the_run(tmp_path: Path) -> None:
    run = store(tmp_path / "run", queueing_records(1, seconds=30), seconds=30.0)
    (run.path / "summary.json").unlink()
    done = _call("recover", run.path)
    assert "600 sent in 30.0 s = 600 ok + 0 failed + 0 cancelled" in done.stdout
    assert (run.path / "summary.json").exists()


def test_csv_has_a_line_a_request(runs: dict[str, Path], tmp_path: Path) -> None:
    assert _call("convert", runs["failing"], "--to", "csv", "-o", tmp_path / "t.csv").returncode == 0
    rows = list(csv.DictReader((tmp_path / "t.csv").open()))
    assert len(rows) == 602
    assert float(rows[0]["ttft_s"]) > 0
    assert rows[-1]["error"] == "http_500"
    assert rows[-1]["ttft_s"] == ""


def test_vllm_bench_and_back_keeps_every_latency(runs: dict[str, Path], tmp_path: Path) -> None:
    assert _call("convert", runs["failing"], "--to", "vllm-bench", "-o", tmp_path / "b.json").returncode == 0
    there, back = Run.load(runs["failing"]), vllm_bench.load(tmp_path / "b.json", tmp_path / "back")
    assert back.summary["requests"]["failed"] == 2
    for metric in ("ttft_s", "itl_s", "tpot_s", "stall_s", "e2e_s"):
        for figure in ("count", "p50", "p90", "max"):
            assert back.summary["metrics"][metric][figure] == pytest.approx(
                there.summary["metrics"][metric][figure], rel=1e-6
            )


def test_what_vllm_bench_wrote_itself_is_read(tmp_path: Path) -> None:
    content = {
        "date": "20261129-144137", "backend": "openai-chat", "model_id": "tiny", "duration": 6.0, "request_rate": "inf",
        "ttfts": [0.02] * 30, "itls": [[0.003, 0.004]] * 30, "output_lens": [3] * 30, "errors": [""] * 30,
        "input_lens": [74] * 30, "start_times": [float(i) / 5 for i in range(30)],
    }  # fmt: skip
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(content))
    done = _call("import", file, "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "bench: vllm-bench, tiny" in done.stdout
    file.write_text(json.dumps({k: v for k, v in content.items() if k != "itls"}))
    done = _call("import", file, "-o", tmp_path / "other")
    assert "holds no itls; it was saved without details; make one with: vllm bench serve" in done.stderr
    assert done.returncode == 2


def test_a_baseline_judges_like_the_run_it_was_made_of(runs: dict[str, Path], tmp_path: Path) -> None:
    saved = _call("baseline", "save", runs["a"], "good", "--directory", tmp_path)
    assert saved.returncode == 0, saved.stderr
    path = tmp_path / "good.json"
    assert path.stat().st_size < 300_000
    assert "good: chat-short, llama, 1 run" in _call("baseline", "list", "--directory", tmp_path).stdout
    slow = [Run.load(runs["slow"])]
    kept, direct = compare(baseline.load(path), slow), compare([Run.load(runs["a"])], slow)
    assert kept.verdict == direct.verdict == "worse"
    for one, other in zip(kept.metrics, direct.metrics, strict=True):
        assert (one.name, one.verdict) == (other.name, other.verdict)
        assert one.low == pytest.approx(other.low)
    assert _call("compare", path, runs["slow"]).returncode == 3


def test_a_run_that_is_not_valid_becomes_no_baseline(runs: dict[str, Path], tmp_path: Path) -> None:
    done = _call("baseline", "save", runs["invalid"], "bad", "--directory", tmp_path)
    assert done.returncode == 2
    assert "is not valid and must not become a baseline: the client read its sockets late" in done.stderr
