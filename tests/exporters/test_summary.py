"""A summary's figures against brute force, its accounting, and what makes a run not valid."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.blocks import blocks_of
from exporters.columns import Columns
from exporters.quantiles import enough, statistics
from exporters.record import RequestRecord, decode_record, encode_record
from exporters.run import Run
from exporters.summary import exit_code, summarise
from exporters.tables import said_of_answers, said_of_prompts
from tests.support.runs import START_NS, failed, meta, queueing_records, record


def test_every_latency_is_what_numpy_makes_of_the_records() -> None:
    records = queueing_records(1, seconds=60)
    found = summarise(records, meta())["metrics"]
    ttft = np.array([(r.first_ns or 0) - r.sent_ns for r in records]) / 1e9
    gaps = np.array([gap for r in records for gap in r.gaps_ns]) / 1e9
    stall = np.array([max(r.gaps_ns) for r in records]) / 1e9
    tpot = np.array([((r.last_ns or 0) - (r.first_ns or 0)) / (r.events - 1) for r in records]) / 1e9
    e2e = np.array([r.end_ns - r.sent_ns for r in records]) / 1e9
    for name, values in (("ttft_s", ttft), ("itl_s", gaps), ("stall_s", stall), ("tpot_s", tpot), ("e2e_s", e2e)):
        assert found[name]["count"] == values.size
        assert found[name]["mean"] == pytest.approx(values.mean())
        assert (found[name]["min"], found[name]["max"]) == (pytest.approx(values.min()), pytest.approx(values.max()))
        for level, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
            assert found[name][level] == pytest.approx(np.quantile(values, share)), (name, level)


def test_gaps_taken_in_parts_are_all_of_them_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporters.columns._GAPS_AT_ONCE", 7)
    rng = np.random.default_rng(4)
    records = []
    for index in range(60):
        gaps = tuple(rng.integers(1, 99, size=rng.integers(0, 20)) / 1000)
        tokens = rng.integers(0, 4, size=len(gaps)).tolist() if index % 3 else None
        records.append(record(index, gaps_s=gaps, gap_tokens=tokens, request_class=("a", "b")[index % 2]))
        records.append(failed(1000 + index, gaps_ns=[10**9, 10**9]))
    columns = Columns.of(records)
    chosen = columns.class_code == columns.classes.index("b")
    mine = [r for r in records if r.request_class == "b" and r.outcome == "ok"]
    assert np.array_equal(columns.values("itl_s", chosen), [gap * 1e-9 for r in mine for gap in r.gaps_ns])
    by_token = [
        gap / k * 1e-9 for r in mine for gap, k in zip(r.gaps_ns, r.gap_tokens or [], strict=False) for _ in range(k)
    ]
    assert np.array_equal(columns.values("itl_token_s", chosen), by_token)
    owners = np.concatenate([owner for _, owner in columns.parts("itl_s", chosen)])
    assert [records[i].index for i in owners] == [r.index for r in mine for _ in r.gaps_ns]


def test_a_long_runs_gaps_are_in_memory_once_in_its_columns(tmp_path: Path) -> None:
    gaps = [9_000_000 + 1000 * i for i in range(1000)]
    columns = Columns.of(record(i, at_s=i * 0.02, gaps_ns=gaps, request_class=("a", "b")[i % 2]) for i in range(4000))
    run = Run(tmp_path, meta(), columns)
    tracemalloc.start()
    try:
        for make in (lambda: run.summary, lambda: blocks_of(run)):
            make()
            assert tracemalloc.get_traced_memory()[1] < 4 * columns.gaps_ns.size
    finally:
        tracemalloc.stop()


def test_itl_counts_token_events_less_requests() -> None:
    records = [*queueing_records(2, seconds=20), failed(9000, at_s=1)]
    found = summarise(records, meta(20.0))
    ok = [r for r in records if r.outcome == "ok"]
    assert found["metrics"]["itl_s"]["count"] == sum(r.events for r in ok) - len(ok)


@pytest.mark.parametrize(
    ("count", "level", "told"),
    [(20, 0.5, True), (19, 0.5, False), (100, 0.9, True), (99, 0.9, False), (200, 0.95, True), (199, 0.95, False),
     (1000, 0.99, True), (999, 0.99, False), (10_000, 0.999, True), (9_999, 0.999, False)],
)  # fmt: skip
def test_a_quantile_needs_ten_observations_beyond_it(count: int, level: float, told: bool) -> None:
    assert enough(count, level) is told
    name = {0.5: "p50", 0.9: "p90", 0.95: "p95", 0.99: "p99", 0.999: "p999"}[level]
    assert (statistics(np.arange(count, dtype=float))[name] is not None) is told


def test_nothing_measured_is_said_with_nulls() -> None:
    found = summarise([], meta())
    assert found["metrics"]["ttft_s"] == {"count": 0} | dict.fromkeys(
        ("mean", "min", "max", "p50", "p90", "p95", "p99", "p999")
    )
    assert found["requests"] == {"sent": 0, "ok": 0, "failed": 0, "cancelled": 0, "by_error": {}}
    assert exit_code(found) == 4


def test_sent_is_ok_failed_and_cancelled_for_every_class() -> None:
    records = [
        *queueing_records(3, seconds=20),
        *(failed(5000 + i, at_s=i, error="http_503") for i in range(3)),
        failed(5100, at_s=4, error="timeout_first", request_class="rag"),
        record(5200, at_s=5, outcome="cancelled", request_class="rag"),
        record(5300, at_s=6, in_window=False),
    ]
    found = summarise(records, meta(20.0))
    whole = found["requests"]
    assert whole["by_error"] == {"http_503": 3, "timeout_first": 1}
    assert whole["sent"] == whole["ok"] + whole["failed"] + whole["cancelled"] == len(records) - 1
    for key in ("sent", "ok", "failed", "cancelled"):
        assert whole[key] == sum(part["requests"][key] for part in found["classes"].values())
    assert found["classes"]["rag"]["requests"] | {"by_error": {}} == {
        "sent": 2, "ok": 0, "failed": 1, "cancelled": 1, "by_error": {},
    }  # fmt: skip
    assert exit_code(found) in (1, 4)


def test_retries_short_answers_and_notes_are_told_apart() -> None:
    records = [
        record(0, at_s=1),
        failed(1, at_s=2, error="http_503", retry_after_s=1.0),
        failed(1, at_s=3, error="http_503", attempt=1, sequence=2),
        record(1, at_s=4, attempt=2, sequence=3),
        record(2, at_s=5, sequence=4, short_output=True, notes=("no [DONE]", "bytes after the response")),
        record(3, at_s=6, sequence=5, notes=("no [DONE]",), request_class="rag"),
        record(4, at_s=7, sequence=6, notes=("no [DONE]",), short_output=True, attempt=1, in_window=False),
    ]
    found = summarise([decode_record(encode_record(each)) for each in records], meta(20.0))
    assert found["answers"] == {
        "retries": {"sent": 2, "ok": 1, "failed": 1, "cancelled": 0},
        "short_output": 1,
        "notes": {"bytes after the response": 1, "no [DONE]": 2},
    }
    assert found["classes"]["rag"]["answers"]["notes"] == {"no [DONE]": 1}
    assert found["requests"]["sent"] == 6
    assert said_of_answers(found["answers"]) == [
        "of these 2 were retries: 1 ok, 1 failed, 0 cancelled",
        "short answers: 1 requests got fewer tokens than they demanded",
        "note: 1 x bytes after the response",
        "note: 2 x no [DONE]",
    ]
    assert said_of_answers(summarise([record()], meta())["answers"]) == []


def test_prompts_are_held_against_what_was_designed() -> None:
    def summary(*pairs: tuple[int | None, int | None]) -> dict[str, Any]:
        records = [record(i, planned_prompt_tokens=a, prompt_tokens=b) for i, (a, b) in enumerate(pairs)]
        return summarise([*records, failed(99, planned_prompt_tokens=5)], meta())

    exact = summary((100, 100), (50, 50), (None, 70), (70, None))
    assert (exact["prompt_lengths"]["compared"], exact["prompt_lengths"]["as_designed"]) == (2, 2)
    assert said_of_prompts(exact) == ["prompts: all 2 exactly as long as designed"]
    assert said_of_prompts(summary((100, 103), (100, 98), (100, 100))) == [
        "prompts: 1 of 3 exactly as long as designed, the others by -2 to +3 tokens (+0.3% in all)"
    ]
    assert said_of_prompts(summary((None, 5))) == []


def test_conversations_are_counted_that_came_to_their_end() -> None:
    whole = [record(0, turn=turn, turns=3, sequence=turn) for turn in range(3)]
    failing = [record(1, turns=2, sequence=8), failed(1, turn=1, turns=2, sequence=9)]
    found = summarise([*whole, *failing, record(2, turns=4), record(3)], meta())
    assert found["conversations"] == {"begun": 3, "whole": 1}
    assert found["answers"]["notes"] == {}
    assert said_of_prompts(found)[0] == "conversations: 3 begun, 1 sent to their end"
    assert summarise([record(3)], meta())["conversations"] is None


def test_failures_are_in_no_latency_but_in_the_adjusted_tail() -> None:
    ok = [record(i, at_s=i / 10, ttft_s=0.1 + i / 1e4) for i in range(300)]
    lost = [failed(1000 + i, at_s=i) for i in range(30)]
    found = summarise(ok + lost, meta())
    assert found["metrics"]["ttft_s"]["count"] == 300
    assert found["metrics"]["ttft_s"]["max"] < 0.14
    adjusted = found["error_adjusted"]["ttft_s"]
    everything = np.array([0.1 + i / 1e4 for i in range(300)] + [np.inf] * 30)
    assert adjusted["count"] == 330
    assert adjusted["p90"] == pytest.approx(np.quantile(everything, 0.9, method="linear"))
    assert adjusted["p95"] == "infinite"
    assert adjusted["p99"] is None


def test_a_gap_of_several_tokens_weighs_as_many() -> None:
    records = [record(i, gaps_s=(0.02, 0.01), gap_tokens=[2, 1], output_tokens=4) for i in range(30)]
    found = summarise([*records, record(99, gaps_s=(0.5,))], meta())
    assert found["metrics"]["itl_s"]["count"] == 61
    per_token = found["metrics"]["itl_token_s"]
    assert (per_token["count"], per_token["min"], per_token["max"]) == (90, pytest.approx(0.01), pytest.approx(0.01))
    assert found["tokens"]["per_event"] == pytest.approx((4 * 30 + 2) / (3 * 30 + 2))


def test_one_token_has_no_tpot_and_no_stall() -> None:
    found = summarise([record(i, output_tokens=1) for i in range(30)], meta())["metrics"]
    assert (found["ttft_s"]["count"], found["tpot_s"]["count"], found["stall_s"]["count"]) == (30, 0, 0)


def test_counted_events_stand_in_for_usage_and_say_so() -> None:
    records = [record(i, gaps_s=(0.01,), output_tokens=None, tokens_source="events") for i in range(30)]
    found = summarise(records, meta())
    assert found["tokens"] | {"prompt": 0} == {"prompt": 0, "output": 60, "source": "events", "per_event": None}
    mixed = summarise([*records, record(50, gaps_s=(0.01,))], meta())
    assert mixed["tokens"]["source"] == "mixed"


def test_latencies_also_run_from_the_schedule_in_open_loop() -> None:
    late = [
        record(i, at_s=i * 0.1 + 0.02, ttft_s=0.1, scheduled_ns=START_NS + round(i * 0.1 * 1e9)) for i in range(200)
    ]
    found = summarise(late, meta(20.0, arrival={"kind": "poisson", "rate": 10.0}))
    assert found["metrics"]["send_lag_s"]["p50"] == pytest.approx(0.02)
    assert found["metrics"]["ttft_s"]["p50"] == pytest.approx(0.1)
    assert found["metrics"]["ttft_scheduled_s"]["p50"] == pytest.approx(0.12)
    assert found["quality"]["send_lag_p99_s"] == pytest.approx(0.02)


def test_throughput_counts_what_was_delivered_inside_the_window() -> None:
    inside = record(0, at_s=1, ttft_s=0.5, gaps_s=(0.5,) * 3)
    across = record(1, at_s=8.9, ttft_s=0.5, gaps_s=(0.5,) * 3)
    before = record(2, at_s=-0.9, ttft_s=0.5, gaps_s=(0.5,) * 3, in_window=False)
    found = summarise([inside, across, before], meta(10.0))["throughput"]
    assert found["requests_per_s"] == pytest.approx(2 / 10)
    assert found["events_per_s"] == pytest.approx((4 + 2 + 3) / 10)
    assert found["output_tokens_per_s"] == found["events_per_s"]


def test_goodput_needs_every_objective_and_success() -> None:
    quick = [record(i, ttft_s=0.1, gaps_s=(0.01,) * 20) for i in range(50)]
    stalled = [record(100 + i, ttft_s=0.1, gaps_s=(0.01,) * 19 + (0.5,)) for i in range(30)]
    slow = [record(200 + i, ttft_s=2.0, gaps_s=(0.01,) * 20) for i in range(15)]
    lost = [failed(300 + i) for i in range(5)]
    every = quick + stalled + slow + lost

    def share(slo: str) -> Any:
        return summarise(every, meta(10.0, slo=slo))["goodput"]["share"]

    assert share("ttft<1s") == pytest.approx(0.8)
    assert share("ttft_p95<1s,itl<100ms") == pytest.approx(0.5)
    assert share("ttft_p95<1s,itl_p90<100ms") == pytest.approx(0.8)
    found = summarise(every, meta(10.0, slo="ttft_p50<1s,error_share<1%"))
    assert found["goodput"]["requests_per_s"] == pytest.approx(8.0)
    assert [(o["text"], o["met"]) for o in found["objectives"]] == [("ttft_p50<1s", True), ("error_share<1%", False)]


def test_goodput_is_never_more_than_throughput() -> None:
    """A backlog: 100 requests begin in ten seconds, one ends every second. All are good once they end."""
    backlog = [record(i, at_s=i / 10, ttft_s=i * 0.9 + 1, gaps_s=(0.01,)) for i in range(100)]
    found = summarise(backlog, meta(10.0, slo="ttft<1000s"))
    assert found["throughput"]["requests_per_s"] == pytest.approx(1.0, abs=0.11)
    assert found["goodput"]["requests_per_s"] == found["throughput"]["requests_per_s"]
    assert found["goodput"]["share"] == 1


def _reasons(
    clock: str = "wire", arrival: str = "closed", records: list[RequestRecord] | None = None, **worker: Any
) -> str:
    made = records or [record(i, at_s=i / 10, gaps_s=(0.01,) * 9, clock=clock) for i in range(200)]
    about = meta(20.0, clock=clock, arrival={"kind": arrival, "rate": 10.0}, workers={"w0": worker})
    return "; ".join(summarise(made, about)["quality"]["reasons"])


def test_only_what_spoils_a_figure_makes_a_run_invalid() -> None:
    assert _reasons() == ""
    assert _reasons("wire", loop_lag_p99_s=0.02) == ""
    assert "where its clock stamps" in _reasons("user", loop_lag_p99_s=0.02)
    assert "thinner load" in _reasons("wire", loop_lag_p99_s=0.2)
    assert "add 1 worker (--processes 2)" in _reasons("user", loop_lag_p99_s=0.02, cpu_share=0.95)
    assert "packet ring overflowed: 5.00%" in _reasons("wire", ring_drops=100)
    assert _reasons("kernel", ring_drops=100) == ""
    assert "95% busy" in _reasons("kernel", loop_lag_p99_s=0.001, cpu_share=0.95)
    assert _reasons("wire", cpu_share=0.95) == ""
    assert "stepped" in _reasons(wall_clock_step_s=0.5)
    assert "in flight" in _reasons(in_flight_mean=80, in_flight_asked=100)


def test_streams_in_flight_are_told_by_their_own_times_where_every_record_is_there() -> None:
    """A late worker believes in streams that ended long ago: 200 of 0.14 s in 20 s are 1.4 in flight, not 2."""
    counts = {"sent": 200, "ok": 200, "failed": 0, "cancelled": 0, "in_flight_mean": 2}
    assert "only 69.9% of the streams asked for were in flight" in _reasons(**counts, in_flight_asked=2)
    assert _reasons(**counts, in_flight_asked=1.41) == ""
    assert _reasons(**counts | {"sent": None}, in_flight_asked=2) == ""


def test_shared_reads_count_only_where_the_reader_was_late() -> None:
    shared = [record(i, at_s=i / 10, gaps_s=(0.01,) * 9, clock="kernel", coalesced=2) for i in range(200)]
    assert "shared a read" in _reasons("kernel", records=shared, loop_lag_p99_s=0.004)
    assert _reasons("kernel", records=shared, loop_lag_p99_s=0.001) == ""
    assert _reasons("wire", records=shared, loop_lag_p99_s=0.004) == ""


def test_a_rate_that_was_not_reached_is_invalid_and_chance_is_not() -> None:
    few = [record(i, at_s=i / 5, gaps_s=(0.01,)) for i in range(100)]
    assert "only 50.0% of the requests asked for were sent" in _reasons(arrival="constant", records=few)
    nearly = [record(i, at_s=i / 10, gaps_s=(0.01,)) for i in range(185)]
    assert _reasons(arrival="poisson", records=nearly) == ""
    assert "requests asked for" in _reasons(arrival="constant", records=nearly)


def _open(due: int, **changes: Any) -> dict[str, Any]:
    """A poisson run of 20 s with 200 requests, whose schedule had `due` of them."""
    made = [record(i, at_s=i / 10, gaps_s=(0.01,) * 9, scheduled_ns=START_NS + i * 10**8) for i in range(200)]
    about = meta(20.0, arrival={"kind": "poisson", "rate": 10.0}, schedule={"due_in_window": due})
    return summarise(made, about | changes)["quality"]


def test_what_was_sent_is_held_against_what_was_due() -> None:
    kept, behind = _open(200), _open(210)
    assert (kept["requests_due"], kept["requests_missing"], kept["reasons"]) == (200, 0, [])
    assert behind["requests_missing"] == 10
    assert "only 95.2% of the requests asked for were sent (limit 97%)" in behind["reasons"][0]
    varied = _open(200, rate_changes=[[3.0, 20.0]])
    assert varied["rate_requested"] == pytest.approx(10.0), "what was due, where no one rate was asked for"


def test_records_thinned_out_are_not_missing_and_a_lost_workers_are() -> None:
    assert _open(400, workers={"w0": {"sent": 400, "ok": 400, "failed": 0, "cancelled": 0}})["requests_missing"] == 0
    lost = _open(210, workers={"w0": {"lost": "went silent", "sent": 205, "ok": 205, "failed": 0, "cancelled": 0}})
    assert any("10 requests that were due in the window were not heard of" in reason for reason in lost["reasons"])


@pytest.mark.parametrize(
    ("hits", "designed", "said"), [(10, 0.0, False), (30, 0.0, True), (500, 0.49, False), (400, 0.5, False)]
)
def test_more_cache_hits_than_designed_make_a_run_invalid(hits: int, designed: float, said: bool) -> None:
    cache = {"queried_tokens": 1000, "hit_tokens": hits, "designed_share": designed}
    quality = _open(200, prefix_cache=cache)
    assert (quality["cache_hit_share"], quality["cache_designed_share"]) == (hits / 1000, designed)
    assert any("prefix cache served" in reason for reason in quality["reasons"]) is said


def test_a_run_that_ended_within_its_warm_up_says_so() -> None:
    about = meta(20.0)
    about["window"]["end_ns"] = about["window"]["start_ns"]
    found = summarise([record(0, in_window=False)], about)
    assert found["window"]["seconds"] == 0
    assert not found["valid"]
    assert "within its warm-up" in found["quality"]["reasons"][0]


def test_requests_cut_off_and_too_few_are_invalid() -> None:
    cut = [record(i, at_s=i / 10, outcome="cancelled" if i < 10 else "ok") for i in range(200)]
    assert "5.0% of the requests were cut off" in _reasons(records=cut)
    assert "requests that succeeded inside the window: 5 (at least 20" in _reasons(
        records=[record(i) for i in range(5)]
    )


def test_a_workers_own_counts_must_match_what_arrived() -> None:
    assert _reasons(sent=200, ok=200, failed=0, cancelled=0) == ""
    assert "worker w0 sent 201 requests but ended 200" in _reasons(sent=201, ok=200, failed=0, cancelled=0)
    assert "counted (190, 10, 0) ok, failed, cancelled but (200, 0, 0) arrived" in _reasons(
        sent=200, ok=190, failed=10, cancelled=0
    )
    assert "w0 stopped reporting, so its last records may be missing here; gather the journals" in _reasons(
        lost="stopped reporting"
    )


@pytest.mark.parametrize(("behind", "said"), [(0, 0), (5, 0), (30, 1)])
def test_an_embedded_engine_that_fell_behind_spoils_the_run(behind: float, said: int) -> None:
    about = meta(20.0)
    start_ns = about["window"]["start_ns"]

    def sample(second: float, late: float) -> dict[str, float]:
        return {
            "time_ns": start_ns + int(second * 1e9),
            "step_tokens_count": 50 * second,
            "simulated_behind_steps_total": late,
        }

    # What happened before the window counts for nothing, and a scrape may have failed.
    samples = [sample(-1, 0), {"time_ns": start_ns + 5}, *(sample(s, 7 + behind * s / 20) for s in range(21))]
    found = summarise([record(i, at_s=i * 0.1) for i in range(100)], about, samples)
    reasons = [reason for reason in found["quality"]["reasons"] if "embedded engine" in reason]
    assert len(reasons) == said
    assert all("fell behind real time in 3.0% of its steps" in reason for reason in reasons)
    assert not (reasons and found["valid"])
