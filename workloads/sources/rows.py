"""What every trace format yields: one row per request."""

from __future__ import annotations

from typing import NamedTuple


class RowError(ValueError):
    """A line that does not hold what its format promises; says what is wrong with it."""


class Row(NamedTuple):
    """`time_s` on the trace's own clock; `blocks` are content hashes of the prompt's blocks, where there are any."""

    time_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] | None = None
