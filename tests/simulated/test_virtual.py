"""Virtual time: true to silicon, to itself, and to a user's own run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vllm_launch.simulated import calibrate
from vllm_launch.simulated.calibration import BEYOND, HELD_OUT, PUBLISHED, errors, published_settings, replay
from vllm_launch.simulated.settings import EngineSettings
from vllm_launch.simulated.step_time import Overhead
from vllm_launch.simulated.virtual import Ask, closed_loop, open_loop


def test_the_published_silicon_is_met() -> None:
    tpot, ttft = errors(replay(PUBLISHED, published_settings(), seeds=(0,)))
    assert tpot < 0.05
    assert ttft < 0.085


@pytest.mark.parametrize("table", HELD_OUT, ids=lambda table: f"{table.prompt_tokens}/{table.output_tokens}")
def test_so_is_silicon_that_took_no_part_in_the_fit(table: object) -> None:
    tpot, ttft = errors(replay(table, published_settings(), seeds=(0,)))  # type: ignore[arg-type]
    assert tpot < 0.08
    assert ttft < 0.085


def test_a_cache_too_small_makes_users_wait_as_long_as_on_silicon() -> None:
    (checked,) = replay(replace(BEYOND, points=BEYOND.points[-1:]), published_settings(), seeds=(0,))
    assert checked.ttft_s == pytest.approx(checked.published.ttft_s, rel=0.2)


def settings(**flags: object) -> EngineSettings:
    return EngineSettings.from_flags("llama-3.1-8b", "h100-sxm", {k.replace("_", "-"): v for k, v in flags.items()})[0]


def test_a_run_repeats_exactly() -> None:
    def once() -> list[float]:
        outcome = closed_loop(settings(), 7, 4, lambda i: Ask(100 + 13 * i, 20 + i))
        return [served.end_s for served in outcome.served]

    assert once() == once()


def test_every_token_has_its_time() -> None:
    outcome = open_loop(settings(), [Ask(300, 25, 0.1 * i) for i in range(10)], keep_tokens=True)
    for served in outcome.served:
        assert served.token_s is not None
        assert len(served.token_s) == 25
        assert served.token_s[0] == served.first_s
        assert served.token_s[-1] == served.end_s
        assert np.all(np.diff(served.token_s) > 0)


def test_an_idle_engine_waits_for_the_next_arrival() -> None:
    first, second = sorted(open_loop(settings(), [Ask(64, 5), Ask(64, 5, 100.0)]).served, key=lambda s: s.arrival_s)
    assert second.ttft_s == pytest.approx(first.ttft_s)
    assert second.first_s > 100.0


def test_a_smaller_token_budget_shortens_stalls_and_lengthens_long_prompts() -> None:
    """The trade the suite's demo rests on: 8 decoding users, and a long prompt now and then."""

    def load(tokens: int) -> tuple[float, float]:
        asks = [Ask(64, 400, 0.0) for _ in range(8)] + [Ask(12_000, 4, 0.5 + i) for i in range(4)]
        outcome = open_loop(settings(max_num_batched_tokens=tokens, max_num_seqs=256), asks, keep_tokens=True)
        gaps = np.concatenate([np.diff(s.token_s or []) for s in outcome.served if s.ask.prompt_tokens == 64])
        long = np.mean([s.ttft_s for s in outcome.served if s.ask.prompt_tokens > 64])
        return float(gaps.max()), float(long)

    (stall_large, ttft_large), (stall_small, ttft_small) = load(8192), load(512)
    assert stall_small < stall_large / 4
    assert ttft_small > ttft_large


def test_a_users_run_gives_back_the_overhead_it_was_made_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    true = Overhead(per_step_s=0.004, per_sequence_s=0.0002, per_request_s=0.080)
    made, _ = EngineSettings.from_flags("llama-3.1-8b", "h100-sxm", {}, overhead=true)
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(0.12, 150))
    asks = [Ask(int(rng.integers(50, 800)), int(rng.integers(20, 200)), float(t)) for t in arrivals]
    with (tmp_path / "requests.jsonl").open("w") as file:
        for served in open_loop(made, asks).served:
            record = {"sent_ns": int(1e9 * served.arrival_s), "outcome": "ok", "first_ns": int(1e9 * served.first_s)}
            record |= {"prompt_tokens": served.ask.prompt_tokens, "output_tokens": served.ask.output_tokens}
            file.write(json.dumps({**record, "last_ns": int(1e9 * served.end_s), "worker": "w"}) + "\n")
    output = tmp_path / "overhead.json"
    assert calibrate.main([str(tmp_path), "--model", "llama-3.1-8b", "--json", "-o", str(output)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert json.loads(output.read_text()) == told["overhead"]
    assert told["error"] < 0.02 < told["error_before"]
    # With about as many requests in flight throughout, a step's constant and its share for each cannot be told apart.
    step_s = told["overhead"]["per_step_s"] + 11 * told["overhead"]["per_sequence_s"]
    assert step_s == pytest.approx(true.per_step_s + 11 * true.per_sequence_s, rel=0.1)
    assert told["overhead"]["per_request_s"] == pytest.approx(true.per_request_s, rel=0.15)


def test_a_run_that_cannot_be_fitted_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.main([str(tmp_path)]) == 2
    assert calibrate.main([]) == 2
    (tmp_path / "requests.jsonl").write_text('{"sent_ns": 1, "outcome": "failed"}\n')
    assert calibrate.main([str(tmp_path)]) == 2
    assert "at least 20" in capsys.readouterr().err
