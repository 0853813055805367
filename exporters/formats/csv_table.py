"""A run as CSV, one line a request, for spreadsheets and data frames. Times in seconds, gaps left out."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np

from exporters.columns import ABSENT, METRICS, OUTCOMES
from exporters.run import Run

_LATENCIES = tuple(metric for metric in METRICS if not metric.startswith("itl"))
_COUNTS = ("events", "prompt_tokens", "output_tokens", "cached_tokens")


def dump(run: Run) -> str:
    """The whole table as text; a cell is empty where a request has no such value."""
    c = run.columns
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", "class", "worker", "in_window", "outcome", "error", "sent_s", *_COUNTS, *_LATENCIES])
    latencies = [c.per_request(metric) for metric in _LATENCIES]
    for i in range(len(c)):
        cells: list[Any] = [
            int(c.index[i]),
            _plain(c.classes[c.class_code[i]]),
            _plain(c.workers[c.worker_code[i]]),
            int(c.in_window[i]),
            OUTCOMES[c.outcome[i]],
            _plain(c.errors[i] or ""),
            f"{(c.sent_ns[i] - run.window.start_ns) * 1e-9:.9f}",
        ]
        cells += ["" if getattr(c, name)[i] == ABSENT else int(getattr(c, name)[i]) for name in _COUNTS]
        cells += ["" if np.isnan(values[i]) else f"{values[i]:.9f}" for values in latencies]
        writer.writerow(cells)
    return text.getvalue()


def _plain(text: str) -> str:
    """A spreadsheet runs a cell that starts like a formula; this one it shows."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text
