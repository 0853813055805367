"""vLLM's flags: which exist in a version, what values they take, and how they are written on a command line.

The facts are recorded from the real thing (see `record_flags`), so that a config can be checked where no vLLM is
installed. Inside, a flag has one canonical name: the first long name without dashes (`enable-prefix-caching`).
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tailgate.exits import BadInput

DEFAULT_VERSION = "0.32"
_HERE = Path(__file__).parent
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgKMG]?)$")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_SECRETS = {"api-key", "hf-token"}
_OURS = {
    "host": "the launcher sets it; give --host to serve",
    "port": "the launcher sets it; give --port to serve",
    "model": "write it as 'model:' at the top of the file",
    "served-model-name": "write it as 'served-model-name:' at the top of the file",
    "config": "flags hidden in another file cannot be compared; write them under 'args:'",
    "uds": "the load test connects over TCP; remove this line",
    "headless": "an engine without an API server cannot be tested; remove this line",
    "grpc": "the load test speaks HTTP; remove this line",
}
_RANGES = {
    "gpu-memory-utilization": (0.01, 1.0),
    "max-num-seqs": (1, None),
    "max-num-batched-tokens": (1, None),
    "tensor-parallel-size": (1, None),
    "pipeline-parallel-size": (1, None),
    "data-parallel-size": (1, None),
    "stream-interval": (1, None),
    "long-prefill-token-threshold": (0, None),
}


@dataclass(frozen=True, slots=True)
class Flag:
    """One recorded flag. `kind` is bool, int, float, str, json or size (an int that may be written 8k or 8K)."""

    name: str
    kind: str
    default: Any = None
    choices: tuple[str, ...] = ()
    open_choices: bool = False
    many: bool = False
    negative: str | None = None


@dataclass(frozen=True)
class FlagList:
    """All flags of one vLLM version. `names` maps every accepted spelling but the negative ones to a flag."""

    version: str
    flags: Mapping[str, Flag]
    names: Mapping[str, Flag]
    negatives: Mapping[str, Flag]

    def find(self, spelled: str, where: str) -> Flag:
        """The flag meant by a config's key; raises `BadInput` with the mend where there is none."""
        name = spelled.replace("_", "-")
        if name.startswith("-"):
            raise BadInput(f"{where}: flags are written without dashes here", f"write '{name.lstrip('-')}:'")
        if name in _SECRETS:
            variable = "VLLM_API_KEY" if name == "api-key" else "HF_TOKEN"
            raise BadInput(f"{where}: a secret does not belong in a config file", f"set {variable} in the environment")
        if name in _OURS:
            raise BadInput(f"{where}: not to be set under 'args:'", _OURS[name])
        if flag := self.names.get(name):
            return flag
        if flag := self.negatives.get(name):
            raise BadInput(f"{where}: a flag is switched off by its value", f"write '{flag.name}: false'")
        raise BadInput(f"{where}: {self._unknown(name)}", self._mend(name))

    def canonical(self, spelled: str) -> str:
        """The flag's own name; what names no flag (an environment variable) as it stands."""
        flag = self.names.get(spelled.replace("_", "-"))
        return flag.name if flag else spelled

    def _unknown(self, name: str) -> str:
        known = misbeliefs().get(name)
        return (
            f"vllm serve {self.version} has no such flag: {known['why']}"
            if known
            else f"unknown to vLLM {self.version}"
        )

    def _mend(self, name: str) -> str:
        known = misbeliefs().get(name)
        if known:
            return f"use '{known['use']}'" if "use" in known else "remove this line"
        opposite = name.removeprefix("no-")
        close = difflib.get_close_matches(opposite, self.names, n=1, cutoff=0.6)
        return f"did you mean '{close[0]}'?" if close else "see `vllm serve --help=all` for what there is"

    def value(self, flag: Flag, value: Any, where: str) -> Any:
        """`value` as the engine will understand it (sizes as integers); raises `BadInput` where it would refuse it."""
        if flag.many and isinstance(value, list):
            return [self.value(flag, item, where) for item in value]
        checked = _CHECKS[flag.kind](value)
        if checked is None:
            raise BadInput(f"{where}: takes {_TAKES[flag.kind]}, got {value!r}", "mend that value")
        if flag.choices and not flag.open_choices and str(checked) not in flag.choices:
            close = difflib.get_close_matches(str(checked), flag.choices, n=1)
            mend = f"did you mean '{close[0]}'?" if close else f"one of: {', '.join(flag.choices)}"
            raise BadInput(f"{where}: {value!r} is no choice of vLLM {self.version}", mend)
        low, high = _RANGES.get(flag.name, (None, None))
        if (low is not None and checked < low) or (high is not None and checked > high):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            raise BadInput(f"{where}: {value!r} is out of range", f"give a value {bounds}")
        return checked

    def argv(self, args: Mapping[str, Any]) -> list[str]:
        """`args` (canonical names, checked values) as this version's command line wants them."""
        words: list[str] = []
        for name, value in args.items():
            flag = self.flags[name]
            if flag.kind == "bool":
                off = [f"--{flag.negative}"] if flag.negative else []
                words += [f"--{name}"] if value else off
            elif isinstance(value, list):
                words += [f"--{name}", *(str(item) for item in value)]
            else:
                words += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
        return words


@functools.cache
def flag_list(version: str = DEFAULT_VERSION, where: str = "") -> FlagList:
    """The recorded list of a version (`0.32`, `0.32.1`); raises `BadInput` naming the versions there are."""
    short = ".".join(version.split(".")[:2])
    path = _HERE / "flag_lists" / f"{short}.json"
    if not path.is_file():
        raise BadInput(f"{where}no flag list is recorded for vLLM {version}", f"recorded: {', '.join(versions())}")
    recorded = json.loads(path.read_text(encoding="utf-8"))["flags"]
    flags = {name: _flag(name, entry) for name, entry in recorded.items()}
    names = {alias: flags[name] for name, entry in recorded.items() for alias in (name, *entry.get("aliases", ()))}
    negatives = {flag.negative: flag for flag in flags.values() if flag.negative}
    return FlagList(short, flags, names, negatives)


def _flag(name: str, entry: dict[str, Any]) -> Flag:
    return Flag(
        name,
        kind=entry["type"],
        default=entry.get("default"),
        choices=tuple(entry.get("choices", ())),
        open_choices=entry.get("open_choices", False),
        many=entry.get("many", False),
        negative=entry.get("negative"),
    )


def versions() -> list[str]:
    """The vLLM versions whose flags are recorded, oldest first."""
    found = [path.stem for path in (_HERE / "flag_lists").glob("*.json")]
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


@functools.cache
def misbeliefs() -> dict[str, dict[str, str]]:
    """Flags that posts name and vLLM never had or has dropped: `why`, and `use` where another takes their place."""
    loaded: dict[str, dict[str, str]] = yaml.safe_load((_HERE / "misbeliefs.yaml").read_text(encoding="utf-8"))
    return loaded


def _size(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    if value in (-1, "-1", "auto"):
        return -1
    match = _SIZE.match(str(value))
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value if isinstance(value, dict | list) else None
    try:
        return json.loads(value)
    except ValueError:
        return value


_CHECKS: dict[str, Any] = {
    "bool": lambda value: value if isinstance(value, bool) else None,
    "int": lambda value: value if isinstance(value, int) and not isinstance(value, bool) else None,
    "float": lambda value: _finite(value) if isinstance(value, int | float) and not isinstance(value, bool) else None,
    "str": lambda value: str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None,
    "size": _size,
    "json": _json,
}
_TAKES = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "size": "a whole number (8192, or 8k for 8,000, 8K for 8,192)",
    "json": "a mapping",
}
