"""What an engine really runs with, as it says itself: settings in effect, KV-cache size, version.

Sources, best first: `/server_info` (vLLM in development mode: its whole resolved config), `vllm:cache_config_info` on
the metrics page, `/v1/models`, SGLang's `/get_server_info`, and vLLM's start-up log. Names are those of flags. The
wording of the log and the shape of the pages are vLLM 0.32's.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_launch import effect
from vllm_launch.config import LaunchConfig
from vllm_launch.engine import api
from vllm_launch.engine.metrics import read_cache_config
from vllm_launch.flags import FlagList

_CACHE_CONFIG = "vllm:cache_config_info"
# vLLM's config objects call some flags otherwise.
_RENAMED = {"cache-dtype": "kv-cache-dtype", "policy": "scheduling-policy", "max-seq-len": "max-model-len"}
# Chosen anew at each start, or none of the engine's own: they say nothing of how it serves.
_LEFT_OUT = re.compile(
    r"(^|-)(port|ip|addr|address|token|key|tokenizer|model|host|path|dir|revision|config-path)$|^served-model-name$"
    r"|^node-rank$|^headless$|^(api-server|data-parallel)-(count|rank|rpc.*)$"
)
_KV = {
    "num_gpu_blocks": "blocks",
    "block_size": "block_tokens",
    "kv_cache_size_tokens": "tokens",
    "kv_cache_max_concurrency": "max_concurrency",
    "kv_cache_memory_bytes": "bytes",
}
_LOG_KV = re.compile(r"KV cache size: ([\d,]+) tokens")
_LOG_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")
_LOG_BATCHED = re.compile(r"max_num_batched_tokens=(\d+)\.")
_LOG_GIVEN = re.compile(r"non-default args: (\{.*\})\s*$")
_LOG_ENGINE = re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\) with config: (.*)$")
_LOG_SETTING = re.compile(r"(\w+)=(None|True|False|-?[\d.]+|[\w.]+)(?=, |$)")


@dataclass(frozen=True)
class EngineConfig:
    """`effective` by flag name; `kv_cache`: blocks, block_tokens, tokens, bytes, max_concurrency, those that it told;
    `cache_config`: vLLM's own labels of its cache; `sources`: where all that was read; `version`: the log's.
    """

    effective: Mapping[str, Any] = field(default_factory=dict)
    kv_cache: Mapping[str, float] = field(default_factory=dict)
    cache_config: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    version: str | None = None


def read(url: str, log: Path | None, config: LaunchConfig, engine: str) -> EngineConfig:
    """What the engine at `url` says; `log` is its output where we have it. Never raises: what is silent is left out."""
    found: list[tuple[str, dict[str, Any]]] = []
    kv: dict[str, float] = {}
    version = None
    if engine == "simulated":
        found.append(("the launch config", effect.effective(config)))
    if log is not None and log.is_file():
        text = log.read_text(encoding="utf-8", errors="replace")
        said, kv, version = read_log(text, config.flags)
        found.append(("log", said))
    with contextlib.suppress(api.EngineUnreachable):
        longest = api.model_card(url).get("max_model_len")
        found.append(("/v1/models", {"max-model-len": longest} if isinstance(longest, int) else {}))
    cache = cache_config(url)
    if cache:
        kv |= _numbers({key: cache.get(name) for name, key in _KV.items()})
        found.append((_CACHE_CONFIG, {} if engine == "simulated" else named(cache, config.flags)))
    info = _asked(url, "/server_info?config_format=json").get("vllm_config")
    if isinstance(info, Mapping):
        sections = [section for name, section in info.items() if isinstance(section, Mapping)]
        found.append(("/server_info", {k: v for s in sections for k, v in named(s, config.flags).items()}))
    elif sglang := _asked(url, "/get_server_info"):
        found.append(("/get_server_info", _sglang(sglang)))
        kv |= _numbers({"tokens": sglang.get("max_total_num_tokens")})
    effective: dict[str, Any] = {}
    for _, part in found:
        effective |= part
    # Where nobody set it, it is what profiling found free, which differs a little at each start.
    if "kv-cache-memory-bytes" not in config.args:
        effective.pop("kv-cache-memory-bytes", None)
    sources = tuple(source for source, part in found if part)
    return EngineConfig(dict(sorted(effective.items())), kv, cache, sources, version)


def read_log(text: str, flags: FlagList) -> tuple[dict[str, Any], dict[str, float], str | None]:
    """Settings in effect, the KV cache's size and the version, from vLLM's start-up log."""
    effective: dict[str, Any] = {}
    kv: dict[str, float] = {}
    version = None
    for line in text.splitlines():
        if match := _LOG_GIVEN.search(line):
            try:
                effective |= named(ast.literal_eval(match[1]), flags)
            except (ValueError, SyntaxError):
                continue
        elif match := _LOG_ENGINE.search(line):
            version = match[1]
            effective |= named({key: _plain(value) for key, value in _LOG_SETTING.findall(match[2])}, flags)
        elif match := _LOG_BATCHED.search(line):
            effective["max-num-batched-tokens"] = int(match[1])
        if match := _LOG_KV.search(line):
            kv["tokens"] = float(match[1].replace(",", ""))
        if match := _LOG_CONCURRENCY.search(line):
            kv["max_concurrency"] = float(match[1])
    return effective, kv, version


def named(section: Mapping[str, Any], flags: FlagList) -> dict[str, Any]:
    """The entries of one of vLLM's config objects that are flags, by the flag's name; plain values only."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        name = key.replace("_", "-")
        name = _RENAMED.get(name, name)
        flag = flags.names.get(name)
        if flag is None or _LEFT_OUT.search(flag.name) or isinstance(value, dict):
            continue
        value = _plain(value) if isinstance(value, str) else value
        if value not in (None, [], ""):
            found[flag.name] = value
    return found


def cache_config(url: str) -> dict[str, str]:
    """The labels of vLLM's cache_config_info: block size, number of blocks and so on; {} where it has none."""
    try:
        return read_cache_config(api.ask(url, "/metrics"))
    except (api.EngineUnreachable, ValueError):
        return {}


def _sglang(info: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key.replace("_", "-"): value
        for key, value in info.items()
        if isinstance(value, bool | int | float | str) and not _LEFT_OUT.search(key.replace("_", "-"))
    }


def _asked(url: str, path: str) -> dict[str, Any]:
    try:
        found = json.loads(api.ask(url, path))
    except (api.EngineUnreachable, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _plain(text: str) -> Any:
    """`4096`, `True`, `torch.float32` and the like as the values they stand for."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text.removeprefix("torch.")
    return value if isinstance(value, bool | int | float | list) or value is None else text


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    kept = {}
    for key, value in found.items():
        try:
            kept[key] = float(value)
        except (TypeError, ValueError):
            continue
    return kept
