"""Verdicts on runs whose truth is known, refusals word for word, and the blocks and intervals they rest on."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters import baseline
from exporters.blocks import blocks_of, number_of_blocks
from exporters.compare import Comparison, compare
from exporters.intervals import LAUNCH_SPEED, QuantileDraws, _launch_spread, draw_weights
from exporters.run_store import Run
from exporters.wording import screen, sentence
from tailgate.exits import BadInput, Exit
from tests.support.runs import failed, queueing_records, store

SECONDS = 60.0


def _run(tmp_path: Path, name: str, traffic: int, *, load: float = 0.5, **how: Any) -> Run:
    factors = {k: how.pop(k) for k in ("slower", "ttft_slower") if k in how}
    records = queueing_records(traffic, seconds=SECONDS, load=load, **factors)
    lost = [failed(90_000 + i, at_s=i * SECONDS / 200) for i in range(how.pop("failures", 0))]
    return store(tmp_path / name, records + lost, seconds=SECONDS, **{"label": name} | how)


def _pair(tmp_path: Path, **candidate: Any) -> Comparison:
    return compare([_run(tmp_path, "A", 1)], [_run(tmp_path, "B", 2, **candidate)], gate=["ttft_p95", "itl_p95"])


def test_one_config_against_itself_is_never_worse(tmp_path: Path) -> None:
    for seed in range(2, 6):
        found = compare([_run(tmp_path, "A", 1)], [_run(tmp_path, f"B{seed}", seed)])
        assert found.verdict in ("same", "undecided")
        assert found.exit_code == Exit.GOOD


def test_the_very_same_runs_are_the_same(tmp_path: Path) -> None:
    runs = [_run(tmp_path, f"A{i}", i, seed=i) for i in range(3)]
    found = compare(runs, runs)
    assert {m.ratio for m in found.metrics if m.unit == "s" and m.effect} == {1.0}
    assert found.metric("itl_p95").verdict == "same"
    assert found.verdict in ("same", "undecided")
    once = compare(runs[:1], runs[:1])
    assert {m.verdict for m in once.metrics} <= {"same", "undecided", "too few"}


def test_twice_as_slow_is_worse_and_twice_as_fast_is_better(tmp_path: Path) -> None:
    slow = _pair(tmp_path / "slow", slower=2.0)
    assert slow.metric("itl_p95").verdict == "worse"
    assert slow.metric("itl_p95").ratio == pytest.approx(2.0, rel=0.3)
    assert (slow.verdict, slow.exit_code) == ("worse", Exit.REGRESSION)
    fast = _pair(tmp_path / "fast", slower=0.5)
    assert fast.metric("itl_p95").verdict == "better"
    assert (fast.verdict, fast.exit_code) == ("better", Exit.GOOD)


def test_a_queue_before_the_first_token_is_found_where_it_is(tmp_path: Path) -> None:
    found = _pair(tmp_path, ttft_slower=8.0)
    assert found.metric("ttft_p95").verdict == "worse"
    assert found.metric("itl_p95").verdict != "worse"
    assert "ttft_p95" not in sentence(found)
    assert "B is worse than A on TTFT p95 (x " in sentence(found)


def test_wins_and_costs_are_both_named(tmp_path: Path) -> None:
    found = _pair(tmp_path, slower=0.5, ttft_slower=16.0)
    assert found.verdict == "mixed"
    assert found.exit_code == Exit.REGRESSION
    assert sentence(found).startswith("B beats A on ITL p95 (-")
    assert "but is worse on TTFT p95 (x " in sentence(found)


def test_one_schedule_on_both_sides_makes_small_differences_visible(tmp_path: Path) -> None:
    def judged(seeds: tuple[int, int]) -> Comparison:
        where = tmp_path / str(seeds)
        return compare([_run(where, "A", seeds[0])], [_run(where, "B", seeds[1], slower=1.2)])

    paired, apart = judged((1, 1)).metric("ttft_p50").effect, judged((1, 2)).metric("ttft_p50").effect
    assert paired is not None
    assert apart is not None
    assert paired.estimate == pytest.approx(math.log(1.2), abs=0.02)
    assert paired.error < apart.error / 3


def test_repeats_that_disagree_widen_the_interval(tmp_path: Path) -> None:
    def width(spread: float) -> float:
        where = tmp_path / str(spread)
        base = [_run(where, f"A{i}", i, slower=1 + spread * i) for i in (0, 1)]
        candidate = [_run(where, f"B{i}", i, slower=1 + spread * i) for i in (0, 1)]
        effect = compare(base, candidate).metric("itl_p50").effect
        assert effect is not None
        return effect.half_width(0.95)

    assert width(0.3) > 3 * width(0.0)


def test_a_quantile_with_too_few_beyond_has_no_number_and_no_verdict(tmp_path: Path) -> None:
    short = [store(tmp_path / n, queueing_records(i, seconds=20), seconds=20.0) for i, n in enumerate("ab")]
    figure = compare(short[:1], short[1:]).metric("ttft_p99")
    assert (figure.base, figure.candidate, figure.ratio, figure.low) == (None, None, None, None)
    assert figure.verdict == "too few"
    assert figure.note == "needs 2.5 times the observations"
    assert "too few" in compare(short[:1], short[1:]).text()


def test_failing_fast_does_not_look_like_getting_faster(tmp_path: Path) -> None:
    found = _pair(tmp_path, failures=190)
    assert found.metric("ttft_p95_adjusted").candidate == math.inf
    assert found.metric("ttft_p95_adjusted").verdict == "worse"
    assert found.metric("error_share").ratio == pytest.approx(190 / 1390, abs=1e-6)
    assert found.metric("error_share").verdict == "worse"
    assert found.to_dict()["metrics"][4]["name"] == "ttft_p95_adjusted"
    assert '"infinite"' in str(found.to_dict()).replace("'", '"')


@pytest.mark.parametrize(("seconds", "verdict"), [(5.0, "undecided"), (SECONDS, "same")])
def test_no_failure_seen_is_no_promise_where_few_requests_were_sent(
    tmp_path: Path, seconds: float, verdict: str
) -> None:
    runs = [store(tmp_path / n, queueing_records(i, seconds=seconds), seconds=seconds) for i, n in enumerate("ab")]
    figure = compare(runs[:1], runs[1:]).metric("error_share")
    assert (figure.ratio, figure.verdict) == (0.0, verdict)
    assert figure.high is not None
    assert (figure.high <= 0.01) == (verdict == "same")
    assert "nothing failed" in figure.note


@pytest.mark.parametrize(("later", "alike"), [(29.7, True), (45.0, False)])
@pytest.mark.parametrize(
    ("arrival", "users", "changes"),
    [({"kind": "poisson", "rate": 20.0}, None, "rate_changes"), ({"kind": "closed"}, 20, "user_changes")],
)
def test_loads_changed_by_hand_are_alike_where_little_lies_between_them(
    tmp_path: Path, arrival: dict[str, Any], users: int | None, changes: str, later: float, alike: bool
) -> None:
    runs = [
        _run(tmp_path, name, 1, arrival=arrival, users=users, **{changes: [[0.2, 20], [at_s, 40]]})
        for name, at_s in (("A", 30.2), ("B", later))
    ]
    assert compare(runs[:1], runs[1:]).refused is not alike
    stored = baseline.load(baseline.save(runs[:1], "kept", tmp_path))
    assert compare(stored, runs[1:]).refused is not alike
    unchanged = _run(tmp_path, "C", 1, arrival=arrival, users=users)
    assert compare(runs[:1], [unchanged]).refused


def _gateway(tmp_path: Path, name: str, traffic: int, every: int) -> Run:
    """A run behind a gateway that lets out `every` events at once: no time between those."""
    records = queueing_records(traffic, seconds=SECONDS, load=0.5)
    for r in records:
        gaps = r.gaps_ns
        r.gaps_ns = [sum(gaps[max(i - every + 1, 0) : i + 1]) if i % every == 0 else 0 for i in range(len(gaps))]
    return store(tmp_path / name, records, seconds=SECONDS, label=name)


def test_events_that_come_together_have_no_ratio_and_still_a_verdict(tmp_path: Path) -> None:
    plain, held = _run(tmp_path, "A", 1), _gateway(tmp_path, "B", 1, 4)
    for base, candidate, verdict, said in ((plain, held, "better", "-100 %"), (held, plain, "worse", "from none")):
        found = compare([base], [candidate], gate=["itl_p50", "itl_p99"])
        figure = found.metric("itl_p50")
        assert {figure.base, figure.candidate} >= {0.0}
        assert (figure.verdict, figure.effect) == (verdict, None)
        assert f"ITL p50 ({said})" in sentence(found)
        assert "  0 ms" in screen(found)
    again = compare([held, held], [held, held]).metric("itl_p50")
    assert (again.verdict, again.base, again.candidate, again.ratio) == ("same", 0.0, 0.0, None)


def test_goodput_is_compared_where_there_is_an_objective(tmp_path: Path) -> None:
    slo = "ttft<100ms"
    found = compare([_run(tmp_path, "A", 1, slo=slo)], [_run(tmp_path, "B", 1, slo=slo, ttft_slower=2.0)])
    assert found.metric("goodput").verdict == "worse"
    none = compare([_run(tmp_path, "C", 1, slo=slo)], [_run(tmp_path, "D", 1, slo=slo, ttft_slower=99.0)])
    assert none.metric("goodput").verdict == "worse"
    with pytest.raises(KeyError):
        _pair(tmp_path).metric("goodput")


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"workload": {"name": "rag-long"}}, "another workload: chat-short against rag-long"),
    ({"workload": {"name": "chat-short", "x": 2}}, "another workload: chat-short is defined otherwise (x)"),
    ({"model": "qwen"}, "another model: llama against qwen"),
    ({"seed": 2}, "another seed: 1 against 2"),
    (
        {"arrival": {"kind": "poisson", "rate": 19.5}},
        "another arrival: poisson rate=20.0 against poisson rate=19.5",
    ),
    (
        {"arrival": {"kind": "closed"}, "users": 8},
        "another arrival: poisson rate=20.0 against closed users=8",
    ),
    (
        {"rate_changes": [[7.8, 40.0]]},
        "another load: 20 from 0.0 s on against 20 from 0.0 s on, 40 from 7.8 s on",
    ),
    (
        {"engine": {"name": "tailgate-simulated", "simulated": True}},
        "another engine kind: vllm against tailgate-simulated (simulated)",
    ),
    ({"clock": "kernel"}, "another clock: wire against kernel"),
    (
        {"workers": {"w0": {"lost": "died"}}},
        (
            "the candidate run B is not valid: w0 died, so its last records may be missing here; "
            "gather the journals and run: python -m exporters recover"
        ),
    ),
    ({"bodies_sha256": "b"}, "another workload: the same seed yielded other requests (bodies_sha256 differs)"),
]


@pytest.mark.parametrize(("other", "reason"), REFUSALS, ids=[reason[:30] for _, reason in REFUSALS])
def test_what_is_not_comparable_is_refused_and_forced_only_in_the_open(
    tmp_path: Path, other: dict[str, Any], reason: str
) -> None:
    base, candidate = (
        _run(tmp_path, "A", 1, bodies_sha256="a"),
        _run(tmp_path, "B", 1, **{"bodies_sha256": "a"} | other),
    )
    refused = compare([base], [candidate])
    assert reason in refused.refusals
    assert refused.exit_code == Exit.NOT_VALID
    assert refused.metrics == []
    assert sentence(refused).startswith(f"Not comparable: {reason}")
    forced = compare([base], [candidate], force=True)
    assert forced.exit_code in (Exit.GOOD, Exit.REGRESSION)
    assert f"FORCED although not comparable: {reason}" in screen(forced)


def test_runs_of_a_side_must_be_repeats_of_one_config(tmp_path: Path) -> None:
    base = [_run(tmp_path, f"A{i}", i, launch={"args": {"max-num-seqs": 4 * i}}) for i in (1, 2)]
    assert compare(base, [_run(tmp_path, "B", 1)]).refusals == [
        "the baseline runs are not repeats of one another: their launch configs differ"
    ]


def test_an_unknown_gate_is_a_mistake(tmp_path: Path) -> None:
    run = _run(tmp_path, "A", 1)
    with pytest.raises(BadInput, match="gate: unknown metric 'ttft_p96'; known: ttft_p50, "):
        compare([run], [run], gate=["ttft_p96"])


def test_blocks_hold_every_request_once_and_are_long_enough(tmp_path: Path) -> None:
    run = _run(tmp_path, "A", 1)
    blocks = blocks_of(run)
    assert blocks.count == 16
    assert blocks.sent.sum() == run.summary["requests"]["sent"]
    for metric in ("ttft", "itl", "stall"):
        assert blocks.latencies[metric].counts.sum() == run.summary["metrics"][f"{metric}_s"]["count"]
    tokens = blocks.tokens.sum() / run.window.seconds
    assert tokens == pytest.approx(run.summary["throughput"]["output_tokens_per_s"], rel=0.01)
    assert [number_of_blocks(60, e2e) for e2e in (0.0, 0.1, 3.0, 60.0)] == [16, 16, 10, 6]


def test_drawn_quantiles_are_those_of_the_blocks_drawn(tmp_path: Path) -> None:
    run = _run(tmp_path, "A", 1)
    blocks = blocks_of(run)
    weights, _ = draw_weights([blocks], [blocks], paired=False)
    draws = QuantileDraws([blocks], weights, "ttft").draws(0.9)
    columns = run.columns
    at = np.clip((columns.scheduled_ns - run.window.start_ns) / 60e9 * 16, 0, 15).astype(int)
    ttft = columns.per_request("ttft_s")
    for replicate in (0, 100, 599):
        chosen = np.concatenate([np.tile(ttft[at == b], int(n)) for b, n in enumerate(weights[0][replicate])])
        assert draws[replicate] == pytest.approx(np.quantile(chosen, 0.9), rel=0.02)


@pytest.mark.parametrize("count", [16, 7, 1])
def test_blocks_are_drawn_with_their_neighbours(tmp_path: Path, count: int) -> None:
    """What lasts longer than a block is noise; what two neighbours even out between them is none."""
    run = replace(blocks_of(_run(tmp_path, "A", 1)), sent=np.zeros(count))
    (weights,), _ = draw_weights([run], [], paired=False)
    assert weights.sum(axis=1) == pytest.approx(count)
    if count == 16:
        lasting, alternating = np.repeat([0.0, 1.0], 8), np.tile([0.0, 1.0], 8)
        # Of 16 pairs of neighbours 7 hold twice 0, 7 twice 1, and 2 one of each; 8 are drawn.
        assert np.var(weights @ lasting / 16) == pytest.approx(7 / 32 / 8, rel=0.2)
        assert np.var(weights @ alternating / 16) == 0


def test_a_loaded_queue_is_given_more_room_for_launches_that_differ(tmp_path: Path) -> None:
    """On one schedule nothing but launches can differ; 1 % less speed is little at low load and much at high load."""

    def room(load: float) -> float:
        where = tmp_path / str(load)
        runs = [_run(where, name, 1, load=load) for name in "AB"]
        effect = compare(runs[:1], runs[1:]).metric("ttft_p95").effect
        assert effect is not None
        assert effect.error < 0.003
        return effect.verdict_error

    assert LAUNCH_SPEED < room(0.3) < room(0.9) / 2


@pytest.mark.parametrize(("answers", "times"), [(0.0, 1.0), (1.0, 2.5**0.5), (6.0, 40**0.5)])
def test_what_answers_to_load_as_well_is_allowed_more(answers: float, times: float) -> None:
    """Of 1,000 requests a side chance makes 2 * 4 / 3 / 1000 of variance in their load; the figure answers to it."""
    by_chance = (2 * 4 / 3 / 1000) ** 0.5 * answers
    swings = np.array([-1.0, 1.0]) * by_chance / 2**0.5
    assert _launch_spread([swings, swings], [1000, 1000]) == pytest.approx(LAUNCH_SPEED * times)
