"""A run as CSV, one line a request, for spreadsheets and data frames. Times in seconds, gaps left out."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from exporters.columns import ABSENT, METRICS, OUTCOMES
from exporters.run import Run

LATENCIES = tuple(metric for metric in METRICS if not metric.startswith("itl"))
COUNTS = ("events", "prompt_tokens", "output_tokens", "cached_tokens")
_NAMES = ("index", "class", "worker", "in_window", "outcome", "error", "sent_s", *COUNTS, *LATENCIES)


def dump(run: Run) -> str:
    """The whole table as text; a cell is empty where a request has no such value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_NAMES)
    for row in _rows(run):
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def rows(run: Run) -> list[dict[str, Any]]:
    """The same as one mapping a request, JSON-able; None where a request has no such value."""
    return [dict(zip(_NAMES, row, strict=True)) for row in _rows(run)]


def _rows(run: Run) -> Iterator[list[Any]]:
    c = run.columns
    latencies = [c.per_request(metric) for metric in LATENCIES]
    for i in range(len(c)):
        row: list[Any] = [
            int(c.index[i]),
            c.classes[c.class_code[i]],
            c.workers[c.worker_code[i]],
            bool(c.in_window[i]),
            OUTCOMES[c.outcome[i]],
            c.errors[i],
            round(float((c.sent_ns[i] - run.window.start_ns) * 1e-9), 9),
        ]
        row += [None if getattr(c, name)[i] == ABSENT else int(getattr(c, name)[i]) for name in COUNTS]
        row += [None if np.isnan(values[i]) else round(float(values[i]), 9) for values in latencies]
        yield row


def _cell(value: Any) -> str:
    """A spreadsheet runs a cell that starts like a formula; this one it shows."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.9f}"
    text = "" if value is None else str(value)
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "-", "@", "\t") else text
