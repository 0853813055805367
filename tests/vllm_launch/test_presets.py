"""The configs that come along: every device and model, memory that suffices, and goals that do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.presets import RATES, full_tokens_per_s, gap_p99_s, mixed, settings, short_ttft_p95_s
from tailgate.exits import BadInput
from tests.support.require import need
from tests.vllm_launch.commands import launch
from vllm_launch import cpu_vllm, real_parser
from vllm_launch.config import GOALS, LaunchConfig, load_config, names
from vllm_launch.devices import DEVICES
from vllm_launch.flags import versions
from vllm_launch.simulated.virtual import open_loop

BASES = [name for name in names() if name.endswith("-baseline") and "tiny" not in name]
# GB of weights, from the files that each repository lists; kB of KV cache a token (16 bits); tokens the model knows.
MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": (16.1, 131, 131072),
    "meta-llama/Llama-3.1-70B-Instruct": (141.1, 328, 131072),
    "nvidia/Llama-3.3-70B-Instruct-FP8": (72.7, 328, 131072),
    "Qwen/Qwen3-32B": (65.5, 262, 40960),
    "Qwen/Qwen3-30B-A3B": (61.1, 98, 40960),
}


def test_every_device_and_model_has_its_baseline() -> None:
    loaded = [load_config(name) for name in BASES]
    assert {config.device for config in loaded} == DEVICES.keys() - {"b200"}
    assert {config.model for config in loaded} == MODELS.keys()
    assert len({config.args.get("tensor-parallel-size", 1) for config in loaded}) > 2


@pytest.mark.parametrize("name", BASES)
def test_the_model_fits_and_a_whole_context_with_it(name: str) -> None:
    config = load_config(name)
    memory = DEVICES[config.device].memory_gb
    if memory is None:
        return
    weights, kv_kb, longest = MODELS[config.model]
    devices = config.args.get("tensor-parallel-size", 1)
    # vLLM wants room for one request of full length; 3 GB a device go to activations, graphs and the context.
    left = devices * (memory * 0.97 * 0.92 - 3.0) - weights
    assert left * 1e6 > config.args.get("max-model-len", longest) * kv_kb


@pytest.mark.parametrize("name", BASES)
def test_a_baseline_sets_nothing_but_what_makes_it_fit(name: str) -> None:
    config = load_config(name)
    assert config.args.keys() <= {"tensor-parallel-size", "max-model-len", "dtype"}


@pytest.mark.parametrize("version", versions())
def test_presets_hold_for_every_recorded_version(version: str) -> None:
    for name in names():
        load_config(name, version=version)


def test_a_goal_is_laid_over_any_config(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("about: Mine\nextends: l40s-llama-8b-baseline\nargs: {max-model-len: 4096}\n")
    config = load_config(f"{tmp_path}/mine.yaml:low-itl")
    assert (config.name, config.about) == ("mine-low-itl", "Mine: smooth streams while long prompts come in")
    assert config.args == {"max-model-len": 4096, "max-num-batched-tokens": 512, "max-num-seqs": 64}
    assert load_config(str(config.path)).args == config.args
    (tmp_path / "child.yaml").write_text("extends: mine.yaml:low-itl\nargs: {max-num-seqs: 8}\n")
    assert load_config(f"{tmp_path}/child.yaml").args["max-num-batched-tokens"] == 512
    with pytest.raises(BadInput, match=r"mine.yaml: there is no goal 'fast'; known: low-ttft"):
        load_config(f"{tmp_path}/mine.yaml:fast")


def test_list_names_them_all() -> None:
    ended = launch("list", "--json")
    assert [one["name"] for one in ended.json] == names()
    assert set(GOALS) == {goal for goal in GOALS if f"t4-llama-8b-{goal}" in names()}


def test_the_embedded_engine_refuses_what_it_has_no_table_for() -> None:
    for name, what in (
        ("l40s-llama-8b-baseline", "device 'l40s'"),
        ("h100-qwen3-30b-a3b-low-itl", "model 'Qwen/Qwen3-30B"),
    ):
        ended = launch("serve", name, "--engine", "simulated")
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert f"the embedded engine has no measured step times for the {what}" in ended.err


@pytest.mark.parametrize("base", RATES)
def test_goals_reach_what_they_are_named_for_on_the_embedded_engine(base: str) -> None:
    load = {
        goal: open_loop(settings(f"{base}-{goal}"), mixed(RATES[base], 600), keep_tokens=True).served
        for goal in ("baseline", *GOALS)
    }
    assert gap_p99_s(load["low-itl"]) < gap_p99_s(load["baseline"]) / 2
    assert short_ttft_p95_s(load["low-ttft"]) < short_ttft_p95_s(load["baseline"]) / 1.5
    assert full_tokens_per_s(f"{base}-high-throughput") > full_tokens_per_s(f"{base}-baseline")


@pytest.mark.vllm
def test_the_real_parser_takes_every_preset() -> None:
    need(cpu_vllm.ready(), "real vLLM on CPU (python -m vllm_launch.cpu_vllm)")
    configs = [load_config(name) for name in names()]
    answer = real_parser.ask(str(cpu_vllm.PYTHON), configs)
    assert [(config.name, said) for config, said in zip(configs, answer.complaints, strict=True) if said] == []
    broken = LaunchConfig(**{**configs[0].__dict__, "args": {"max-num-seqs": "many"}})
    said = real_parser.ask(str(cpu_vllm.PYTHON), [broken]).complaints[0] or ""
    assert "argument --max-num-seqs: invalid" in said
