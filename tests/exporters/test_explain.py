"""Every rule speaks where it should, and only there; what it says rests on the run's own figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exporters.explain import explain, findings_text
from exporters.explain import findings as findings_module
from exporters.explain.figures import KNOWN, figures_of
from exporters.explain.rules import load_rules
from exporters.report import write_report
from exporters.run import Run
from tailgate.exits import BadInput
from vllm_launch.__main__ import main
from vllm_launch.flags import flag_list, versions

# A run on which nothing stands out, and what each rule needs to be changed in it to speak.
CALM = {
    "client_reasons": 0,
    "rejected_share": 0,
    "failed_share": 0,
    "ttft_limit_s": 1.0,
    "tpot_limit_s": 0.05,
    "ttft_p95_s": 0.8,
    "tpot_p95_s": 0.045,
    "itl_p50_s": 0.03,
    "itl_p99_s": 0.06,
    "waiting_growth": 0.0,
    "waiting_share": 0.1,
    "waiting_mean": 0.2,
    "kv_cache_max": 0.8,
    "preemptions_per_request": 0.0,
    "seqs_share": 0.5,
    "prompt_share_of_tokens": 0.5,
    "outside_share_of_ttft": 0.1,
    "outside_ttft_s": 0.01,
    "prefix_hit_share": 0.3,
}
SPEAKS: dict[str, dict[str, float]] = {
    "not-valid": {"client_reasons": 1},
    "refused": {"rejected_share": 0.02},
    "overload": {"waiting_growth": 20, "waiting_share": 1.0, "ttft_p95_s": 9.0},
    "preemptions": {"preemptions_per_request": 0.05},
    "kv-near-full": {"kv_cache_max": 0.97, "waiting_share": 0.6},
    "seats-full": {"seqs_share": 1.0, "waiting_share": 0.9},
    "prefill-queueing": {"ttft_p95_s": 3.0},
    "prefill-stalls": {"itl_p99_s": 0.2, "prompt_share_of_tokens": 0.9},
    "decode-pressure": {"tpot_p95_s": 0.09},
    "both-high": {"ttft_p95_s": 3.0, "tpot_p95_s": 0.09},
    "outside-the-engine": {"outside_share_of_ttft": 0.5, "outside_ttft_s": 0.1},
    "prefix-cache-cold": {"prefix_hit_share": 0.0, "prompt_share_of_tokens": 0.95, "ttft_p95_s": 3.0},
    "machine-not-full": {"ttft_p95_s": 0.2, "tpot_p95_s": 0.01, "waiting_share": 0.0, "kv_cache_max": 0.1},
}
SECOND = {"prefix-cache-cold": {"prefill-queueing"}}


def test_every_rule_has_its_case() -> None:
    assert list(SPEAKS) == [rule.id for rule in load_rules()]


@pytest.fixture
def a_run(tmp_path: Path) -> Run:
    return made(tmp_path, [])


@pytest.mark.parametrize("rule", SPEAKS)
def test_a_rule_speaks_where_its_case_is_and_alone(rule: str, a_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_module, "figures_of", lambda run: CALM)
    assert explain(a_run) == []
    monkeypatch.setattr(findings_module, "figures_of", lambda run: CALM | SPEAKS[rule])
    found = {finding.id: finding for finding in explain(a_run)}
    assert set(found) == {rule} | SECOND.get(rule, set())
    assert found[rule].evidence
    assert found[rule].trials or found[rule].advice, "a finding says what to do"


@pytest.mark.parametrize("rule", [rule for rule in SPEAKS if rule != "not-valid"])
def test_a_figure_that_is_not_told_makes_no_finding(rule: str, a_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SPEAKS[rule]:
        without = {k: v for k, v in (CALM | SPEAKS[rule]).items() if k != name}
        monkeypatch.setattr(findings_module, "figures_of", lambda run, left=without: left)
        assert rule not in {finding.id for finding in explain(a_run)}


def test_every_flag_that_is_named_exists_in_every_recorded_vllm() -> None:
    for version in versions():
        flags = flag_list(version).flags
        for rule in load_rules():
            assert {trial.flag for trial in rule.trials} <= set(flags), rule.id


def made(folder: Path, engine: list[dict[str, Any]], slo: str | None = None) -> Run:
    """A run of twenty requests: 40 ms to the first token, gaps of 10 ms, 100 prompt tokens each."""
    start = 1_790_000_000_000_000_000
    records = [
        {
            "index": i,
            "worker": "w",
            "request_class": "c",
            "endpoint": "/",
            "outcome": "ok",
            "clock": "wire",
            "sent_ns": start + i * 10**9,
            "first_ns": start + i * 10**9 + 40_000_000,
            "events": 11,
            "last_ns": start + i * 10**9 + 140_000_000,
            "end_ns": start + i * 10**9 + 140_000_000,
            "gaps_ns": [10_000_000] * 10,
            "output_tokens": 11,
            "prompt_tokens": 100,
        }
        for i in range(20)
    ]
    (folder / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    meta = {"workload": "w", "clock": "wire", "slo": slo, "window": {"start_ns": start, "end_ns": start + 20 * 10**9}}
    meta["launch"] = {"args": {"max-num-batched-tokens": 512}, "effective": {"max-num-seqs": 8}}
    (folder / "run.json").write_text(json.dumps(meta))
    lines = [json.dumps({"time_ns": start + i * 10**9} | sample) + "\n" for i, sample in enumerate(engine)]
    (folder / "engine.jsonl").write_text("".join(lines))
    return Run.load(folder)


def test_figures_come_from_client_engine_and_launch_alike(tmp_path: Path) -> None:
    engine = [
        {
            "running": 8,
            "waiting": i,
            "kv_cache_usage": 0.1 * i,
            "preemptions_total": 2 * i,
            "requests_done_total": 10 * i,
            "ttft_s_sum": 0.3 * i,
            "ttft_s_count": 10 * i,
            "queue_s_sum": 0.2 * i,
            "queue_s_count": 10 * i,
            "prefix_cache_queries_total": 100 * i,
            "prefix_cache_hits_total": 25 * i,
        }
        for i in range(8)
    ]
    figures = figures_of(made(tmp_path, engine, "ttft_p95<2s,itl_p99<30ms"))
    wanted = {
        "ttft_mean_s": 0.04,
        "itl_p50_s": 0.01,
        "ttft_limit_s": 2.0,
        "tpot_limit_s": 0.03,
        "running_max": 8,
        "waiting_mean": 3.5,
        "waiting_share": 7 / 8,
        "waiting_growth": 6.0,
        "kv_cache_max": 0.7,
        "preemptions_per_request": 0.2,
        "prefix_hit_share": 0.25,
        "engine_ttft_mean_s": 0.03,
        "queue_mean_s": 0.02,
        "queue_share_of_ttft": 2 / 3,
        "outside_ttft_s": 0.01,
        "outside_share_of_ttft": 0.25,
        "seqs_share": 1.0,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "prompt_share_of_tokens": 100 / 111,
    }
    assert {name: figures[name] for name in wanted} == pytest.approx(wanted)
    assert set(figures) <= set(KNOWN)


def test_a_finding_tells_its_evidence_and_the_flags_value_now(tmp_path: Path) -> None:
    engine = [{"running": 8, "waiting": 3, "kv_cache_usage": 0.2} for _ in range(8)]
    run = made(tmp_path, engine)
    (finding,) = [f for f in explain(run) if f.id == "seats-full"]
    assert "running requests, most, against max-num-seqs is 100.0%, above 95.0%" in finding.evidence
    assert (finding.trials[0]["flag"], finding.trials[0]["move"], finding.trials[0]["now"]) == (
        "max-num-seqs",
        "raise",
        8,
    )
    assert "   try: raise max-num-seqs (now 8)\n" in findings_text(run, [finding])


def test_a_run_without_an_engine_says_so(tmp_path: Path) -> None:
    run = made(tmp_path, [])
    assert "The engine's own metrics were not scraped" in findings_text(run, explain(run))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("figure: ttft_p59_s, above: 1", "no such figure 'ttft_p59_s'; did you mean ttft_p95_s?"),
        ("figure: ttft_p95_s, above: 1, at-most: 2", "give either 'above' or 'at-most'"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.yaml").write_text(f"rules:\n  - id: a\n    says: b\n    when:\n      - {{{text}}}\n")
    with pytest.raises(BadInput, match=r"r\.yaml:5") as caught:
        load_rules(tmp_path / "r.yaml")
    assert said in str(caught.value)


def test_command_and_report_tell_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = [{"running": 8, "waiting": 3, "kv_cache_usage": 0.2} for _ in range(8)]
    run = made(tmp_path, engine)
    assert main(["explain", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [finding["id"] for finding in told["findings"]] == [finding.id for finding in explain(run)]
    write_report(tmp_path / "report.html", [run])
    page = (tmp_path / "report.html").read_text()
    assert "Why, and what to try next" in page
    for finding in told["findings"]:
        assert finding["says"] in page
        for trial in finding["try"]:
            assert f"<code>{trial['move']} {trial['flag']}" in page
    assert main(["explain", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == findings_text(run, explain(run))
