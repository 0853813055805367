"""An ablation from end to end, a sweep killed and gone on with, and what both make of runs whose effects are known."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from exporters.compare import compare
from exporters.run import Run
from exporters.together import judge_together
from tailgate.exits import BadInput
from tests.support.waiting import eventually
from tests.vllm_launch.commands import end, launch, marked, start
from vllm_launch.config import load_config
from vllm_launch.experiments.cost import per_million
from vllm_launch.experiments.file import load_experiment
from vllm_launch.experiments.outcomes import conclude
from vllm_launch.experiments.state import State, identity, of_config
from vllm_launch.experiments.sweep import Point, pareto
from vllm_launch.search.virtual_run import VirtualLoad, virtual_run
from vllm_launch.simulated.settings import EngineSettings
from workloads import load_workload

WORKLOAD = "name: short\nclasses:\n  short: {input-tokens: 24, output-tokens: 12}\n"
ABLATION = """\
kind: ablation
engine: simulated
baseline: h100-llama-8b-baseline
changes: {max-num-seqs: 2}
workload: short.yaml
users: 12
run-time: 4s
warm-up: 1s
workers: 1
gate: [ttft_p50]
gpu-hour-price: 2.5
"""
SWEEP = """\
kind: sweep
engine: simulated
baseline: h100-llama-8b-baseline
flags: {max-num-seqs: [2, 1024]}
load: {users: [12]}
workload: short.yaml
run-time: 4s
warm-up: 1s
workers: 1
gate: [ttft_p50, itl_p95]
slo: ttft_p95<5s
gpu-hour-price: 2.5
"""


def test_an_ablation_from_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "short.yaml").write_text(WORKLOAD)
    (tmp_path / "a.yaml").write_text(ABLATION)
    ended = launch("experiment", "a.yaml", "--results", "results", "--json", cwd=tmp_path)
    found = ended.json["ablation"]
    assert ended.code in (0, 4), ended
    (effect,) = found["effects"]
    assert (effect["arm"], effect["changes"]) == ("max-num-seqs", ["max-num-seqs: 1024 -> 2"])
    # A busy machine may spoil a run, and then it is not compared; that requests waited is plain all the same.
    ttft = {m["name"]: m for m in effect["comparison"]["metrics"]}.get("ttft_p50")
    assert bool(ttft) != bool(effect["comparison"]["refusals"])
    assert ttft is None or (ttft["verdict"], ttft["low"] > 1.5) == ("worse", True), "two at a time: ten of twelve wait"
    assert found["family"] == (1 if ttft else 0)
    directory = tmp_path / ended.json["directory"]
    assert json.loads((directory / "ablation.json").read_text()) == found
    report = (directory / "report.html").read_text()
    assert "max-num-seqs: 1024 -&gt; 2" in report
    assert "Simulated." in report
    runs = [json.loads((directory / leg / "run.json").read_text()) for leg in ("1-baseline-1", "2-max-num-seqs-1")]
    assert [run["launch"]["args"] for run in runs] == [{}, {"max-num-seqs": 2}]
    legs = ("1-baseline-1", "2-max-num-seqs-1")
    waits = [json.loads((directory / leg / "summary.json").read_text())["metrics"]["ttft_s"]["p50"] for leg in legs]
    assert waits[1] > 1.5 * waits[0]
    assert re.fullmatch(r"cost: h100-llama-8b-baseline \$[\d.,]+ per million output tokens .*", found["cost"][0])


def test_a_sweep_that_is_killed_goes_on_where_it_stopped(tmp_path: Path, mark: str) -> None:
    (tmp_path / "short.yaml").write_text(WORKLOAD)
    (tmp_path / "s.yaml").write_text(SWEEP)
    env = {"TAILGATE_TEST_MARK": mark}
    process = start("experiment", "s.yaml", "--results", "results", cwd=tmp_path, env=env)

    def second_leg() -> Path | None:
        assert process.poll() is None, process.communicate()
        found = list((tmp_path / "results").glob("*/2-*/requests.jsonl"))
        return found[0].parents[1] if found and found[0].stat().st_size else None

    directory: Path = eventually(second_leg, "the second leg is sending", 200)
    process.kill()
    process.communicate()
    eventually(lambda: not marked(mark), "the guard ended what it had started", 20)
    first = (directory / "1-max-num-seqs-2-1" / "requests.jsonl").read_bytes()
    ended = launch("experiment", "s.yaml", "--dry-run", "--json", "--resume", directory, cwd=tmp_path)
    assert [leg["done"] for leg in ended.json["legs"]] == [True, False]
    ended = end(start("experiment", "s.yaml", "--json", "--resume", directory, cwd=tmp_path), 200)
    assert ended.code in (0, 4), ended
    assert "(measured before)" in ended.err
    assert (directory / "1-max-num-seqs-2-1" / "requests.jsonl").read_bytes() == first, "it was not measured again"
    assert (directory / "2-max-num-seqs-1024-1-broken-off").is_dir()
    narrow, wide = ended.json["sweep"]["points"]
    assert (narrow["config"], wide["config"]) == ("max-num-seqs-2", "max-num-seqs-1024")
    assert narrow["ttft_p50_s"] > wide["ttft_p50_s"]
    assert narrow["output_tokens_per_s"] < wide["output_tokens_per_s"]
    assert wide["invalid"] or wide["pareto"][0] == "ttft_p50"
    for point in (narrow, wide):
        dollars = per_million(2.5, 1, point["output_tokens_per_s"])
        assert point["dollars_per_million_output_tokens"] == pytest.approx(dollars)
    assert "<svg" in (directory / "report.html").read_text()


def test_another_plan_cannot_go_on_with_it(tmp_path: Path) -> None:
    (tmp_path / "short.yaml").write_text(WORKLOAD)
    (tmp_path / "s.yaml").write_text(SWEEP)
    asked = load_experiment(str(tmp_path / "s.yaml"))
    state = State.open(asked.path, identity(asked), tmp_path / "results", None)
    (tmp_path / "s.yaml").write_text(SWEEP.replace("[12]", "[12, 13]"))
    other = load_experiment(str(tmp_path / "s.yaml"))
    with pytest.raises(BadInput, match="whose legs differs from what"):
        State.resume(other.path, identity(other), state.directory)


def test_another_server_is_another_engine() -> None:
    of_each = [of_config(load_config(f"http://127.0.0.1:8000/{name}")) for name in "ab"]
    assert of_each[0] != of_each[1]


def test_nobody_else_runs_legs_where_an_experiment_goes_on(tmp_path: Path) -> None:
    (tmp_path / "short.yaml").write_text(WORKLOAD)
    (tmp_path / "s.yaml").write_text(SWEEP)
    asked = load_experiment(str(tmp_path / "s.yaml"))
    state = State.open(asked.path, identity(asked), tmp_path / "results", None)
    again = State.resume(asked.path, identity(asked), state.directory)
    with state.held(), pytest.raises(BadInput, match="still going on"), again.held():
        pass
    with again.held():
        pass


def test_a_millions_price_is_the_gpus_time_over_the_tokens() -> None:
    # 2 GPUs at $3.60 an hour are 0.2 cents a second; at 1,000 tokens/s a million takes 1,000 seconds.
    assert per_million(3.6, 2, 1000.0) == pytest.approx(2.0)
    assert per_million(3.6, 2, 0.0) is None


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    def point(load: str, tokens: float, latency: float | None, invalid: tuple[str, ...] = ()) -> Point:
        latencies = {"itl_p95": latency}
        return Point("c", {}, 1, None, load, 1.0, tokens, tokens, latencies, None, 0, invalid, None)

    slow, mid, fast = point("slow", 100, 0.01), point("mid", 200, 0.02), point("fast", 300, 0.09)
    beaten, spoilt, untold = point("b", 150, 0.03), point("s", 900, 0.001, ("late",)), point("u", 950, None)
    front = pareto([beaten, slow, spoilt, fast, untold, mid], "itl_p95")
    assert [p.load for p in front] == ["fast", "mid", "slow"]


def virtually(folder: Path, text: str, run_time: float = 30.0) -> tuple[object, dict[str, Run]]:
    """An experiment whose legs ran in virtual time."""
    (folder / "e.yaml").write_text(text)
    asked = load_experiment(str(folder / "e.yaml"))
    runs = {}
    for leg in asked.legs:
        settings, _ = EngineSettings.from_flags(leg.config.model, leg.config.device, dict(leg.config.args))
        load = VirtualLoad(leg.users, leg.request_rate, run_time, 5.0, leg.seed)
        runs[leg.name] = virtual_run(
            settings, load_workload(asked.workload), load, slo=asked.file.slo, label=leg.config.name
        )
    return asked, runs


def test_effects_of_flags_alone_and_together_in_virtual_time(tmp_path: Path) -> None:
    text = ABLATION.replace("short.yaml", "chat-and-documents").replace("[ttft_p50]", "[itl_p99, ttft_p50]")
    text = text.replace("{max-num-seqs: 2}", "{max-num-batched-tokens: 1024, max-num-seqs: 8}")
    asked, runs = virtually(tmp_path, text + "rounds: 2\n")
    found = conclude(asked, runs).to_dict()  # type: ignore[arg-type]
    effects = {e["arm"]: {m["name"]: m for m in e["comparison"]["metrics"] if m["gated"]} for e in found["effects"]}
    assert found["family"] == 6
    assert effects["max-num-batched-tokens"]["itl_p99"]["verdict"] == "better", "documents hold nobody up for long"
    assert effects["max-num-seqs"]["ttft_p50"]["verdict"] == "worse", "most of twelve users wait"
    assert effects["all-together"]["itl_p99"]["verdict"] == "better"
    assert effects["all-together"]["ttft_p50"]["verdict"] == "worse"
    product = effects["max-num-batched-tokens"]["itl_p99"]["ratio"] * effects["max-num-seqs"]["itl_p99"]["ratio"]
    assert found["expected_together"]["itl_p99"] == pytest.approx(product)


def test_more_looks_need_more_proof(tmp_path: Path) -> None:
    settings, _ = EngineSettings.from_flags("llama-3.1-8b", "h100-sxm", {})
    workload = load_workload("chat-short")

    def run(seed: int, slowdown: float = 1.0) -> Run:
        engine = replace(settings, slowdown=slowdown)
        return virtual_run(engine, workload, VirtualLoad(None, 20.0, 40.0, 5.0, seed), slo=None, label="x")

    base = [run(1), run(2)]
    alone = [compare(base, [run(s, 1 + 0.03 * i) for s in (1, 2)], gate=["ttft_p95"]) for i in range(1, 6)]
    before = [(c.gated[0].low, c.gated[0].high, c.gated[0].p_adjusted) for c in alone]
    assert judge_together(alone) == 5
    for (low, high, p), comparison in zip(before, alone, strict=True):
        figure = comparison.gated[0]
        assert (figure.low or 0) < (low or 0) < (high or 0) < (figure.high or 0)
        assert (figure.p_adjusted or 0) >= (p or 0)
