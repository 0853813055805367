"""Runs kept to compare with later: `baselines/NAME.json`, small enough for git; what is in it: `baseline_file`.

A result of `vllm bench serve --save-detailed` is read as a baseline too.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exporters import baseline_file
from exporters.compare import Measurement
from exporters.facts import Facts
from exporters.formats import vllm_bench
from exporters.run import Run, read_json
from exporters.run_store import replace_file
from tailgate.exits import BadInput

DIRECTORY = Path("baselines")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def save(runs: Sequence[Run | Measurement], name: str, directory: Path = DIRECTORY) -> Path:
    """Writes `directory/NAME.json`, returns its path. Raises `BadInput` for a bad name or a run that is not valid."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"'{name}' is no name for a baseline", "use letters, digits, dot, dash and underscore")
    for run in runs:
        if not run.summary["valid"]:
            reasons = "; ".join(run.summary["quality"]["reasons"])
            who = run.path if isinstance(run, Run) else run.facts.label
            raise BadInput(f"{who} is not valid and must not become a baseline: {reasons}", "measure it anew")
    measured = [run if isinstance(run, Measurement) else Measurement.of(run) for run in runs]
    content = baseline_file.packed(name, measured)
    path = directory / f"{name}.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(content, indent=1).encode() + b"\n")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "name a directory that can be written with --directory") from None
    return path


def load(path: Path) -> list[Measurement]:
    """The runs a baseline holds; that of a detailed `vllm bench serve` result. Raises `BadInput` for anything else."""
    content = read_json(path, "save it anew with: python -m exporters baseline save RUN NAME")
    if vllm_bench.is_result(content):
        return [Measurement.of(vllm_bench.read(path, content))]
    return baseline_file.unpacked(content, path)


def find(name: str, directory: Path = DIRECTORY) -> Path | None:
    """The file of a baseline given by path or by name; None where there is none."""
    return next((p for p in (Path(name), directory / f"{name}.json") if p.is_file()), None)


def known_instead(name: str, directory: Path = DIRECTORY) -> str:
    """What whoever asked for a baseline that is not there may have meant."""
    known = sorted(path.stem for path in directory.glob("*.json"))
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(known)}" if known else "there are none yet: save one with --save-baseline NAME"


def listing(directory: Path = DIRECTORY) -> list[dict[str, Any]]:
    """What is kept in `directory`, by name."""
    found: list[dict[str, Any]] = []
    for path in sorted(directory.glob("*.json")):
        try:
            runs = load(path)
        except BadInput as error:
            found.append({"name": path.stem, "problem": str(error)})
            continue
        facts = runs[0].facts
        found.append(
            {
                "name": path.stem,
                "runs": len(runs),
                "workload": facts.workload,
                "model": facts.model,
                "engine": facts.engine,
                "simulated": facts.simulated,
                "started_utc": facts.meta.get("started_utc"),
                "bytes": path.stat().st_size,
            }
        )
    return found


def listing_text(kept: Sequence[Mapping[str, Any]], directory: Path) -> str:
    """The list for the screen."""
    if not kept:
        return f"no baselines in {directory}; keep one with: python -m exporters baseline save RUN NAME"
    lines = []
    for entry in kept:
        if "problem" in entry:
            lines.append(f"{entry['name']}: cannot be read: {entry['problem']}")
            continue
        runs = f"{entry['runs']} run{'s' if entry['runs'] > 1 else ''}"
        kind = ", simulated" if entry["simulated"] else ""
        lines.append(f"{entry['name']}: {entry['workload']}, {entry['model']}, {runs}, {entry['started_utc']}{kind}")
    return "\n".join(lines)


def described(name: str, directory: Path = DIRECTORY) -> list[dict[str, Any]]:
    """What a baseline holds, one mapping a run. Raises `BadInput` where there is none of that name."""
    path = find(name, directory)
    if path is None:
        raise BadInput(f"no baseline '{name}' in {directory}", known_instead(name, directory))
    return [{"meta": dict(run.facts.meta), **run.summary} for run in load(path)]


def described_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """A baseline's runs for the screen."""
    from exporters.tables import metric_table

    lines = []
    for run in runs:
        facts, requests = Facts(run["meta"]), run["requests"]
        if facts.simulated:
            lines.append("SIMULATED: these figures come from the embedded engine, not from a GPU.")
        lines += [
            f"{facts.label}: {facts.workload}, {facts.model}, seed {facts.seed}, {facts.meta.get('started_utc')}",
            f"{requests['sent']} sent in {run['window']['seconds']:.1f} s; {run['quality']['clock']} clock",
            *metric_table(run["metrics"]),
            "",
        ]
    return "\n".join(lines[:-1])
