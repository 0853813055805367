"""A run cut into blocks of time, each block's latencies as a histogram: all that a comparison needs to know of a run.

Requests near each other in time wait in the same queue, so they are no independent observations; blocks long enough
are. The rule: 16 equal blocks over the window, fewer where a block would be shorter than twice the mean E2E, at least
6. A request belongs, with all its gaps, to the block it was sent in. Few long blocks and Student's t stay honest when
correlation reaches further than foreseen, where many short blocks would not (the "fixed-b" view: Kiefer and
Vogelsang, Econometric Theory 21, 2005).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from exporters.columns import ABSENT, Bools, Columns
from exporters.facts import Window
from exporters.histogram import BUCKETS, bucket_of
from exporters.quantiles import Floats
from exporters.run import Run
from exporters.selection import quantiles_in_parts
from exporters.summary import good_requests
from tailgate.thresholds import COMPARED, LEVELS_COMPARED

MOST_BLOCKS = 16
LEAST_BLOCKS = 6
PER_REQUEST = ("ttft", "tpot", "e2e", "stall")

Matrix = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class BlockCounts:
    """Per-block counts of one metric: `counts[block, i]` observations fell into histogram bucket `buckets[i]`."""

    buckets: Matrix
    counts: Matrix

    def spread(self, buckets: Matrix) -> Floats:
        """The counts over a wider, sorted set of `buckets`: blocks x buckets, float64."""
        wide = np.zeros((self.counts.shape[0], buckets.size))
        wide[:, np.searchsorted(buckets, self.buckets)] = self.counts
        return wide


@dataclass(frozen=True)
class Blocks:
    """One run as B blocks of `block_s` seconds. Rates are arrays of length B."""

    block_s: float
    latencies: Mapping[str, BlockCounts]
    exact: Mapping[str, Mapping[float, float]]
    """For each metric the quantiles (level to seconds) of the whole run, as exact as they are known."""
    sent: Floats
    failed: Floats
    tokens: Floats
    good: Floats | None
    """Requests that met the SLO; None where there is no SLO."""

    @property
    def count(self) -> int:
        return int(self.sent.size)


def number_of_blocks(window_s: float, mean_e2e_s: float) -> int:
    """How many blocks a run is cut into; see the module's head for the rule."""
    fitting = int(window_s / (2 * mean_e2e_s)) if mean_e2e_s > 0 else MOST_BLOCKS
    return min(max(fitting, LEAST_BLOCKS), MOST_BLOCKS)


def blocks_of(run: Run) -> Blocks:
    """The run in blocks. Memory beyond the run's own columns is small where gaps are not nearly all alike."""
    columns, window = run.columns, run.window
    inside = columns.in_window
    e2e = columns.values("e2e_s", inside)
    blocks = number_of_blocks(window.seconds, float(e2e.mean()) if e2e.size else 0.0)
    block = _block_of_request(columns, window, blocks)
    latencies, exact = {}, {}
    for metric in COMPARED:
        latencies[metric] = _count(columns.parts(f"{metric}_s", inside), block, blocks)
        levels = list(LEVELS_COMPARED.values())
        found = quantiles_in_parts(columns.values_in_parts(f"{metric}_s", inside), levels)
        exact[metric] = dict(zip(levels, found.tolist(), strict=True))

    def per_block(chosen: Bools) -> Floats:
        return np.bincount(block[inside & chosen], minlength=blocks).astype(np.float64)

    good = good_requests(columns, run.facts)
    return Blocks(
        block_s=window.seconds / blocks,
        latencies=latencies,
        exact=exact,
        sent=per_block(inside),
        failed=per_block(columns.outcome == 1),
        tokens=_tokens_delivered(columns, window, blocks),
        good=None if good is None else per_block(good),
    )


def _block_of_request(columns: Columns, window: Window, blocks: int) -> Matrix:
    begun = np.where(columns.scheduled_ns != ABSENT, columns.scheduled_ns, columns.sent_ns)
    position = (begun - window.start_ns) / max(window.end_ns - window.start_ns, 1) * blocks
    return np.clip(position, 0, blocks - 1).astype(np.int64)


def _count(parts: Iterable[tuple[Floats, Matrix]], block: Matrix, blocks: int) -> BlockCounts:
    """Histogram counts by block; `parts` are values and the positions of their requests, `block` is each request's."""
    table = np.zeros((blocks, BUCKETS), dtype=np.int64)
    for values, owner in parts:
        table += np.bincount(block[owner] * BUCKETS + bucket_of(values), minlength=table.size).reshape(table.shape)
    held = np.flatnonzero(table.any(axis=0))
    return BlockCounts(held, np.ascontiguousarray(table[:, held]))


def _tokens_delivered(columns: Columns, window: Window, blocks: int) -> Floats:
    """Output tokens that arrived in each block, spread evenly from a request's first to its last event.

    By arrival, as throughput is: a block that asks for much need not be the one that gets much.
    """
    chosen = np.flatnonzero(columns.ok & (columns.output_tokens != ABSENT) & (columns.first_ns != ABSENT))
    edges = np.linspace(window.start_ns, window.end_ns, blocks + 1)
    first = columns.first_ns[chosen].astype(np.float64)
    spread = np.maximum(columns.last_ns[chosen] - first, 1.0)
    tokens = columns.output_tokens[chosen].astype(np.float64)
    arrived = [float((np.clip((edge - first) / spread, 0, 1) * tokens).sum()) for edge in edges]
    return np.diff(arrived)
