"""vLLM's image launched by `docker run`: the exact command, and no container left however it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tailgate.exits import BadInput
from tests.support.waiting import eventually
from tests.vllm_launch.commands import end, marked, start
from vllm_launch.config import load_config
from vllm_launch.engine.commands import command
from vllm_launch.engine.launch import LaunchFailed, free_port, launch

CONFIG = """
extends: h100-qwen3-32b-baseline
vllm: 0.32.1
env: {CUDA_VISIBLE_DEVICES: 0, MY_TOKEN: abc}
docker: {gpus: "0,1", shm-size: 32g, mounts: ["/data:/data"]}
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` on PATH, and the folder where it notes what it was asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "docker"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("stub_docker.py")}" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STUB_DOCKER", str(tmp_path))
    return tmp_path


def calls(docker: Path) -> list[list[str]]:
    return [json.loads(line) for line in (docker / "calls").read_text().splitlines()]


def test_the_command_is_what_one_would_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HOME", "/models/hf")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    asked = command(load_config(str(path)), "docker", host="127.0.0.1", port=8123)
    name = asked.argv[asked.argv.index("--name") + 1]
    assert name.startswith("tailgate-8123-")
    assert asked.argv == [
        *("docker", "run", "--rm", "--name", name, "--label", "tailgate", "--gpus", '"device=0,1"'),
        *("--shm-size", "32g", "-p", "127.0.0.1:8123:8000", "-v", "/models/hf:/root/.cache/huggingface"),
        *("-v", "/data:/data", "-e", "HF_TOKEN", "-e", "MY_TOKEN"),
        *("-e", "VLLM_NO_USAGE_STATS=1", "-e", "CUDA_VISIBLE_DEVICES=0"),
        *("vllm/vllm-openai:v0.32.1", "--model", "Qwen/Qwen3-32B", "--host", "0.0.0.0", "--port", "8000"),
        *("--tensor-parallel-size", "2"),
    ]
    assert asked.env == {"MY_TOKEN": "abc"}, "secrets reach docker by its environment, not by its command line"
    assert list(asked.removal) == ["docker", "rm", "--force", name]


def test_a_model_that_is_a_folder_here_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "c.yaml").write_text(f"model: {tmp_path / 'm'}\ndevice: cpu\ndocker: {{image: my/vllm-cpu:1}}\n")
    argv = command(load_config(str(tmp_path / "c.yaml")), "docker", host="127.0.0.1", port=8123).argv
    assert f"{tmp_path / 'm'}:{tmp_path / 'm'}:ro" in argv
    assert "--gpus" not in argv
    assert argv[argv.index("my/vllm-cpu:1") + 2] == str(tmp_path / "m")


def test_a_container_serves_and_is_gone_afterwards(docker: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILGATE_TEST_MARK", mark)
    with launch(load_config("h100-llama-8b-baseline"), "docker", log=docker / "e.log", warm=False) as engine:
        assert engine.model == "stub"
    run, removed = calls(docker)
    assert removed == ["rm", "--force", run[run.index("--name") + 1]]
    assert "VLLM_SERVER_DEV_MODE=1" in run, "the engine may be asked what it runs with"
    assert not [p for p in marked(mark) if "stub_engine" in " ".join(p.cmdline())]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_however_the_launcher_ends_its_container_ends_too(docker: Path, mark: str, number: signal.Signals) -> None:
    port = free_port()
    env = {"TAILGATE_TEST_MARK": mark, "STUB_ENGINE": "deaf", "PATH": os.environ["PATH"], "STUB_DOCKER": str(docker)}
    process = start("serve", "h100-llama-8b-baseline", "--engine", "docker", "--port", port, env=env)
    assert process.stdout is not None
    assert "serving stub" in next(line for line in process.stdout if "serving" in line)
    process.send_signal(number)
    end(process, 30)
    eventually(lambda: not marked(mark), "nothing left", 15)
    assert calls(docker)[-1][:2] == ["rm", "--force"]


def test_without_a_daemon_the_mend_is_said(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_ENGINE", "no-daemon")
    with (
        pytest.raises(LaunchFailed, match="Docker's daemon does not run"),
        launch(load_config("h100-llama-8b-baseline"), "docker", log=docker / "e.log"),
    ):
        pass


def test_without_docker_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with (
        pytest.raises(BadInput, match="there is no `docker` command on this machine; install Docker"),
        launch(load_config("h100-llama-8b-baseline"), "docker", log=None),
    ):
        pass
