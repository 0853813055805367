"""The exact command and environment that serve a launch config, for each kind of engine."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tailgate.exits import BadInput
from vllm_launch import cpu_vllm
from vllm_launch.config import LaunchConfig, is_secret
from vllm_launch.engine import docker

LAUNCHED = ("vllm", "docker", "simulated")
"""Kinds of engine that we start; a fourth, `attach`, runs already."""


@dataclass(frozen=True)
class Command:
    """What is executed: `argv`, and `env` added to the caller's environment; `removal` is run once it has ended."""

    argv: list[str]
    env: Mapping[str, str]
    removal: Sequence[str] = ()


def command(
    config: LaunchConfig,
    engine: str,
    *,
    host: str,
    port: int,
    python: str | None = None,
    more_env: Mapping[str, str] | None = None,
) -> Command:
    """The command that serves `config`; writes nothing and starts nothing. `more_env` is what only the launcher wants.

    `python` is the interpreter of the environment vLLM is installed in (default: `TAILGATE_VLLM_PYTHON`, the suite's
    own environment for vLLM on CPU where the device is cpu, else this one).
    """
    address = ["--host", host, "--port", str(port)]
    if engine == "simulated":
        argv = [sys.executable, "-m", "vllm_launch", "serve", str(config.path.resolve()), "--engine", "simulated"]
        fitted = ["--step-times", str(config.step_times.resolve())] if config.step_times else []
        return Command([*argv, *fitted, *address], {"PYTHONPATH": _with_our_root()})
    if engine == "attach":
        raise BadInput("a server that runs already is not started by a command of ours", "use --engine vllm or docker")
    env = {"VLLM_NO_USAGE_STATS": "1", **(more_env or {}), **config.env}
    if config.model.startswith(cpu_vllm.GENERATED):
        env["HF_HUB_OFFLINE"] = "1"
    named = ["--served-model-name", config.served_model_name] if config.served_model_name else []
    flags = [*named, *config.flags.argv(config.args)]
    if engine == "docker":
        assert config.docker is not None
        container = replace(config.docker, gpus="none") if config.device == "cpu" else config.docker
        name = docker.container_name(port)
        secret = {variable: value for variable, value in env.items() if is_secret(variable)}
        plain = {variable: value for variable, value in env.items() if variable not in secret}
        argv = docker.run_argv(
            container, _model(config), flags, plain, secrets=list(secret), host=host, port=port, name=name
        )
        return Command(argv, secret, docker.removal_argv(name))
    argv = [python or vllm_python(config), "-m", "vllm.entrypoints.openai.api_server", "--model", _model(config)]
    return Command([*argv, *address, *flags], env)


def vllm_python(config: LaunchConfig) -> str:
    """The interpreter that has vLLM for this config's device, by the rules of `command`."""
    if named := os.environ.get("TAILGATE_VLLM_PYTHON"):
        return named
    if config.device == "cpu":
        return str(cpu_vllm.PYTHON)
    return sys.executable


def require_vllm(python: str, config: LaunchConfig) -> None:
    """Raises `BadInput` with the mend unless `python` can start vLLM."""
    if config.device == "cpu" and python == str(cpu_vllm.PYTHON):
        cpu_vllm.require_ready()
    elif python == sys.executable and importlib.util.find_spec("vllm") is None:
        raise BadInput(
            "vLLM is not installed in this Python environment",
            "install it, name the environment that has it with --python, or use --engine simulated "
            "(in an experiment's file, engine: simulated)",
        )
    elif not Path(python).is_file():
        raise BadInput(f"there is no Python at {python}", "name the environment that has vLLM with --python")


def require_launchable(config: LaunchConfig, engine: str, python: str | None = None) -> None:
    """Raises `BadInput` unless this machine can launch `config` on `engine` (or, for `attach`, knows where it is)."""
    if engine == "attach":
        if config.url is None:
            raise BadInput(
                f"{config.name}: does not say where the running server is",
                "add 'url: http://HOST:PORT' to it, or name a URL in its place",
            )
    elif config.attached_only:
        raise BadInput(f"{config.name}: a server that runs already is not launched", "use the engine 'attach'")
    elif engine == "docker":
        docker.require_docker()
    elif engine == "vllm":
        require_vllm(python or vllm_python(config), config)


def visible_gpus(config: LaunchConfig, engine: str) -> str | None:
    """The GPUs that an engine gets, as `gpus.Gpus` takes them; None: all that this process sees."""
    if engine == "docker" and config.docker is not None and config.docker.gpus != "all":
        return config.docker.gpus.replace("none", "")
    return config.env.get("CUDA_VISIBLE_DEVICES")


def simulated_flags(config: LaunchConfig) -> dict[str, Any]:
    """The flags as the embedded engine takes them."""
    named = {"served-model-name": config.served_model_name} if config.served_model_name else {}
    return {**named, **config.args}


def _model(config: LaunchConfig) -> str:
    if config.model.startswith(cpu_vllm.GENERATED):
        return str(cpu_vllm.model_path(config.model))
    return config.model


def _with_our_root() -> str:
    root = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return f"{root}{os.pathsep}{inherited}" if inherited else root
