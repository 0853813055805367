"""Runs kept to compare with later: `baselines/NAME.json`, small enough for git.

A file holds for each run what `run.json` says of comparability, the counts, the exact quantiles and the histogram of
every compared metric by block of time: enough for intervals from the file alone.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exporters.blocks import BlockCounts, Blocks
from exporters.compare import Measurement
from exporters.facts import Facts
from exporters.histogram import BUCKETS, pack_counts, unpack_counts
from exporters.run import Run, read_json
from exporters.run_store import replace_file
from tailgate.exits import BadInput

BASELINE_SCHEMA = "tailgate.baseline/1"
DIRECTORY = Path("baselines")
_KEPT = (
    "started_utc", "suite_version", "label", "workload", "model", "seed", "seed_drawn", "arrival", "users", "slo",
    "clock", "engine", "simulated", "launch", "bodies_sha256", "command",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def save(runs: Sequence[Run], name: str, directory: Path = DIRECTORY) -> Path:
    """Writes `directory/NAME.json`, returns its path. Raises `BadInput` for a bad name or a run that is not valid."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"'{name}' is no name for a baseline", "use letters, digits, dot, dash and underscore")
    for run in runs:
        if not run.valid:
            reasons = "; ".join(run.summary["quality"]["reasons"])
            raise BadInput(f"{run.path} is not valid and must not become a baseline: {reasons}", "measure it anew")
    content = {"schema": BASELINE_SCHEMA, "name": name, "runs": [_packed(Measurement.of(run)) for run in runs]}
    path = directory / f"{name}.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(content, indent=1).encode() + b"\n")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "name a directory that can be written with --directory") from None
    return path


def load(path: Path) -> list[Measurement]:
    """The runs a baseline holds. Raises `BadInput` where the file is none, or of a newer suite."""
    content = read_json(path, "save it anew with: python -m exporters baseline save RUN NAME")
    schema = content.get("schema")
    if schema != BASELINE_SCHEMA:
        raise BadInput(f"{path}: schema {schema!r} is not {BASELINE_SCHEMA}", "save it anew with this version")
    try:
        return [_unpacked(run) for run in content["runs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: damaged baseline ({error})", "save it anew") from None


def find(name: str, directory: Path = DIRECTORY) -> Path | None:
    """The file of a baseline given by path or by name; None where there is none."""
    return next((p for p in (Path(name), directory / f"{name}.json") if p.is_file()), None)


def listing(directory: Path = DIRECTORY) -> list[dict[str, Any]]:
    """What is kept in `directory`, by name."""
    found = []
    for path in sorted(directory.glob("*.json")):
        runs = load(path)
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
        runs = f"{entry['runs']} run{'s' if entry['runs'] > 1 else ''}"
        kind = ", simulated" if entry["simulated"] else ""
        lines.append(f"{entry['name']}: {entry['workload']}, {entry['model']}, {runs}, {entry['started_utc']}{kind}")
    return "\n".join(lines)


def described(name: str, directory: Path = DIRECTORY) -> list[dict[str, Any]]:
    """What a baseline holds, one mapping a run. Raises `BadInput` where there is none of that name."""
    path = find(name, directory)
    if path is None:
        known = [kept["name"] for kept in listing(directory)]
        close = difflib.get_close_matches(name, known, n=1)
        mend = (
            f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}" if known else "there are none yet"
        )
        raise BadInput(f"no baseline '{name}' in {directory}", mend)
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


def _packed(measured: Measurement) -> dict[str, Any]:
    blocks = measured.blocks
    summary = {k: measured.summary[k] for k in ("valid", "quality", "window", "requests", "throughput", "metrics")}
    return {
        "meta": {key: measured.facts.meta[key] for key in _KEPT if key in measured.facts.meta},
        "summary": summary,
        "blocks": {
            "seconds": blocks.block_s,
            "sent": blocks.sent.tolist(),
            "failed": blocks.failed.tolist(),
            "tokens": [round(x, 3) for x in blocks.tokens.tolist()],
            "good": None if blocks.good is None else blocks.good.tolist(),
            "latencies": {metric: _rows(counts) for metric, counts in blocks.latencies.items()},
            "exact": {
                metric: {str(q): None if v != v else v for q, v in found.items()}
                for metric, found in blocks.exact.items()
            },
        },
    }


def _rows(counts: BlockCounts) -> list[str]:
    wide = np.zeros((counts.counts.shape[0], BUCKETS), dtype=np.int64)
    wide[:, counts.buckets] = counts.counts
    return [pack_counts(row) for row in wide]


def _unpacked(kept: Mapping[str, Any]) -> Measurement:
    blocks = kept["blocks"]
    latencies = {}
    for metric, rows in blocks["latencies"].items():
        table = np.stack([unpack_counts(row) for row in rows])
        held = np.flatnonzero(table.any(axis=0)).astype(np.int64)
        latencies[metric] = BlockCounts(held, table[:, held])
    exact = {
        metric: {float(q): float("nan") if v is None else float(v) for q, v in found.items()}
        for metric, found in blocks["exact"].items()
    }
    good = blocks["good"]
    return Measurement(
        Facts(kept["meta"]),
        kept["summary"],
        Blocks(
            block_s=float(blocks["seconds"]),
            latencies=latencies,
            exact=exact,
            sent=np.array(blocks["sent"], dtype=float),
            failed=np.array(blocks["failed"], dtype=float),
            tokens=np.array(blocks["tokens"], dtype=float),
            good=None if good is None else np.array(good, dtype=float),
        ),
    )
