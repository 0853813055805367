"""The engine's prefix cache over a run: what it found beside what the workload was designed to share."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from exporters.record import decode_records
from locustfiles import engine_page
from locustfiles.discovery import Api
from workloads import Plan

_QUERIES, _HITS = "prefix_cache_queries_total", "prefix_cache_hits_total"
# Of longer runs the share is that of their beginning: it has settled by then, and reading a record and walking the plan
# for it takes 30 us.
_MOST = 50_000


class CacheCheck:
    """Reads the engine's counters when it is made, and again at the end."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._before = engine_page.read_now(api)

    def end(self, plan: Plan, records: Path) -> dict[str, Any] | None:
        """run.json's `prefix_cache`; None where the engine keeps no such counters. `records` is the run's file of them.

        Tokens, from the first request to the last, warm-up included.
        """
        after = engine_page.read_now(self._api)
        turns = _turns_sent(records)
        if not turns or not all(key in page for key in (_QUERIES, _HITS) for page in (self._before, after)):
            return None
        reuse = plan.designed_reuse(turns)
        queried, found = (after[key] - self._before[key] for key in (_QUERIES, _HITS))
        if queried < 0 or found < 0:
            # The engine was started anew meanwhile.
            return None
        return {
            "queried_tokens": int(queried),
            "hit_tokens": int(found),
            "designed_share": reuse.share if reuse else None,
        }


def _turns_sent(records: Path) -> dict[int, int]:
    """How many turns were sent of each request: a conversation may have broken off, or not be through."""
    turns: dict[int, int] = {}
    for record in itertools.islice(decode_records(records), _MOST):
        turns[record.index] = max(turns.get(record.index, 0), record.turn + 1)
    return turns
