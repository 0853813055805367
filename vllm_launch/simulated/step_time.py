"""How long a step of the simulated GPU takes: frozen tables of measured kernels plus the host's overhead.

A mixed step of b decodes and n prompt tokens costs S(n+b) + [P - S(n)] + [D - S(b)]: S is the part of a step that
depends only on how many tokens it carries (GEMMs, norms, collectives), P and D are whole prefill and decode steps, so
the brackets are their attention. Several prompts in one step share S and the launch of one attention kernel.
Source of the tables: see `tables/README.md`. Pure; no clock is read here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

TABLES = Path(__file__).parent / "tables"


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a step and a request cost outside the GPU's kernels, in seconds. `calibrate` fits them; see `calibration`.

    `per_step_s` and `per_sequence_s` lengthen each step (scheduling, sampling, input preparation: a constant and a
    share for each sequence in it); `per_request_s` passes between a request's arrival and its entry into the queue
    (HTTP, templating, tokenising) and lengthens TTFT alone.
    """

    per_step_s: float
    per_sequence_s: float
    per_request_s: float


class StepTimes:
    """Step times of one model on one device, in seconds."""

    def __init__(self, arrays: dict[str, np.ndarray], overhead: Overhead, slowdown: float = 1.0) -> None:
        """`arrays` as `make_tables` writes them; `slowdown` multiplies the time of every step (1: as measured)."""
        self.overhead = overhead
        self.slowdown = slowdown
        scale = 1.0 / 1000.0
        self._batch, self._context = arrays["decode_batch"].tolist(), arrays["decode_context"].tolist()
        self._tokens, self._prefix = arrays["prefill_tokens"].tolist(), arrays["prefill_prefix"].tolist()
        shared = arrays["shared"].astype(np.float64) * scale
        prefill = arrays["prefill"].astype(np.float64) * scale
        decode = arrays["decode"].astype(np.float64) * scale
        self._shared: list[float] = shared.tolist()
        self._prefill_attention: list[list[float]] = (prefill - shared[:, None]).tolist()
        decode_shared = np.interp(arrays["decode_batch"], arrays["prefill_tokens"], shared)
        self._decode_attention: list[list[float]] = (decode - decode_shared[:, None]).tolist()
        self._launch = self._prefill_attention[0][0]
        # A step is seldom the first of its size: what depends on whole numbers alone is worked out once.
        self._shared_of: dict[int, float] = {}
        self._decode_rows: dict[int, list[float]] = {}

    def kernels_s(self, decodes: int, context: int, prefills: Sequence[tuple[int, int]]) -> float:
        """The GPU's share of a step: `decodes` sequences with `context` tokens in all, and `prefills` as
        (tokens computed now, tokens before them)."""
        if not decodes and not prefills:
            return 0.0
        total = decodes
        attention = 0.0
        if decodes:
            attention = _linear(self._context, self._decode_row(decodes), context / decodes)
        if prefills:
            for tokens, prefix in prefills:
                total += tokens
                attention += _bilinear(self._tokens, self._prefix, self._prefill_attention, tokens, prefix)
            attention -= self._launch * (len(prefills) - 1)
        shared = self._shared_of.get(total)
        if shared is None:
            shared = self._shared_of[total] = _linear(self._tokens, self._shared, total)
        return shared + attention

    def _decode_row(self, decodes: int) -> list[float]:
        """The attention of that many decoding sequences, for each context of the table."""
        row = self._decode_rows.get(decodes)
        if row is None:
            i, u = _cell(self._batch, decodes)
            near, far = self._decode_attention[i], self._decode_attention[i + 1]
            row = self._decode_rows[decodes] = [a + u * (b - a) for a, b in zip(near, far, strict=True)]
        return row

    def step_s(self, decodes: int, context: int, prefills: Sequence[tuple[int, int]]) -> float:
        """The whole step, host overhead included."""
        host = self.overhead.per_step_s + self.overhead.per_sequence_s * (decodes + len(prefills))
        return (self.kernels_s(decodes, context, prefills) + host) * self.slowdown


def _cell(axis: list[float], value: float) -> tuple[int, float]:
    """The grid cell of `value` and its place in it; the outermost cells reach beyond the grid."""
    i = bisect_right(axis, value) - 1
    i = 0 if i < 0 else min(i, len(axis) - 2)
    low = axis[i]
    return i, (value - low) / (axis[i + 1] - low)


def _linear(xs: list[float], ys: list[float], x: float) -> float:
    i, u = _cell(xs, x)
    return ys[i] + u * (ys[i + 1] - ys[i])


def _bilinear(xs: list[float], ys: list[float], grid: list[list[float]], x: float, y: float) -> float:
    i, u = _cell(xs, x)
    j, w = _cell(ys, y)
    near, far = grid[i], grid[i + 1]
    below = near[j] + w * (near[j + 1] - near[j])
    return below + u * (far[j] + w * (far[j + 1] - far[j]) - below)


@lru_cache(maxsize=8)
def load_table(name: str) -> dict[str, np.ndarray]:
    """The arrays of the table `name` (without `.npz`)."""
    with np.load(TABLES / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def available_tables() -> list[str]:
    return sorted(path.stem for path in TABLES.glob("*.npz"))
