"""Thresholds that pass, break, or cannot be told; their exit codes; and what pipelines are given to show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from exporters.__main__ import main
from exporters.compare import compare
from exporters.gate import decisions
from exporters.run_store import Run
from tailgate.exits import run_command
from tailgate.thresholds import parse_gate
from tests.support.runs import failed, queueing_records, store

SECONDS = 30.0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    where = tmp_path_factory.mktemp("runs")

    def made(name: str, slower: float = 1.0, lost: int = 0, **about: Any) -> Run:
        records = queueing_records(1, seconds=SECONDS, load=0.4, slower=slower)
        records += [failed(9000 + i, at_s=SECONDS * i / lost) for i in range(lost)]
        return store(where / name, records, seconds=SECONDS, **{"label": name} | about)

    return {
        "a": made("a", slo="ttft<100ms"),
        "slow": made("slow", 3.0, slo="ttft<100ms"),
        "slower by a tenth": made("slower-by-a-tenth", 1.1, slo="ttft<100ms"),
        "failing": made("failing", lost=30),
        "own gate": made("own-gate", workload={"name": "chat-short", "gate": "itl_p95<5ms"}),
        "other": made("other", model="qwen"),
        "hostile": made("host|ile *x*\n::error::\x01", 3.0, workload={"name": "chat-short"}),
    }


@pytest.mark.parametrize(
    ("gate", "candidate", "code", "outcomes"),
    [
        ("ttft_p95<1s,throughput>100", "a", 0, ["passed", "passed"]),
        ("itl_p95<5ms", "a", 3, ["failed"]),
        ("throughput>400", "a", 3, ["failed"]),
        ("goodput_share>50%,requests_per_s>5", "a", 0, ["passed", "passed"]),
        ("itl_p95_rise<20%", "slower by a tenth", 0, ["passed"]),
        ("itl_p95_rise<20%", "slow", 3, ["failed"]),
        ("itl_p95,itl_p99<1s", "slow", 3, ["failed", "passed"]),
        ("throughput_drop<30%", "slow", 0, ["passed"]),
        ("error_share<1%", "failing", 3, ["failed"]),
        ("error_share_rise<10%", "failing", 0, ["passed"]),
        ("error_share_rise<2%", "failing", 3, ["failed"]),
        ("ttft_p99<1s", "a", 4, ["too few"]),
        ("ttft_p99", "a", 4, ["too few"]),
        ("goodput", "failing", 4, ["too few"]),
        ("ttft_p97<1s", "a", 0, ["passed"]),
        ("ttft_p95_adjusted_rise<20%", "a", 0, ["passed"]),
    ],
)  # fmt: skip
def test_each_threshold_decides(
    runs: dict[str, Run], gate: str, candidate: str, code: int, outcomes: list[str]
) -> None:
    found = compare([runs["a"]], [runs[candidate]], gate=parse_gate(gate))
    assert [d.outcome for d in decisions(found)] == outcomes, found.text()
    assert int(found.exit_code) == code
    assert all(d.said for d in decisions(found))


def test_the_worst_of_several_runs_is_held_against_a_bound(runs: dict[str, Run]) -> None:
    found = compare([runs["a"]], [runs["a"], runs["slow"]], gate=parse_gate("itl_p50<20ms"))
    assert found.held[0].value == runs["slow"].summary["metrics"]["itl_s"]["p50"]
    assert (found.verdict, int(found.exit_code)) == ("failed", 3)


def test_the_workloads_own_gate_decides_where_the_line_has_none(runs: dict[str, Run]) -> None:
    found = compare([runs["a"]], [runs["own gate"]])
    assert (found.refused, int(found.exit_code)) == (False, 3)
    assert "own-gate breaks itl_p95<5ms (reached " in found.text()
    assert int(compare([runs["a"]], [runs["own gate"]], gate=parse_gate("itl_p95<1s")).exit_code) == 0


def _call(*words: str | Path) -> int:
    return run_command(lambda: main([str(word) for word in words]), "exporters")


def test_a_pipeline_gets_junit_markdown_and_annotations(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = "ttft_p95<1s,itl_p95<5ms,itl_p95_rise<10%,ttft_p99"
    files = ("--junit", tmp_path / "j.xml", "--markdown", tmp_path / "m.md")
    assert _call("compare", runs["a"].path, runs["slow"].path, "--gate", gate, *files, "--annotations") == 4
    suite = Xml.parse(tmp_path / "j.xml").getroot()[0]
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "2",
        "errors": "1",
        "skipped": "0",
    }
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases["itl_p95<5ms"] == ["failure"]
    assert cases["ITL p95 (itl_p95_rise<10%)"] == ["failure"]
    assert cases["ttft_p95<1s"] == ["system-out"]
    assert cases["TTFT p99"] == ["error"]
    text = (tmp_path / "m.md").read_text()
    assert text.startswith("### ❌ Tailgate: worse\n")
    assert "| ❌ failed | **itl\\_p95\\<5ms** | reached " in text
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("::error ") for line in printed) == 3
    assert any(line.startswith("::error title=ITL p95 (itl_p95_rise<10%25)::worse: ") for line in printed)
    assert printed[-1].startswith("::notice title=Tailgate%3A worse::")


def test_json_stays_json_beside_annotations(runs: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    sides = (runs["a"].path, runs["slow"].path)
    assert _call("compare", *sides, "--gate", "itl_p95<5ms", "--json", "--annotations") == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["thresholds"] == [
        {"text": "itl_p95<5ms", "value": pytest.approx(0.0397, abs=1e-3), "limit": 0.005, "met": False, "note": ""}
    ]
    assert said.err.startswith("::error title=itl_p95<5ms::reached ")


def test_what_cannot_be_compared_is_an_error_in_every_format(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--junit", tmp_path / "j.xml", "--markdown", tmp_path / "m.md")
    assert _call("compare", runs["a"].path, runs["other"].path, *files, "--annotations") == 4
    suite = Xml.parse(tmp_path / "j.xml").getroot()[0]
    assert (suite.get("errors"), suite.get("tests")) == ("1", "1")
    assert "another model: llama against qwen" in (tmp_path / "m.md").read_text()
    assert "::error title=Tailgate%3A not comparable::" in capsys.readouterr().out


def test_a_label_brings_no_markup_along(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--junit", tmp_path / "j.xml", "--markdown", tmp_path / "m.md")
    assert _call("compare", runs["a"].path, runs["hostile"].path, *files, "--annotations") == 3
    assert "host|ile *x*" in str(Xml.parse(tmp_path / "j.xml").getroot()[0].get("name"))
    assert "host\\|ile \\*x\\* ::error::" in (tmp_path / "m.md").read_text()
    lines = capsys.readouterr().out.splitlines()
    annotations = [line for line in lines if line.startswith("::notice")]
    assert len(annotations) == 1
    assert "host|ile *x*%0A::error::" in annotations[0]


@pytest.mark.parametrize("flag", ["--junit", "--markdown"])
def test_a_file_that_cannot_be_written(
    runs: dict[str, Run], flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "no" / "where"
    assert _call("compare", runs["a"].path, runs["slow"].path, flag, target) == 2
    expected = f"exporters: {target}: No such file or directory; name a file that can be written with {flag}\n"
    assert capsys.readouterr().err == expected
