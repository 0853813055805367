"""What run.json keeps of a launch: the config, its command, and what the engine itself says it runs with."""

from __future__ import annotations

from typing import Any

from vllm_launch import effect
from vllm_launch.config import LaunchConfig
from vllm_launch.engine.commands import command, visible_gpus
from vllm_launch.engine.gpus import Gpus
from vllm_launch.engine.launch import RunningEngine


def launch_facts(config: LaunchConfig, engine: str, running: RunningEngine) -> dict[str, Any]:
    """Under `launch` in run.json. No secret is in it.

    `effective` (by flag), `kv_cache`, `read_from` and `said_version` are the engine's own words; `diff` and `no_effect`
    what the config should come to; `warm_up` what it took until latency settled; `prefix_cache` how it began.
    """
    argv = [] if engine == "attach" else command(config, engine, host="127.0.0.1", port=0).argv[1:]
    said = running.config
    return {
        "name": config.name,
        "about": config.about,
        "engine": engine,
        "model": config.model or running.model,
        "device": config.device,
        "gpus": _gpus(visible_gpus(config, engine)) if engine in ("vllm", "docker") else [],
        "url": running.url if engine == "attach" else None,
        "vllm": config.version,
        "args": dict(config.args),
        "env": config.public_env(),
        "argv": argv,
        "diff": {d.flag: {"default": d.before, "value": d.after, "note": d.note} for d in effect.from_defaults(config)},
        "no_effect": effect.without_effect(config),
        "started_in_s": round(running.started_in_s, 3),
        "said_version": running.version or ({"version": said.version} if said.version else {}),
        "effective": dict(said.effective),
        "kv_cache": dict(said.kv_cache),
        "cache_config": dict(said.cache_config),
        "read_from": list(said.sources),
        "warm_up": running.warm_up.to_dict() if running.warm_up else None,
        "prefix_cache": running.prefix_cache,
    }


def _gpus(visible: str | None) -> list[str]:
    """The names of the devices that the engine sees."""
    with Gpus(visible) as gpus:
        return [gpu.name for gpu in gpus.devices]
