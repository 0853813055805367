"""The engine's prefix cache over a run: what it found beside what the workload was designed to share."""

from __future__ import annotations

from typing import Any

from locustfiles import engine_page
from locustfiles.discovery import Api
from workloads import Plan

_QUERIES, _HITS = "prefix_cache_queries_total", "prefix_cache_hits_total"
# Of longer runs the share is that of their beginning: it has settled by then, and a plan is walked at 20 us a request.
_MOST = 50_000


class CacheCheck:
    """Reads the engine's counters when it is made, and again at the end."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._before = engine_page.read_now(api)

    def end(self, plan: Plan, sent: int) -> dict[str, Any] | None:
        """run.json's `prefix_cache`, after `sent` requests; None where the engine keeps no such counters.

        Tokens, from the first request to the last, warm-up included.
        """
        after = engine_page.read_now(self._api)
        if not sent or not all(key in page for key in (_QUERIES, _HITS) for page in (self._before, after)):
            return None
        reuse = plan.designed_reuse(min(sent, _MOST))
        queried, found = (after[key] - self._before[key] for key in (_QUERIES, _HITS))
        if queried < 0 or found < 0:
            # The engine was started anew meanwhile.
            return None
        return {
            "queried_tokens": int(queried),
            "hit_tokens": int(found),
            "designed_share": reuse.share if reuse else None,
        }
