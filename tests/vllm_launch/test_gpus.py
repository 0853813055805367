"""GPUs through the real nvidia-ml-py on a stand-in for NVIDIA's library, and through none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.require import need
from vllm_launch.config import load_config
from vllm_launch.engine.commands import visible_gpus
from vllm_launch.engine.gpus import Gpus

ROOT = Path(__file__).resolve().parents[2]
ASK = "import json; from vllm_launch.engine.gpus import Gpus\nwith Gpus() as gpus: print(json.dumps(gpus.sample()))"
GIB = 1 << 30


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libnvidia-ml.so.1."""
    need(shutil.which("cc") is not None, "a C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("stub_nvml.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True)
    return folder


def asked(library: Path, visible: str | None) -> dict[str, object]:
    env = {**os.environ, "LD_LIBRARY_PATH": str(library)}
    env |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_every_visible_gpu_is_sampled(library: Path) -> None:
    sample = asked(library, None)
    assert (sample["gpu_memory_used_bytes"], sample["gpu_utilisation"]) == (21 * GIB, 0.75)
    assert sample["gpu_power_w"] == 431.5, "of those that tell it"
    assert sample["gpus"] == [
        {
            "index": 0,
            "name": "NVIDIA H100 80GB HBM3",
            "memory_used_bytes": 10 * GIB,
            "memory_total_bytes": 80 * GIB,
            "power_w": 431.5,
            "utilisation": 1.0,
        },
        {
            "index": 1,
            "name": "NVIDIA H100 80GB HBM3",
            "memory_used_bytes": 11 * GIB,
            "memory_total_bytes": 80 * GIB,
            "utilisation": 0.5,
        },
    ]


@pytest.mark.parametrize("visible", ["1", "GPU-one"])
def test_only_the_engines_own_are_looked_at(library: Path, visible: str) -> None:
    sample = asked(library, visible)
    assert [gpu["index"] for gpu in sample["gpus"]] == [1]  # type: ignore[index, attr-defined]


def test_no_gpu_is_no_failure() -> None:
    with Gpus(only="") as gpus:
        assert gpus.sample() == {}


@pytest.mark.parametrize(
    ("text", "engine", "visible"),
    [
        ("docker: {gpus: '0,1'}", "docker", "0,1"),
        ("docker: {gpus: none}", "docker", ""),
        ("docker: {gpus: '0,1'}", "vllm", None),
        ("env: {CUDA_VISIBLE_DEVICES: 1}", "vllm", "1"),
        ("about: all of them", "docker", None),
    ],
)
def test_a_containers_gpus_are_those_it_was_given(tmp_path: Path, text: str, engine: str, visible: str | None) -> None:
    (tmp_path / "c.yaml").write_text(f"extends: h100-llama-8b-baseline\n{text}\n")
    assert visible_gpus(load_config(str(tmp_path / "c.yaml")), engine) == visible
