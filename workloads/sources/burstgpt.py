"""BurstGPT's traces: CSV with Timestamp (seconds), Model, Request tokens, Response tokens, Total tokens, Log Type.

Source of the format: github.com/HPMLL/BurstGPT (KDD 2025); release 2 adds Session ID and Elapsed time, which are not
needed here. A row without response tokens was a failed request; it is sent with one, as the trace's load had it.
"""

from __future__ import annotations

import math

from workloads.sources.csv_rows import parser
from workloads.sources.rows import Parse, RowError


def burstgpt_rows(header: bytes) -> Parse:
    """The parser of the lines below this header, whatever the columns' order. Raises `RowError`."""
    return parser(header, "Timestamp", "Request tokens", "Response tokens", _seconds)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise RowError(f"Timestamp: '{text[:40]}' is no number of seconds")
    return seconds
