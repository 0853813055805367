"""Experiment files: every mistake is refused before anything starts, and the plan says what would happen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm_launch.commands import launch
from vllm_launch.experiments.file import load_experiment, seconds
from vllm_launch.experiments.plan import plan

GOOD = """\
engine: simulated
baseline: h100-llama-8b-baseline
candidate: h100-llama-8b-tuned
workload: chat-short
users: 4
run-time: 1m30s
warm-up: 5s
"""

MISTAKES = {
    "a key with a typo": (
        GOOD + "margn: 0.1\n",
        "e.yaml:8: unknown key 'margn'; did you mean 'margin'?",
    ),
    "an engine that is none": (
        GOOD.replace("engine: simulated", "engine: sglang"),
        "e.yaml:1: engine: 'sglang' is none of its values; known: attach, docker, simulated, vllm",
    ),
    "a duration that is none": (
        GOOD.replace("1m30s", "soon"),
        "e.yaml:6: run-time: 'soon' is no duration; write it like 90s or 1m30s",
    ),
    "a warm-up that leaves nothing": (
        GOOD.replace("warm-up: 5s", "warm-up: 90s"),
        "e.yaml:1: the file: 'warm-up' (90 s) leaves nothing of 'run-time' (90 s)",
    ),
    "two loads": (
        GOOD + "request-rate: 3\n",
        "e.yaml:1: the file: give either 'users' (closed loop) or 'request-rate' (open loop)",
    ),
    "an order that favours a side": (
        GOOD + "order: AAB\n",
        "e.yaml:8: order: 'AAB' does not run both sides equally often; write it like ABBA",
    ),
    "a metric that is none": (
        GOOD + "gate: [itl_p95, itl_p98]\n",
        "e.yaml:8: gate: unknown metric 'itl_p98'; did you mean 'itl_p99'?",
    ),
    "a threshold that bounds no loss": (
        GOOD + "gate: [itl_p95, itl_p99_drop<20%]\n",
        "e.yaml:8: gate: 'itl_p99_drop<20%' bounds what is no loss; write itl_p99_rise<20%",
    ),
    "no baseline": (
        GOOD.replace("baseline: h100-llama-8b-baseline\n", ""),
        "e.yaml:1: the key 'baseline' is missing; add it",
    ),
    "a config that is none": (
        GOOD.replace("8b-tuned", "8b-tunned"),
        "there is no launch config 'h100-llama-8b-tunned'; did you mean 'h100-llama-8b-tuned'?",
    ),
    "a workload that is none": (
        GOOD.replace("chat-short", "chat-shrt"),
        "unknown workload 'chat-shrt'; did you mean 'chat-short'?",
    ),
    "the same engine twice": (
        GOOD.replace("h100-llama-8b-tuned", "same.yaml"),
        (
            "h100-llama-8b-baseline and same resolve to the same engine: there is nothing to compare; change a flag "
            "that has an effect on this device (python -m vllm_launch diff shows it)"
        ),
    ),
    "a device without a table": (
        GOOD.replace("h100-llama-8b-tuned", "b200.yaml"),
        (
            "the embedded engine has no measured step times for the device 'b200'; use one of h100-sxm, h200-sxm, "
            "a100-sxm, or launch real vLLM on it"
        ),
    ),
    "vLLM where there is none": (
        GOOD.replace("engine: simulated", "engine: vllm"),
        (
            "vLLM is not installed in this Python environment; install it, name the environment that has it with "
            "--python, or use --engine simulated (in an experiment's file, engine: simulated)"
        ),
    ),
}

ABLATION = """\
kind: ablation
engine: simulated
baseline: h100-llama-8b-baseline
changes: {max-num-batched-tokens: 1k, max_num_seqs: 64}
workload: chat-short
users: 4
run-time: 20s
rounds: 2
"""
SWEEP = """\
kind: sweep
engine: simulated
baseline: h100-llama-8b-baseline
flags: {max-num-seqs: [64, 1024], stream-interval: [1, 4]}
load: {request-rate: [2, 0.5]}
workload: chat-short
run-time: 20s
"""
MISTAKES |= {
    "a threshold for many arms": (
        ABLATION + "gate: [itl_p95_rise<20%]\n",
        "e.yaml:9: gate: 'itl_p95_rise<20%' is no metric's name; thresholds are for experiments of two configs",
    ),
    "a gate that judges nothing": (
        GOOD + "gate: []\n",
        "e.yaml:8: gate: needs at least 1, has 0; add to it",
    ),
    "users that are no number": (
        GOOD.replace("users: 4", "users: yes"),
        "e.yaml:5: users: input should be a valid integer, got True; mend that value",
    ),
    "a rate without end": (
        GOOD.replace("users: 4", "request-rate: .inf"),
        "e.yaml:5: request-rate: input should be a finite number, got inf; mend that value",
    ),
    "a kind that is no word": (
        GOOD + "kind: [compare]\n",
        "e.yaml: kind: there is no kind of experiment '['compare']'; did you mean 'compare'?",
    ),
    "a search": (
        GOOD + "kind: search\n",
        "e.yaml: kind: a search is no experiment; use the command search",
    ),
    "a candidate that changes nothing": (
        ABLATION.replace("changes: {max-num-batched-tokens: 1k, max_num_seqs: 64}", "candidate: same.yaml"),
        (
            "e.yaml: candidate: same.yaml sets no flag otherwise than h100-llama-8b-baseline, in effect; name "
            "another, or the flags under 'changes'"
        ),
    ),
    "a load named twice": (
        SWEEP.replace("[2, 0.5]", "[2, 2]"),
        "e.yaml:5: load.request-rate: 2 stands twice; keep one of them",
    ),
    "a kind that is none": (
        GOOD + "kind: ablaton\n",
        "e.yaml: kind: there is no kind of experiment 'ablaton'; did you mean 'ablation'?",
    ),
    "a change of a flag that is none": (
        ABLATION.replace("max_num_seqs", "max-num-seq"),
        "e.yaml: changes.max-num-seq: unknown to vLLM 0.32; did you mean 'max-num-seqs'?",
    ),
    "a change to what it is anyway": (
        ABLATION.replace("64}", "1024}"),
        (
            "h100-llama-8b-baseline and h100-llama-8b-baseline_max-num-seqs-1024 resolve to the same engine: there is "
            "nothing to compare; change a flag that has an effect on this device (python -m vllm_launch diff shows it)"
        ),
    ),
    "changes twice over": (
        ABLATION + "candidate: h100-llama-8b-tuned\n",
        "e.yaml:1: the file: give either 'changes' (flag: value) or a 'candidate' whose differences are the changes",
    ),
    "a sweep under two kinds of load": (
        SWEEP.replace("{request-rate", "{users: [3], request-rate"),
        "e.yaml:5: load: give a list of either 'users' (closed loop) or 'request-rate' (open loop)",
    ),
    "a value that a flag does not take": (
        SWEEP.replace("[64, 1024]", "[64, many]"),
        ("e.yaml: flags.max-num-seqs: takes a whole number, got 'many'; mend that value"),
    ),
    "a flag of a server that runs already": (
        SWEEP.replace("simulated", "attach"),
        (
            "e.yaml: max-num-seqs cannot be changed on a server that runs already; use an engine that is launched, or "
            "leave the flags out"
        ),
    ),
    "an objective that is none": (
        SWEEP + "slo: ttft_p95<1\n",
        "e.yaml:8: slo: 'ttft_p95<1' names no unit; write ttft_p95<1ms or ttft_p95<1s",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_refused_in_one_line_before_anything_starts(tmp_path: Path, case: str) -> None:
    text, line = MISTAKES[case]
    (tmp_path / "e.yaml").write_text(text)
    (tmp_path / "same.yaml").write_text("extends: h100-llama-8b-baseline\nargs:\n  max-num-seqs: 1024\n")
    (tmp_path / "b200.yaml").write_text("extends: h100-llama-8b-baseline\ndevice: b200\n")
    ended = launch("experiment", "e.yaml", "--results", "results", cwd=tmp_path, env={"TAILGATE_VLLM_PYTHON": ""})
    assert (ended.code, ended.out, ended.err) == (2, "", f"vllm_launch: {line}\n")
    assert not (tmp_path / "results").exists()


def test_an_unknown_experiment_names_the_nearest() -> None:
    ended = launch("experiment", "demo-vlm")
    assert (ended.code, ended.err) == (
        2,
        "vllm_launch: there is no experiment 'demo-vlm'; did you mean 'demo-vllm'?\n",
    )


def test_the_plan_says_what_would_run_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(GOOD + "rounds: 2\norder: AB\nseed: 5\n")
    ended = launch("experiment", "e.yaml", "--dry-run", "--results", "results", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "experiment e on the simulated engine (SIMULATED: no real hardware is measured)\n"
        "  load      chat-short, 4 users\n"
        "  legs      1-A1 h100-llama-8b-baseline, 2-B1 h100-llama-8b-tuned, 3-A2 h100-llama-8b-baseline, "
        "4-B2 h100-llama-8b-tuned\n"
        "  changes   max-num-batched-tokens: 8192 -> 1024\n"
        "  judged    ttft_p95, itl_p95 (margin 5%)\n"
        "  takes     about 396 s\n"
    )
    planned = launch("experiment", "e.yaml", "--dry-run", "--json", cwd=tmp_path).json
    assert [(leg["name"], leg["seed"]) for leg in planned["legs"]] == [
        *[("1-A1", 5), ("2-B1", 5)],
        *[("3-A2", 6), ("4-B2", 6)],
    ]
    assert planned["simulated"] is True
    assert not (tmp_path / "results").exists()


def test_two_sides_can_be_held_to_thresholds(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(GOOD + "gate: [itl_p95, ttft_p99<1s, throughput_drop<20%]\n")
    ended = launch("experiment", "e.yaml", "--dry-run", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert "judged    itl_p95, ttft_p99<1s, throughput_drop<20% (margin 5%)\n" in ended.out


def test_repeats_of_both_sides_see_the_same_requests_in_interleaved_order(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(GOOD)
    legs = load_experiment(str(tmp_path / "e.yaml")).legs
    assert "".join(leg.side for leg in legs) == "ABBA"
    seeds = {side: [leg.seed for leg in legs if leg.side == side] for side in "AB"}
    assert seeds["A"] == seeds["B"] == [1, 2]


def test_files_named_in_an_experiment_lie_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: h100-llama-8b-baseline\nargs:\n  max-num-seqs: 4\n")
    (tmp_path / "load.yaml").write_text("name: load\nclasses:\n  a: {input-tokens: 8, output-tokens: 4}\n")
    text = GOOD.replace("h100-llama-8b-tuned", "mine.yaml").replace("chat-short", "load.yaml")
    (tmp_path / "e.yaml").write_text(text)
    experiment = load_experiment(str(tmp_path / "e.yaml"))
    assert experiment.arms[1].config.args == {"max-num-seqs": 4}
    assert experiment.workload == str(tmp_path / "load.yaml")


def test_an_ablation_runs_each_change_alone_then_all_there_and_back(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(ABLATION)
    experiment = load_experiment(str(tmp_path / "e.yaml"))
    legs = experiment.legs
    order = ["baseline", "max-num-batched-tokens", "max-num-seqs", "all-together"]
    assert [leg.side for leg in legs] == [*order, *reversed(order)]
    assert [leg.seed for leg in legs] == [1] * 4 + [2] * 4
    assert len({leg.name for leg in legs}) == 8
    args = {arm.name: dict(arm.config.args) for arm in experiment.arms}
    tokens, seqs = {"max-num-batched-tokens": 1000}, {"max-num-seqs": 64}
    assert [args[name] for name in order] == [{}, tokens, seqs, tokens | seqs]


def test_the_changes_of_an_ablation_can_be_a_candidates(tmp_path: Path) -> None:
    text = ABLATION.replace("changes: {max-num-batched-tokens: 1k, max_num_seqs: 64}", "candidate: h100-llama-8b-tuned")
    (tmp_path / "e.yaml").write_text(text)
    arms = load_experiment(str(tmp_path / "e.yaml")).arms
    assert [arm.name for arm in arms] == ["baseline", "max-num-batched-tokens"], "with one change there is no together"
    assert arms[1].changes == {"max-num-batched-tokens": 1024}


def test_a_sweep_is_every_combination_under_every_load(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(SWEEP)
    legs = load_experiment(str(tmp_path / "e.yaml")).legs
    points = [(leg.config.args["max-num-seqs"], leg.config.args["stream-interval"], leg.request_rate) for leg in legs]
    assert points == [(seqs, every, rate) for seqs in (64, 1024) for every in (1, 4) for rate in (2, 0.5)]
    assert len({leg.name for leg in legs}) == 8


def test_a_plan_on_a_real_gpu_tells_what_its_time_costs(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(SWEEP.replace("engine: simulated", "engine: vllm") + "gpu-hour-price: 3\n")
    planned = plan(load_experiment(str(tmp_path / "e.yaml")))
    assert planned["gpu_dollars"] == pytest.approx(3 * planned["expected_s"] / 3600)


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90.0), (90, 90.0), ("90s", 90.0), ("1m30s", 90.0), ("2h", 7200.0), ("0.5s", 0.5)]
)
def test_durations(text: str | float, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "-3", "3 parsecs", "1m-2s"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        seconds(text)
