"""A launch config with some flags changed: in memory while it is planned, a file of its own once it is to be served."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tailgate.exits import BadInput
from vllm_launch.config import LaunchConfig


def checked_changes(config: LaunchConfig, changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The changes under the flags' canonical names, values as the engine takes them; None takes a flag back.

    Raises `BadInput` for a flag that the config's vLLM does not have, or a value that it would refuse.
    """
    checked: dict[str, Any] = {}
    for spelled, value in changes.items():
        flag = config.flags.find(spelled, f"{where}.{spelled}")
        if flag.name in checked:
            raise BadInput(f"{where}.{spelled}: named twice", f"keep one spelling of {flag.name}")
        checked[flag.name] = None if value is None else config.flags.value(flag, value, f"{where}.{spelled}")
    return checked


def variant_name(changes: Mapping[str, Any]) -> str:
    """A name for the changes that can be a file's: `max-num-seqs-256_stream-interval-2`; empty for none."""
    parts = [f"{flag}-{'default' if value is None else value}" for flag, value in changes.items()]
    return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", part) for part in parts)


def variant(config: LaunchConfig, changes: Mapping[str, Any]) -> LaunchConfig:
    """`config` with `changes` (as `checked_changes` gives them) made; itself where there are none."""
    if not changes:
        return config
    args = {**config.args, **changes}
    notes = {name: note for name, note in config.notes.items() if name not in changes}
    return replace(
        config,
        name=f"{config.name}_{variant_name(changes)}",
        args={name: value for name, value in args.items() if value is not None},
        notes=notes,
    )


def written(config: LaunchConfig, changes: Mapping[str, Any], folder: Path) -> LaunchConfig:
    """The variant as a file in `folder`, from which an engine can be served; an unchanged config has one already.

    It extends the config that it was made of, so that no secret of that one's environment is copied.
    """
    if not changes:
        return config
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{config.name}.yaml"
    content = {"extends": str(config.path.resolve()), "args": dict(changes)}
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return replace(config, path=path)
