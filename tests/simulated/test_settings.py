"""Launch flags become what vLLM would make of them, and nothing is ignored in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailgate.exits import BadInput
from vllm_launch.simulated.calibration import FITTED, OVERHEAD_VARIABLE
from vllm_launch.simulated.settings import EngineSettings

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def read(flags: dict[str, object] | None = None, model: str = LLAMA, device: str = "h100-sxm") -> EngineSettings:
    return EngineSettings.from_flags(model, device, flags or {})[0]


@pytest.mark.parametrize(
    ("device", "tokens", "seqs"), [("h100-sxm", 8192, 1024), ("h200", 8192, 1024), ("a100", 2048, 256)]
)
def test_defaults_are_vllms_for_the_device(device: str, tokens: int, seqs: int) -> None:
    settings = read(device=device)
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (tokens, seqs)
    assert settings.limits.max_num_scheduled_tokens == tokens
    assert settings.limits.enable_chunked_prefill
    assert settings.prefix_caching
    assert (settings.block_size, settings.gpu_memory_utilization) == (16, 0.92)
    assert (settings.limits.max_model_len, settings.stream_interval) == (131072, 1)


def test_flags_are_obeyed() -> None:
    flags = {"max-num-seqs": "64", "max-num-batched-tokens": "2k", "enable-prefix-caching": False}
    settings = read({**flags, "scheduling-policy": "priority", "max-model-len": "8K", "max-num-queued-reqs": 9})
    assert (settings.max_num_seqs, settings.max_num_batched_tokens, settings.prefix_caching) == (64, 2000, False)
    assert settings.limits.priority_policy
    assert settings.limits.max_model_len == 8192
    assert settings.max_num_queued_reqs == 9
    assert not read({"no-enable-prefix-caching": True}).prefix_caching


def test_the_cache_grows_with_memory_and_shrinks_with_utilization() -> None:
    assert (
        read(device="h200-sxm").kv_blocks
        > 1.8 * read().kv_blocks
        > 1.8 * read({"gpu-memory-utilization": 0.8}).kv_blocks
    )
    assert read({"kv-cache-dtype": "fp8"}).kv_blocks == pytest.approx(2 * read().kv_blocks, rel=0.001)
    assert read({"num-gpu-blocks-override": 9000}).kv_blocks == 9000
    # 79 GiB of which 92 % may be used, less 16 GB of weights, at 128 KiB a token: between 400 and 460 thousand tokens.
    assert 400_000 < read().kv_blocks * 16 < 460_000


def test_a_flag_that_is_not_modelled_is_noted() -> None:
    _, notes = EngineSettings.from_flags(
        LLAMA, "h100", {"enforce-eager": True, "async-scheduling": True, "dtype": "auto"}
    )
    assert [note.split(":")[0] for note in notes] == ["async-scheduling", "enforce-eager"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max-num-batched-tokens": 256}, "max-num-batched-tokens.*max-num-seqs"),
        ({"enable-chunked-prefill": False}, "chunked prefill is off"),
        ({"num-gpu-blocks-override": 100}, "does not fit into the KV cache"),
        ({"max-model-len": 200_000}, "131072"),
        ({"max-num-seqs": "many"}, "whole number"),
        ({"gpu-memory-utilization": 1.2}, "not a share"),
        ({"gpu-memory-utilization": 0.1}, "no memory is left"),
        ({"scheduling-policy": "lifo"}, "fcfs or priority"),
        ({"tensor-parallel-size": 8}, "set tensor-parallel-size: 1"),
    ],
)
def test_what_vllm_refuses_at_start_is_refused_in_one_line(flags: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        read(flags)
    assert "\n" not in str(caught.value)


def test_models_and_devices_without_a_table_are_refused_with_the_mend() -> None:
    with pytest.raises(BadInput, match="did you mean 'Qwen/Qwen3-32B'"):
        read(model="Qwen/Qwen3-23B")
    with pytest.raises(BadInput, match="h100-sxm, h200-sxm, a100-sxm"):
        read(device="b200")
    with pytest.raises(BadInput, match="tensor-parallel-size: 2"):
        read(model="Qwen/Qwen3-32B")


def test_a_users_own_overhead_is_used_where_the_environment_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read().overhead == FITTED
    file = tmp_path / "overhead.json"
    file.write_text(json.dumps({"per_step_s": 0.5, "per_sequence_s": 0.25, "per_request_s": 0.125}))
    monkeypatch.setenv(OVERHEAD_VARIABLE, str(file))
    assert read().overhead.per_step_s == 0.5
    file.write_text("{}")
    with pytest.raises(BadInput, match="calibrate RUN"):
        read()
