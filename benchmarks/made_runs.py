"""Runs whose requests all went well, as columns, made from times that something else worked out."""

from __future__ import annotations

import numpy as np

from exporters.columns import ABSENT, Columns, Ints

START_NS = 1_790_000_000_000_000_000


def columns(sent_ns: Ints, first_ns: Ints, last_ns: Ints, gaps_ns: Ints, gap_starts: Ints) -> Columns:
    """One class, one worker, the wire's clock, a token an event.

    `sent_ns`, `first_ns` and `last_ns` have a value a request; the gaps of request i are
    `gaps_ns[gap_starts[i]:gap_starts[i + 1]]`.
    """
    count = sent_ns.size
    events = np.diff(gap_starts) + 1
    nothing, zero = np.full(count, ABSENT), np.zeros(count, dtype=np.int64)
    return Columns(
        index=np.arange(count),
        scheduled_ns=sent_ns,
        sent_ns=sent_ns,
        first_ns=first_ns,
        last_ns=last_ns,
        end_ns=last_ns,
        connect_ns=nothing,
        events=events,
        coalesced=zero,
        prompt_tokens=nothing,
        planned_prompt_tokens=nothing,
        output_tokens=events,
        cached_tokens=nothing,
        outcome=zero,
        class_code=zero,
        worker_code=zero,
        in_window=np.ones(count, dtype=bool),
        counted_events=np.zeros(count, dtype=bool),
        gaps_ns=gaps_ns,
        gap_starts=gap_starts,
        gap_tokens=None,
        classes=["chat"],
        workers=["w0"],
        errors=[None] * count,
        clocks={"wire"},
    )
