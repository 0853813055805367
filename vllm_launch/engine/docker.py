"""The `docker run` that serves a launch config, and how its container is surely removed.

The container ends with the command where that gets a signal it can pass on; whatever happened, `removal` is run after.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailgate.exits import BadInput

# Port and caches inside vLLM's images (`vllm/vllm-openai`, entry point `vllm serve`).
_PORT = 8000
_HF_CACHE = "/root/.cache/huggingface"
_INHERITED = ("HF_TOKEN", "VLLM_API_KEY")


@dataclass(frozen=True)
class Container:
    """How the engine is put into a container. `gpus` is `all`, `none`, or device numbers such as `0,1`."""

    image: str
    gpus: str = "all"
    shm_size: str = "16g"
    mounts: Sequence[str] = ()


def run_argv(
    container: Container,
    model: str,
    flags: Sequence[str],
    env: Mapping[str, str],
    *,
    secrets: Sequence[str],
    host: str,
    port: int,
    name: str,
) -> list[str]:
    """`docker run` for vLLM's image; `flags` go to vLLM itself, `env` into the container.

    `secrets` are variables that docker takes from its own environment, so that no value stands on a command line.

    A model that is a folder here is mounted, read-only, at its own path; other models come from the host's Hugging Face
    cache. `--shm-size` is for the workers of a tensor-parallel engine, which talk over shared memory.
    """
    argv = ["docker", "run", "--rm", "--name", name, "--label", "tailgate"]
    if container.gpus != "none":
        argv += ["--gpus", "all" if container.gpus == "all" else f'"device={container.gpus}"']
    argv += ["--shm-size", container.shm_size, "-p", f"{host}:{port}:{_PORT}"]
    argv += ["-v", f"{_hf_home()}:{_HF_CACHE}"]
    if Path(model).is_dir():
        model = str(Path(model).resolve())
        argv += ["-v", f"{model}:{model}:ro"]
    for mount in container.mounts:
        argv += ["-v", mount]
    for variable in (*(name for name in _INHERITED if os.environ.get(name)), *secrets):
        argv += ["-e", variable]
    for variable, value in env.items():
        argv += ["-e", f"{variable}={value}"]
    return [*argv, container.image, "--model", model, "--host", "0.0.0.0", "--port", str(_PORT), *flags]


def removal_argv(name: str) -> list[str]:
    """Ends and removes the container, whatever state it is in; does nothing where it is gone."""
    return ["docker", "rm", "--force", name]


def container_name(port: int) -> str:
    """A name that no other container has."""
    return f"tailgate-{port}-{uuid.uuid4().hex[:8]}"


def require_docker() -> None:
    """Raises `BadInput` where there is no `docker` command."""
    if shutil.which("docker") is None:
        raise BadInput("there is no `docker` command on this machine", "install Docker, or use --engine vllm")


def _hf_home() -> str:
    return os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
