"""What an engine runs with is read from its own words: the log, the pages, the API."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

from tests.vllm_launch.pages import answering
from vllm_launch.config import load_config
from vllm_launch.engine import in_effect
from vllm_launch.flags import flag_list

# As vLLM 0.32 writes them (the middle of the long line left out).
LOG = """\
(APIServer pid=7) INFO 11-29 19:49:27 [api_utils.py:286] non-default args: {'host': '127.0.0.1', 'port': 26646, \
'model': '/m', 'dtype': 'float32', 'max_model_len': 4096, 'served_model_name': ['tiny'], 'max_num_batched_tokens': 300}
(APIServer pid=7) INFO 11-29 19:49:27 [scheduler.py:307] Chunked prefill is enabled with max_num_batched_tokens=256.
(EngineCore pid=9) INFO 11-29 19:49:41 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: \
model='/m', speculative_config=None, dtype=torch.float32, max_seq_len=4096, load_format=dummy, tensor_parallel_size=2, \
quantization=None, enforce_eager=True, seed=0, aux=Aux(a=1), enable_prefix_caching=True
(EngineCore pid=9) INFO 11-29 19:49:43 [kv_cache_utils.py:2327] CPU KV cache size: 1,048,576 tokens, \
Maximum concurrency for 4,096 tokens per request: 256.00x
"""
PAGE = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="auto",enable_prefix_caching="True",engine="0",\
gpu_memory_utilization="0.92",kv_cache_size_tokens="1048576",\
num_gpu_blocks="8192",num_cpu_blocks="None"} 1.0
"""
INFO = {
    "vllm_config": {
        "model_config": {"model": "/m", "dtype": "torch.float32", "hf_token": "hf_secret", "served_model_name": "t"},
        "scheduler_config": {"max_num_seqs": 128, "policy": "fcfs", "max_num_batched_tokens": 200},
        "parallel_config": {"tensor_parallel_size": 2, "data_parallel_rpc_port": 29550, "master_port": 1},
        "cache_config": {"cache_dtype": "fp8"},
    },
    "vllm_env": {"HF_TOKEN": "hf_secret"},
}


def telling(pages: dict[str, str]) -> AbstractContextManager[str]:
    """A server that has these pages and no others."""
    return answering(lambda path: (200, pages[path]) if path in pages else (404, ""))


def test_the_start_up_log_tells_settings_version_and_cache() -> None:
    effective, kv, version = in_effect.read_log(LOG, flag_list("0.32"))
    assert version == "0.32.0"
    assert kv == {"tokens": 1048576.0, "max_concurrency": 256.0}
    assert effective == {
        "dtype": "float32",
        "max-model-len": 4096,
        "max-num-batched-tokens": 256,
        "load-format": "dummy",
        "tensor-parallel-size": 2,
        "enforce-eager": True,
        "seed": 0,
        "enable-prefix-caching": True,
    }, "what was resolved beats what was asked; ports, paths and names are left out"


def test_what_the_engine_answers_beats_its_log_and_no_secret_is_kept(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    pages = {"/server_info?config_format=json": json.dumps(INFO), "/metrics": PAGE}
    with telling({**pages, "/v1/models": '{"data": [{"id": "t", "max_model_len": 4000}]}'}) as url:
        said = in_effect.read(url, tmp_path / "log", load_config("cpu-tiny-baseline"), "vllm")
    assert said.sources == ("log", "/v1/models", "vllm:cache_config_info", "/server_info")
    assert said.effective["max-num-batched-tokens"] == 200
    assert said.effective["max-model-len"] == 4000
    assert said.effective["max-num-seqs"] == 128
    assert said.effective["kv-cache-dtype"] == "fp8"
    assert said.effective["scheduling-policy"] == "fcfs"
    assert said.effective["gpu-memory-utilization"] == 0.92
    assert said.effective["enable-prefix-caching"] is True
    assert said.kv_cache == {"tokens": 1048576.0, "max_concurrency": 256.0, "blocks": 8192.0, "block_tokens": 128.0}
    assert "hf_secret" not in repr(said)
    assert not [name for name in said.effective if "port" in name or "model-name" in name]


def test_a_server_that_tells_nothing_is_no_failure() -> None:
    with telling({}) as url:
        said = in_effect.read(url, None, load_config(url), "attach")
    assert (dict(said.effective), dict(said.kv_cache), said.sources) == ({}, {}, ())


def test_sglang_tells_its_arguments() -> None:
    told = {"mem_fraction_static": 0.88, "max_total_num_tokens": 123, "api_key": "s", "model_path": "/m", "tp_size": 2}
    with telling({"/get_server_info": json.dumps(told)}) as url:
        said = in_effect.read(url, None, load_config(url), "attach")
    assert said.effective["mem-fraction-static"] == 0.88
    assert said.kv_cache == {"tokens": 123.0}
    assert "api-key" not in said.effective
