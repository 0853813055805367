"""Finds a workload by name or path; presets are the YAML files beside this module."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from tailgate.exits import BadInput
from tailgate.yaml_file import read_model
from workloads.sources.past_run import RUN, PastRun
from workloads.spec import Workload

PRESETS = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """The names of all presets, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load_workload(name_or_path: str) -> Workload:
    """A preset by name, a YAML file by path, one point of either's grid as `NAME:c16-i128-o256`, or a past run's
    directory: its requests once more.

    Raises `BadInput` with the closest preset's name, or with the file's line and key at fault.
    """
    if os.path.isfile(Path(name_or_path, RUN)):
        return PastRun(Path(name_or_path)).again()
    path = _file_of(name_or_path)
    if path is not None:
        return read_model(path, Workload)
    name, colon, point = name_or_path.rpartition(":")
    path = _file_of(name) if colon else None
    if path is not None:
        return read_model(path, Workload).point(point)
    asked = name if colon else name_or_path
    if _looks_like_path(asked):
        if os.path.isdir(asked):
            raise BadInput(f"workload {asked}: a directory, and no run's", "give a YAML file, or a run directory")
        raise BadInput(f"workload {asked}: no such file", "give a YAML file or a preset's name (workloads list)")
    close = difflib.get_close_matches(asked, preset_names(), n=1, cutoff=0.4)
    mend = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(preset_names())}"
    raise BadInput(f"unknown workload '{asked}'", mend)


def _file_of(name: str) -> Path | None:
    if name in preset_names():
        return PRESETS / f"{name}.yaml"
    return Path(name) if _looks_like_path(name) and os.path.isfile(name) else None


def _looks_like_path(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml"))
