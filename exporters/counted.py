"""Requests that have ended, counted: all that a live run needs to know of them, small enough for a worker to send.

Whoever holds the records counts them, so that a master of hundreds of workers only adds: a report's five thousand gaps
are some hundred numbers. Only what `summary.json` counts is counted, requests inside the window.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from exporters.blocks import COMPARED
from exporters.columns import ABSENT, OUTCOMES, Bools, Columns
from exporters.facts import Facts
from exporters.histogram import BUCKETS, Counts, LatencyHistogram, bucket_of
from exporters.quantiles import Floats
from exporters.summary import good_requests

HISTOGRAMS = ("ttft", "itl", "tpot", "e2e", "send_lag")
MEASURED = tuple(dict.fromkeys((*HISTOGRAMS, *COMPARED)))
BOUNDS_S: tuple[float, ...] = tuple(
    round(step * 10.0**exponent, 6)
    for exponent in range(-4, 2)
    for step in (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    if not (exponent == 1 and step > 6)
)
"""Upper bounds, seconds: ten a decade, from 0.1 ms to 60 s, so that a quantile read off them is within a fifth."""
# Times are whole nanoseconds, whose product with 1e-9 may lie a hair above the bound they equal.
_BOUNDS = np.array(BOUNDS_S) + 0.5e-9


class Latencies(msgspec.Struct, frozen=True, array_like=True):
    """Values of one latency as counts: `buckets` of the fine histogram that hold any (u16) and how many (u32), `slots`
    between the bounds (u8) and how many (u32); little-endian, packed. Their sum and extremes are exact, in seconds."""

    buckets: bytes
    in_buckets: bytes
    slots: bytes
    in_slots: bytes
    total_s: float
    least_s: float
    greatest_s: float

    @classmethod
    def of(cls, values_s: Floats) -> Latencies:
        """The counts of these values, of which there is at least one."""
        values = np.maximum(values_s, 0.0)
        # A value equal to a bound belongs below it: `le` means at most.
        at_bounds = np.bincount(np.searchsorted(_BOUNDS, values, side="left"))
        fine = np.bincount(bucket_of(values))
        held, slots = np.flatnonzero(fine), np.flatnonzero(at_bounds)
        return cls(
            buckets=held.astype("<u2").tobytes(),
            in_buckets=fine[held].astype("<u4").tobytes(),
            slots=slots.astype("u1").tobytes(),
            in_slots=at_bounds[slots].astype("<u4").tobytes(),
            total_s=float(values.sum()),
            least_s=float(values.min()),
            greatest_s=float(values.max()),
        )


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one class that have ended. `outcomes` are (outcome, kind of error or "", how many); `good` met the
    SLO; tokens are those of requests that succeeded, as far as they are known."""

    sent: int
    good: int
    outcomes: list[tuple[str, str, int]]
    output_tokens: int
    prompt_tokens: int
    events: int
    coalesced: int
    latencies: dict[str, Latencies]


def count_ended(columns: Columns, facts: Facts) -> dict[str, Ended]:
    """The requests of `columns` by class, those inside the window; `facts` have the SLO."""
    inside = columns.in_window
    good = good_requests(columns, facts)
    found = {}
    for code, name in enumerate(columns.classes):
        chosen = inside & (columns.class_code == code)
        if chosen.any():
            found[name] = _count(columns, chosen, good)
    return found


def _count(columns: Columns, chosen: Bools, good: Bools | None) -> Ended:
    values = {metric: columns.values(f"{metric}_s", chosen) for metric in MEASURED}
    return Ended(
        sent=int(chosen.sum()),
        good=int((chosen & good).sum()) if good is not None else 0,
        outcomes=_outcomes(columns, chosen),
        output_tokens=_known(columns.output_tokens[chosen & columns.ok]),
        prompt_tokens=_known(columns.prompt_tokens[chosen & columns.ok]),
        events=int(columns.events[chosen].sum()),
        coalesced=int(columns.coalesced[chosen].sum()),
        latencies={metric: Latencies.of(found) for metric, found in values.items() if found.size},
    )


def _outcomes(columns: Columns, chosen: Bools) -> list[tuple[str, str, int]]:
    counts: dict[tuple[str, str], int] = {}
    for code, outcome in enumerate(OUTCOMES):
        of_outcome = chosen & (columns.outcome == code)
        if outcome == "failed":
            for position in np.flatnonzero(of_outcome):
                key = outcome, columns.errors[position] or "unknown"
                counts[key] = counts.get(key, 0) + 1
        elif number := int(of_outcome.sum()):
            counts[outcome, ""] = number
    return [(*key, number) for key, number in counts.items()]


def _known(tokens: Counts) -> int:
    return int(tokens[tokens != ABSENT].sum())


class Tally:
    """One latency of one class: counts at the bounds, and the fine histogram."""

    def __init__(self) -> None:
        self.at_bounds: Counts = np.zeros(len(BOUNDS_S) + 1, dtype=np.int64)
        self.fine = LatencyHistogram()

    @classmethod
    def of(cls, parts: Sequence[Latencies]) -> Tally:
        """All of `parts`, at least one, added up at once: the cost of hundreds is that of a few."""
        made = cls()
        made.at_bounds = _added(parts, "slots", "u1", "in_slots", made.at_bounds.size)
        made.fine.counts = _added(parts, "buckets", "<u2", "in_buckets", BUCKETS)
        made.fine.total_s = sum(part.total_s for part in parts)
        made.fine.least_s = min(part.least_s for part in parts)
        made.fine.greatest_s = max(part.greatest_s for part in parts)
        return made

    def merge(self, other: Tally) -> None:
        self.at_bounds += other.at_bounds
        self.fine.merge(other.fine)


def _added(parts: Sequence[Latencies], where: str, kind: str, how_many: str, size: int) -> Counts:
    places = np.frombuffer(b"".join(getattr(part, where) for part in parts), dtype=kind)
    numbers = np.frombuffer(b"".join(getattr(part, how_many) for part in parts), dtype="<u4")
    # Weights are floats, exact for whole numbers below 2**53.
    return np.bincount(places, weights=numbers, minlength=size).astype(np.int64)
