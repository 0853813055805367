"""The content of a baseline's file: what is kept of a run, packed small, its schema, and how older ones are read.

For each run the file holds what `run.json` says of comparability, the counts, the exact quantiles, and the histogram
of every compared metric by block of time: enough for intervals from the file alone. Schemas:

- `tailgate.baseline/1`: a packed histogram for each block.
- `tailgate.baseline/2`: one packed table for each metric, all its blocks in a row; tokens, and latencies by class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from exporters.blocks import MOST_BLOCKS, BlockCounts, Blocks
from exporters.compare import Measurement
from exporters.facts import Facts, check
from exporters.histogram import BUCKETS, pack_counts, unpack_counts
from tailgate.exits import BadInput
from tailgate.thresholds import COMPARED, LEVELS_COMPARED

BASELINE_SCHEMA = "tailgate.baseline/2"
_NEWEST = 2
_MOST_CLASSES = 16
_SCHEMA = re.compile(r"tailgate\.baseline/([1-9]\d{0,3})")
_KEPT = (
    "run_id", "started_utc", "suite_version", "label", "workload", "model", "seed", "seed_drawn", "arrival", "users",
    "rate_changes", "user_changes", "warmup_s", "slo", "clock", "engine", "simulated", "launch", "bodies_sha256",
    "salt", "command", "imported_from",
)  # fmt: skip
_SUMMARY = ("valid", "quality", "window", "requests", "throughput", "tokens", "metrics")


class _Blocks(msgspec.Struct):
    seconds: Annotated[float, msgspec.Meta(gt=0)]
    sent: list[float]
    failed: list[float]
    tokens: list[float]
    good: list[float] | None
    latencies: dict[str, str]
    exact: dict[str, dict[str, float | None]]


class _Window(msgspec.Struct):
    seconds: float


class _Requests(msgspec.Struct):
    sent: int
    ok: int
    failed: int


class _Summarised(msgspec.Struct):
    valid: bool
    quality: dict[str, Any]
    window: _Window
    requests: _Requests
    throughput: dict[str, float]
    metrics: dict[str, dict[str, Any]]


class _Kept(msgspec.Struct):
    """The types of one run, as far as it is computed with."""

    meta: dict[str, Any]
    summary: _Summarised
    blocks: _Blocks


def packed(name: str, runs: Sequence[Measurement]) -> dict[str, Any]:
    """The whole file, JSON-able."""
    return {"schema": BASELINE_SCHEMA, "name": name, "runs": [_packed(run) for run in runs]}


def unpacked(content: Mapping[str, Any], path: Path) -> list[Measurement]:
    """The runs in a file's content, whatever its schema. Raises `BadInput` where it is damaged, or of a newer suite."""
    schema = content.get("schema")
    found = _SCHEMA.fullmatch(str(schema))
    if not found:
        raise BadInput(f"{path}: no baseline (schema {schema!r:.60})", "save one with --save-baseline or baseline save")
    version = int(found[1])
    if version > _NEWEST:
        raise BadInput(
            f"{path}: schema {schema} is newer than this suite, which reads up to {BASELINE_SCHEMA}", _UPDATE
        )
    try:
        runs = content["runs"]
        if version == 1:
            runs = [_from_1(run) for run in runs]
        measured = [_unpacked(run) for run in runs]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, BadInput) as error:
        raise BadInput(f"{path}: damaged baseline ({type(error).__name__}: {error})", "save it anew") from None
    if not measured:
        raise BadInput(f"{path}: damaged baseline (no run in it)", "save it anew")
    return measured


_UPDATE = "update the suite, or save the baseline anew with this one"


def _packed(measured: Measurement) -> dict[str, Any]:
    blocks = measured.blocks
    return {
        "meta": {key: measured.facts.meta[key] for key in _KEPT if key in measured.facts.meta},
        "summary": _summary(measured.summary),
        "blocks": {
            "seconds": blocks.block_s,
            "sent": blocks.sent.tolist(),
            "failed": blocks.failed.tolist(),
            "tokens": [round(x, 3) for x in blocks.tokens.tolist()],
            "good": None if blocks.good is None else blocks.good.tolist(),
            "latencies": {metric: _table(counts) for metric, counts in blocks.latencies.items()},
            "exact": {
                metric: {str(q): None if v != v else v for q, v in found.items()}
                for metric, found in blocks.exact.items()
            },
        },
    }


def _summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What comparisons and screens show of a baseline; of classes, where there are several, their latencies."""
    kept: dict[str, Any] = {key: summary[key] for key in _SUMMARY if key in summary}
    classes = summary.get("classes") or {}
    if 1 < len(classes) <= _MOST_CLASSES:
        names = [f"{metric}_s" for metric in COMPARED]
        kept["classes"] = {
            name: {"metrics": {key: part["metrics"][key] for key in names if key in part["metrics"]}}
            for name, part in classes.items()
        }
    return kept


def _table(counts: BlockCounts) -> str:
    wide = np.zeros((counts.counts.shape[0], BUCKETS), dtype=np.int64)
    wide[:, counts.buckets] = counts.counts
    return pack_counts(wide.ravel())


def _from_1(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run of schema 1 as schema 2 would have kept it."""
    blocks = run["blocks"]
    tables = {
        metric: pack_counts(np.concatenate([unpack_counts(row) for row in rows]))
        for metric, rows in blocks["latencies"].items()
    }
    return {**run, "blocks": {**blocks, "latencies": tables}}


def _unpacked(kept: Mapping[str, Any]) -> Measurement:
    typed = msgspec.convert(kept, _Kept)
    check(typed.meta, "meta", "save it anew")
    blocks = typed.blocks
    count = len(blocks.sent)
    rows = [blocks.failed, blocks.tokens, *([] if blocks.good is None else [blocks.good])]
    if not 1 <= count <= MOST_BLOCKS or {len(row) for row in rows} != {count}:
        raise ValueError(f"{count} blocks")
    latencies = {}
    for metric in COMPARED:
        table = unpack_counts(blocks.latencies[metric], count * BUCKETS).reshape(count, BUCKETS)
        held = np.flatnonzero(table.any(axis=0)).astype(np.int64)
        latencies[metric] = BlockCounts(held, np.ascontiguousarray(table[:, held]))
    exact = {
        metric: {
            q: float("nan") if (v := blocks.exact[metric][str(q)]) is None else v for q in LEVELS_COMPARED.values()
        }
        for metric in COMPARED
    }
    return Measurement(
        Facts(typed.meta),
        kept["summary"],
        Blocks(
            block_s=blocks.seconds,
            latencies=latencies,
            exact=exact,
            sent=np.array(blocks.sent, dtype=float),
            failed=np.array(blocks.failed, dtype=float),
            tokens=np.array(blocks.tokens, dtype=float),
            good=None if blocks.good is None else np.array(blocks.good, dtype=float),
        ),
    )
