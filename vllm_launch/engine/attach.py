"""A server that runs already: what it says of itself, and its metrics written on until told to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailgate.exits import BadInput
from vllm_launch.config import LaunchConfig
from vllm_launch.engine import api
from vllm_launch.engine.facts import launch_facts
from vllm_launch.engine.launch import launch
from vllm_launch.engine.metrics import Scraper, read_sample


def described(config: LaunchConfig) -> dict[str, Any]:
    """What `launch_facts` gives, and `metrics`: `missing` names or `error`. Raises `LaunchFailed` where
    nothing serves at the config's address.
    """
    with launch(config, "attach", log=None, warm=False) as running:
        facts = launch_facts(config, "attach", running)
        try:
            sample = read_sample(api.ask(running.url, "/metrics"), time.time_ns())
        except (api.EngineUnreachable, ValueError) as error:
            return {**facts, "metrics": {"error": str(error)}}
        return {**facts, "metrics": {"missing": sample.get("missing", []), "told": len(sample) > 2}}


def described_text(facts: dict[str, Any]) -> str:
    """The same for a person."""
    version = facts["said_version"].get("version")
    engine = facts["said_version"].get("engine") or ("vLLM" if version else "an engine that tells no version")
    simulated = " (SIMULATED: no real hardware is measured)" if facts["said_version"].get("simulated") else ""
    lines = [f"{facts['url']} serves {facts['model']}, {engine}{' ' + version if version else ''}{simulated}"]
    if kv := facts["kv_cache"]:
        lines.append("KV cache: " + ", ".join(f"{key.replace('_', ' ')} {value:,.0f}" for key, value in kv.items()))
    if facts["effective"]:
        lines.append(f"in effect, as it says itself ({', '.join(facts['read_from'])}):")
        lines += [f"  {flag}: {value}" for flag, value in facts["effective"].items()]
    else:
        lines.append("it does not say which settings it runs with")
    metrics = facts["metrics"]
    if "error" in metrics:
        lines.append(f"its metrics cannot be read ({metrics['error']}): it is measured from the client alone")
    elif not metrics["told"]:
        lines.append("its metrics are neither vLLM's nor SGLang's: it is measured from the client alone")
    else:
        missing = f", but for {', '.join(metrics['missing'])}" if metrics["missing"] else ""
        lines.append(f"its metrics are known{missing}")
    return "\n".join(lines)


def observe(config: LaunchConfig, directory: Path, say: Callable[[str], None]) -> None:
    """Writes a sample a second to `directory/engine.jsonl` until interrupted."""
    assert config.url is not None
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{directory}: {error.strerror}", "name another directory with -o") from None
    path = directory / "engine.jsonl"
    with Scraper(config.url, path) as scraper:
        say(f"writing a sample a second to {path}; Ctrl-C ends it")
        try:
            while True:
                time.sleep(3600)
        except (KeyboardInterrupt, SystemExit):
            pass
    say(f"{scraper.taken} samples, {scraper.failures} of them failed")
