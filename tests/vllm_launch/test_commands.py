"""check, show and diff: what a config really runs, and what it really changes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.vllm_launch.commands import launch
from vllm_launch import effect
from vllm_launch.config import LaunchConfig, load_config, names


def config(tmp_path: Path, text: str, name: str = "c") -> LaunchConfig:
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    return load_config(str(path))


def h100(**flags: object) -> str:
    lines = "".join(f"  {name.replace('_', '-')}: {value}\n" for name, value in flags.items())
    return f"extends: h100-llama-8b-baseline\nargs:\n{lines}"


@pytest.mark.parametrize("name", names())
def test_every_config_that_comes_along_is_sound_and_has_a_reason_for_each_flag(name: str) -> None:
    loaded = load_config(name)
    effect.effective(loaded)
    assert effect.without_effect(loaded) == []
    for flag in loaded.args:
        assert "Cost - " in loaded.notes[flag], f"{flag} does not say what it costs"


def test_check_says_ok_and_what_has_no_effect(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(h100(max_num_batched_tokens="8K", enable_prefix_caching="true", max_num_seqs=64))
    ended = launch("check", "c.yaml", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "c: ok for vLLM 0.32 (by the recorded flags of vLLM 0.32)\n"
        "  sets max-num-batched-tokens to 8192, which is the default on this device: no effect\n"
        "  sets enable-prefix-caching to on, which is the default on this device: no effect\n"
    )
    as_json = launch("check", "c.yaml", "--json", cwd=tmp_path).json
    assert as_json["ok"] is True
    assert len(as_json["no_effect"]) == 2


def test_the_same_value_has_an_effect_on_one_device_and_none_on_another(tmp_path: Path) -> None:
    on_h100 = config(tmp_path, h100(max_num_batched_tokens=8192))
    on_a100 = config(tmp_path, h100(max_num_batched_tokens=8192) + "device: a100-sxm\n")
    assert effect.from_defaults(on_h100) == []
    assert [(d.flag, d.before, d.after) for d in effect.from_defaults(on_a100)] == [
        ("max-num-batched-tokens", 2048, 8192)
    ]


def test_what_a_device_never_does_has_no_effect(tmp_path: Path) -> None:
    on_cpu = config(tmp_path, "model: m\ndevice: cpu\nargs: {async-scheduling: true}\n")
    assert effect.effective(on_cpu)["async-scheduling"] is False
    assert effect.without_effect(on_cpu) == [
        "sets async-scheduling to on, which vLLM never does on this device: no effect"
    ]


def test_show_prints_a_command_a_shell_can_run_and_hides_secrets(tmp_path: Path) -> None:
    text = h100(max_num_seqs=64, enable_prefix_caching="false", speculative_config='{method: ngram, "n": 2}')
    (tmp_path / "c.yaml").write_text(
        text + "env:\n  VLLM_LOGGING_LEVEL: INFO\n  HF_TOKEN: hf_s3cr3t\n  OMP_NUM_THREADS: 1\n"
    )
    ended = launch("show", "c.yaml", cwd=tmp_path)
    assert ended.code == 0
    assert "s3cr3t" not in ended.out
    words = shlex.split(ended.out.partition("\n\nagainst")[0].replace("\\\n", ""))
    assert words[:4] == ["VLLM_NO_USAGE_STATS=1", "VLLM_LOGGING_LEVEL=INFO", "HF_TOKEN=(hidden)", "OMP_NUM_THREADS=1"]
    assert words[5:] == [
        *("-m", "vllm.entrypoints.openai.api_server", "--model", "meta-llama/Llama-3.1-8B-Instruct"),
        *("--host", "127.0.0.1", "--port", "8000", "--max-num-seqs", "64", "--no-enable-prefix-caching"),
        *("--speculative-config", '{"method": "ngram", "n": 2}'),
    ]
    assert "against the defaults on h100-sxm:\n" in ended.out
    assert "  max-num-seqs: 1024 -> 64\n" in ended.out
    as_json = launch("show", "c.yaml", "--json", cwd=tmp_path).json
    assert as_json["argv"] == words[4:]
    assert as_json["env"]["HF_TOKEN"] == "(hidden)"


def test_diff_shows_what_differs_and_says_where_nothing_does(tmp_path: Path) -> None:
    (tmp_path / "same.yaml").write_text(h100(max_num_batched_tokens=8192))
    ended = launch("diff", "h100-llama-8b-baseline", "same.yaml", cwd=tmp_path)
    assert ended.code == 0
    assert ended.out == (
        "h100-llama-8b-baseline -> same:\n"
        "  no difference in effect\n"
        "\n"
        "h100-llama-8b-baseline against the defaults on h100-sxm:\n"
        "  no difference in effect\n"
        "\n"
        "same against the defaults on h100-sxm:\n"
        "  no difference in effect\n"
        "  sets max-num-batched-tokens to 8192, which is the default on this device: no effect\n"
    )
    as_json = launch("diff", "h100-llama-8b-baseline", "h100-llama-8b-tuned", "--json").json
    assert [(d["flag"], d["before"], d["after"]) for d in as_json["between"]] == [
        ("max-num-batched-tokens", 8192, 1024)
    ]


def test_a_flag_that_moves_another_is_seen_to(tmp_path: Path) -> None:
    base = load_config("h100-llama-8b-baseline")
    small = config(tmp_path, h100(max_num_batched_tokens=512))
    assert [(d.flag, d.before, d.after, d.note) for d in effect.differences(base, small)] == [
        ("max-num-batched-tokens", 8192, 512, ""),
        ("max-num-seqs", 1024, 512, "not set: vLLM lowers it to max-num-batched-tokens"),
    ]


def test_null_takes_a_flag_back_to_the_default(tmp_path: Path) -> None:
    back = config(tmp_path, "extends: h100-llama-8b-tuned\nargs:\n  max-num-batched-tokens: null\n")
    assert effect.differences(load_config("h100-llama-8b-baseline"), back) == []


def test_env_is_part_of_the_difference_and_secrets_in_it_are_hidden(tmp_path: Path) -> None:
    a = config(tmp_path, "extends: h100-llama-8b-baseline\nenv:\n  HF_TOKEN: one\n  VLLM_X: 1\n", "a")
    b = config(tmp_path, "extends: h100-llama-8b-baseline\nenv:\n  HF_TOKEN: two\n  VLLM_X: 2\n", "b")
    assert [(d.flag, d.before, d.after) for d in effect.differences(a, b)] == [
        ("env HF_TOKEN", "(hidden)", "(hidden)"),
        ("env VLLM_X", "1", "2"),
    ]


def test_spellings_of_one_flag_are_one_flag(tmp_path: Path) -> None:
    a = config(tmp_path, h100(max_model_len="4k"), "a")
    b = config(tmp_path, "extends: h100-llama-8b-baseline\nargs:\n  max_model_len: 4000\n", "b")
    assert a.args == b.args == {"max-model-len": 4000}
