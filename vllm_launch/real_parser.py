"""Asks the argument parser of an installed vLLM whether it takes a config's flags: names, values and types."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tailgate.exits import BadInput
from vllm_launch import cpu_vllm
from vllm_launch.config import LaunchConfig
from vllm_launch.engine.commands import vllm_python

_TIMEOUT_S = 180.0
# Runs in vLLM's own environment. The parser's place differs between versions.
_ASK = """
import contextlib, importlib, io, json, sys
def one_of(name, *modules):
    for module in modules:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), name)
make = one_of("make_arg_parser", "vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
kind = one_of("FlexibleArgumentParser", "vllm.utils.argparse_utils", "vllm.utils")
import vllm
parser = make(kind())
found = []
for words in json.load(sys.stdin):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words)
        found.append(None)
    except SystemExit:
        found.append(said.getvalue().strip().splitlines()[-1])
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
print(json.dumps({"version": vllm.__version__, "found": found}))
"""


@dataclass(frozen=True)
class Answer:
    """What the parser of vLLM `version` said of each config: its complaint, or None where it takes it."""

    version: str
    complaints: list[str | None]


def installed(config: LaunchConfig, python: str | None = None) -> str | None:
    """The interpreter whose vLLM would serve `config`; None where there is none."""
    chosen = python or vllm_python(config)
    if chosen == str(cpu_vllm.PYTHON):
        return chosen if cpu_vllm.ready() else None
    if chosen == sys.executable:
        return chosen if importlib.util.find_spec("vllm") else None
    return chosen if Path(chosen).is_file() else None


def ask(python: str, configs: list[LaunchConfig]) -> Answer:
    """Raises `BadInput` where `python` has no vLLM whose parser can be asked."""
    words = [["--model", config.model, *config.flags.argv(config.args)] for config in configs]
    try:
        done = subprocess.run(
            [python, "-c", _ASK],
            input=json.dumps(words),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        raise BadInput(
            f"the vLLM in the environment of {python} cannot be asked for its flags",
            "mend that environment, name another with --python, or check against the recorded list with --recorded",
        ) from None
    return Answer(answer["version"], answer["found"])
