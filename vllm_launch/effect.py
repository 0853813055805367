"""What a config changes in the engine: its flags in effect, against another config and the device's defaults.

Two configs can differ in text and be the same engine, and one set flag can move another: with fewer batched tokens
than sequences, an unset `max-num-seqs` shrinks with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailgate.exits import BadInput
from vllm_launch.config import LaunchConfig
from vllm_launch.devices import find_device

# These bound another flag and do nothing where they equal it.
_FOLLOWS = {"max-num-scheduled-tokens": "max-num-batched-tokens", "max-num-active-seqs": "max-num-seqs"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One flag in which two engines differ; `by` says which flag moved it where it was not set itself."""

    flag: str
    before: Any
    after: Any
    note: str = ""


def effective(config: LaunchConfig) -> dict[str, Any]:
    """Every flag's value in effect; raises `BadInput` for combinations that vLLM refuses at start.

    Where nothing is known of the engine but its address, what the config says of its flags.
    """
    if config.attached_only:
        return dict(config.args)
    recorded = {name: flag.default for name, flag in config.flags.flags.items() if flag.default is not None}
    device = find_device(config.device)
    values = {**recorded, **device.defaults, **config.args, **device.forced}
    doubled = values.get("performance-mode") == "throughput"
    for name in ("max-num-batched-tokens", "max-num-seqs"):
        if doubled and name not in config.args:
            values[name] *= 2
    if "max-num-batched-tokens" not in config.args:
        longest = values.get("max-model-len") or 0
        if not values["enable-chunked-prefill"]:
            values["max-num-batched-tokens"] = max(longest, values["max-num-batched-tokens"])
        if longest > 0:
            fits = values["max-num-seqs"] * longest
            values["max-num-batched-tokens"] = min(fits, values["max-num-batched-tokens"])
    if "max-num-seqs" not in config.args:
        values["max-num-seqs"] = min(values["max-num-seqs"], values["max-num-batched-tokens"])
    for name, leader in _FOLLOWS.items():
        if values.get(name) is not None and values[name] >= values[leader]:
            del values[name]
    if values["max-num-batched-tokens"] < values["max-num-seqs"]:
        raise BadInput(
            f"{config.name}: max-num-batched-tokens ({values['max-num-batched-tokens']}) is below max-num-seqs "
            f"({values['max-num-seqs']}), which vLLM refuses at start",
            "raise the first or lower the second",
        )
    return values


def differences(before: LaunchConfig, after: LaunchConfig) -> list[Difference]:
    """The flags (and model, device, environment) in which two configs' engines differ, in effect."""
    found = [
        Difference(name, getattr(before, attribute), getattr(after, attribute))
        for name, attribute in (("model", "model"), ("device", "device"), ("vllm", "version"), ("url", "url"))
        if getattr(before, attribute) != getattr(after, attribute)
    ]
    old, new = effective(before), effective(after)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            note = after.notes.get(name) or before.notes.get(name) or _moved_by(name, before, after)
            found.append(Difference(name, old.get(name), new.get(name), note))
    old_env, new_env = before.public_env(), after.public_env()
    changed = [
        name for name in sorted(before.env.keys() | after.env.keys()) if before.env.get(name) != after.env.get(name)
    ]
    return found + [Difference(f"env {name}", old_env.get(name), new_env.get(name)) for name in changed]


def from_defaults(config: LaunchConfig) -> list[Difference]:
    """The flags in which a config's engine differs from its device's defaults."""
    bare = _bare(config)
    old, new = effective(bare), effective(config)
    return [
        Difference(name, old.get(name), new.get(name), config.notes.get(name) or _moved_by(name, bare, config))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def without_effect(config: LaunchConfig) -> list[str]:
    """One sentence for each flag that a config sets to what it is anyway."""
    changed = {difference.flag for difference in from_defaults(config)}
    if config.attached_only:
        return []
    device = find_device(config.device)
    found = []
    for name, value in config.args.items():
        if name in changed:
            continue
        follows = _FOLLOWS.get(name)
        if follows:
            found.append(f"sets {name} to {shown(value)}, no lower than {follows}: no effect")
            continue
        if device.forced.get(name, value) != value:
            found.append(f"sets {name} to {shown(value)}, which vLLM never does on this device: no effect")
            continue
        whose = "on this device" if name in device.defaults else f"of vLLM {config.version}"
        found.append(f"sets {name} to {shown(value)}, which is the default {whose}: no effect")
    return found


def shown(value: Any) -> str:
    """A flag's value as a person writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "not set" if value is None else str(value)


def _bare(config: LaunchConfig) -> LaunchConfig:
    return LaunchConfig(**{**config.__dict__, "args": {}, "notes": {}})


def _moved_by(name: str, before: LaunchConfig, after: LaunchConfig) -> str:
    if name in before.args or name in after.args:
        return ""
    if before.device != after.device:
        return "the device's default"
    if name == "max-num-seqs":
        return "not set: vLLM lowers it to max-num-batched-tokens"
    return "not set: follows another flag"
