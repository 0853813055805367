"""What differed between two launches, flag by flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporters.facts import Facts


def config_differences(base: Facts, candidate: Facts) -> list[dict[str, str]]:
    """Each setting that differs: its name, both values, and why it was set where the config says so.

    A flag one side leaves out shows the device's default where the other side's diff names it.
    """
    sides = base, candidate
    found: list[dict[str, str]] = []
    for what in ("model", "engine", "engine_version"):
        values = [getattr(facts, what) for facts in sides]
        if values[0] != values[1]:
            found.append(_difference(what.replace("_", " "), _shown(values[0]), _shown(values[1])))
    launches = [facts.launch for facts in sides]
    for what in ("device", "vllm"):
        values = [launch.get(what) for launch in launches]
        if values[0] != values[1]:
            found.append(_difference(what, _shown(values[0]), _shown(values[1])))
    for part, prefix in (("args", "--"), ("env", "")):
        settings = [_mapping(launch.get(part)) for launch in launches]
        for name in sorted(settings[0].keys() | settings[1].keys()):
            if settings[0].get(name) != settings[1].get(name):
                told = [_shown(s[name]) if name in s else _default(launches, name) for s in settings]
                found.append(_difference(f"{prefix}{name}", told[0], told[1], _note(launches, name)))
    return found


def _difference(name: str, base: str, candidate: str, why: str = "") -> dict[str, str]:
    return {"name": name, "base": base, "candidate": candidate, "why": why}


def _default(launches: list[Mapping[str, Any]], name: str) -> str:
    for launch in launches:
        entry = _mapping(_mapping(launch.get("diff")).get(name))
        if "default" in entry:
            return f"{_shown(entry['default'])} (default)"
    return "default"


def _note(launches: list[Mapping[str, Any]], name: str) -> str:
    notes = [str(_mapping(_mapping(launch.get("diff")).get(name)).get("note") or "") for launch in launches]
    return " / ".join(dict.fromkeys(note for note in notes if note))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _shown(value: Any) -> str:
    if value is None:
        return "not stated"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
