"""The models and devices the embedded engine has measured tables for, with the figures memory sizing needs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from tailgate.exits import BadInput

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Model:
    """A dense decoder in bfloat16; the figures are those of its published `config.json`."""

    key: str
    name: str
    aliases: tuple[str, ...]
    parameters: float
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocabulary: int
    max_model_len: int

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Keys and values of one token in all layers, over all GPUs."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_value


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: the memory PyTorch sees (GiB) and the API server's defaults of vLLM 0.32 for it."""

    key: str
    name: str
    memory_gib: float
    max_num_batched_tokens: int
    max_num_seqs: int


MODELS = (
    Model(
        "llama-3.1-8b",
        "meta-llama/Llama-3.1-8B-Instruct",
        ("meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        8.03e9,
        layers=32,
        kv_heads=8,
        head_dim=128,
        hidden=4096,
        intermediate=14336,
        vocabulary=128256,
        max_model_len=131072,
    ),
    Model(
        "llama-3.1-70b",
        "meta-llama/Llama-3.1-70B-Instruct",
        ("meta-llama/Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B-Instruct"),
        70.55e9,
        layers=80,
        kv_heads=8,
        head_dim=128,
        hidden=8192,
        intermediate=28672,
        vocabulary=128256,
        max_model_len=131072,
    ),
    Model(
        "qwen3-32b",
        "Qwen/Qwen3-32B",
        (),
        32.76e9,
        layers=64,
        kv_heads=8,
        head_dim=128,
        hidden=5120,
        intermediate=25600,
        vocabulary=151936,
        max_model_len=40960,
    ),
)

DEVICES = (
    Device("h100-sxm", "NVIDIA H100 80GB HBM3", 79.19, 8192, 1024),
    Device("h200-sxm", "NVIDIA H200", 139.80, 8192, 1024),
    Device("a100-sxm", "NVIDIA A100-SXM4-80GB", 79.25, 2048, 256),
)


def find_model(name: str) -> Model:
    """The model of this name, whatever its case or organisation; `BadInput` where there is no table for it."""
    wanted = name.lower()
    for model in MODELS:
        known = {model.key, model.name.lower(), *(alias.lower() for alias in model.aliases)}
        if wanted in known or wanted in {entry.rsplit("/", 1)[-1] for entry in known}:
            return model
    names = [model.name for model in MODELS]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    mend = f"did you mean '{close[0]}'?" if close else f"it can stand in for {', '.join(names)}"
    raise BadInput(f"the embedded engine has no measured step times for the model '{name}'", mend)


def find_device(name: str) -> Device:
    """The device of this name; `BadInput` where there is no table for it."""
    wanted = name.lower().replace("_", "-").replace("nvidia-", "")
    for device in DEVICES:
        if wanted in (device.key, device.key.removesuffix("-sxm")):
            return device
    raise BadInput(
        f"the embedded engine has no measured step times for the device '{name}'",
        f"use one of {', '.join(device.key for device in DEVICES)}, or launch real vLLM on it",
    )
