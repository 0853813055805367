"""A run's self-measurement, put together from its records, its workers' own reports and the engine's samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from exporters.columns import ABSENT, Columns
from exporters.facts import Facts, Window
from exporters.quality import GATHER, Measured, WorkerHealth, lost_worker

_FULL = 0.92


def measure(
    columns: Columns,
    facts: Facts,
    window: Window,
    engine: Sequence[Mapping[str, Any]] = (),
    unreadable: Sequence[int] = (),
) -> Measured:
    """The run's self-measurement out of its records, its workers' own reports and the `engine`'s samples."""
    inside = columns.in_window
    sent = int(inside.sum())
    ok = int((inside & columns.ok).sum())
    events = int(columns.events[inside].sum())
    lag = columns.values("send_lag_s", inside)
    health = {name: _health(entry) for name, entry in facts.workers.items()}
    asked = _total(h.in_flight_asked for h in health.values())
    missing = _missing(columns, facts, window, health)
    return Measured(
        empty_window=window.empty,
        clock=facts.clock or next(iter(sorted(columns.clocks)), "user"),
        workers=max(len(health), len(columns.workers), 1),
        open_loop=facts.open_loop,
        ok=ok,
        coalesced_share=float(columns.coalesced[inside].sum() / events) if events else None,
        loop_lag_p99_s=_greatest(h.loop_lag_p99_s for h in health.values()),
        send_lag_p99_s=float(np.quantile(lag, 0.99)) if lag.size and facts.open_loop else None,
        rate_requested=facts.rate if facts.rate or not facts.due else facts.due / window.seconds,
        rate_achieved=sent / window.seconds if facts.open_loop else None,
        rate_chance=_chance(facts, window),
        worker_cpu_max=_greatest(h.cpu_share for h in health.values()),
        ring_drop_share=sum(h.ring_drops for h in health.values()) / max(events, 1),
        cancelled_share=float((inside & (columns.outcome == 2)).sum() / sent) if sent else 0.0,
        in_flight_ratio=_in_flight(columns, health.values(), window) / asked if asked else None,
        wall_clock_step_s=_greatest(h.wall_clock_step_s for h in health.values()),
        unaccounted=tuple(_unaccounted(columns, health, missing)),
        broken_off=bool(facts.meta.get("broken_off")),
        due=facts.due,
        missing=missing,
        **_cache(facts.prefix_cache),
        engine_late_share=_engine_late_share(engine, window),
        failed_share=float((inside & (columns.outcome == 1)).sum() / sent) if sent else 0.0,
        commonest_error=_commonest_error(columns),
        machine_full=_full_machine(health),
        unreadable=tuple(unreadable),
    )


def _in_flight(columns: Columns, health: Iterable[WorkerHealth], window: Window) -> float:
    """Mean number of streams under way: by their own times, for a late worker believes in streams that have ended.

    Where not every request left a record, the workers' belief is all there is.
    """
    health = list(health)
    believed = _total(h.in_flight_mean for h in health) or 0.0
    if _total(h.sent for h in health) != columns.sent_ns.size:
        return believed
    under_way_ns = np.minimum(columns.end_ns, window.end_ns) - np.maximum(columns.sent_ns, window.start_ns)
    return min(float(under_way_ns[under_way_ns > 0].sum()) * 1e-9 / window.seconds, believed)


def _commonest_error(columns: Columns) -> str | None:
    kinds = Counter(kind for kind in columns.errors if kind)
    return kinds.most_common(1)[0][0] if kinds else None


def _full_machine(health: Mapping[str, WorkerHealth]) -> str | None:
    """A host none of whose cores is left to a further worker: its workers, or whatever runs there, use them all."""
    used: dict[str, float] = {}
    for entry in health.values():
        host = entry.host or "this machine"
        used[host] = used.get(host, 0.0) + (entry.cpu_share or 0.0)
    for entry in health.values():
        host = entry.host or "this machine"
        if (entry.machine_busy or 0.0) > _FULL or (entry.cores and used[host] > _FULL * entry.cores):
            return host
    return None


def _engine_late_share(engine: Sequence[Mapping[str, Any]], window: Window) -> float | None:
    """From the counters of the samples inside the window; None where the engine keeps no such counter."""
    inside = [
        (sample["simulated_behind_steps_total"], sample["step_tokens_count"])
        for sample in engine
        if window.start_ns <= sample.get("time_ns", 0) <= window.end_ns
        and {"simulated_behind_steps_total", "step_tokens_count"} <= sample.keys()
    ]
    if len(inside) < 2 or inside[-1][1] <= inside[0][1]:
        return None
    return float((inside[-1][0] - inside[0][0]) / (inside[-1][1] - inside[0][1]))


def _chance(facts: Facts, window: Window) -> float:
    """A renewal process's count has the variance of its mean over the gaps' shape, here called burstiness."""
    if facts.arrival not in ("poisson", "gamma") or not facts.rate:
        return 0.0
    shape = facts.burstiness if facts.arrival == "gamma" else 1.0
    return 3 * math.sqrt(facts.rate * window.seconds / shape) / window.seconds


def _missing(columns: Columns, facts: Facts, window: Window, health: Mapping[str, WorkerHealth]) -> int:
    """How many of the requests that were due inside the window were not sent, as far as is known."""
    told = _total(h.sent for h in health.values()) or 0
    if facts.due is None or (columns.index.size < told and not any(h.lost for h in health.values())):
        # Records were thinned (--records): that one is not there means nothing.
        return 0
    first = columns.in_window & (columns.scheduled_ns != ABSENT) & (columns.scheduled_ns < window.end_ns)
    return max(facts.due - int(first.sum()), 0)


def _cache(found: Mapping[str, Any]) -> dict[str, float | None]:
    if not found.get("queried_tokens"):
        return {}
    return {
        "cache_hit_share": found["hit_tokens"] / found["queried_tokens"],
        "cache_designed_share": found.get("designed_share"),
    }


def _unaccounted(columns: Columns, health: Mapping[str, WorkerHealth], missing: int) -> Iterable[str]:
    """Where a worker's own counts and the records that arrived from it disagree."""
    if missing and any(entry.lost is not None for entry in health.values()):
        yield f"{missing} requests that were due in the window were not heard of; {GATHER}"
    for name, entry in health.items():
        if entry.lost is not None:
            yield lost_worker(name, entry.lost)
            continue
        if entry.sent is None:
            continue
        parts = (entry.ok or 0, entry.failed or 0, entry.cancelled or 0)
        if entry.sent != sum(parts):
            yield f"worker {name} sent {entry.sent} requests but ended {sum(parts)}; {GATHER}"
        mine = (
            columns.worker_code == columns.workers.index(name) if name in columns.workers else np.zeros(0, dtype=bool)
        )
        arrived = tuple(int((columns.outcome[mine] == code).sum()) if mine.size else 0 for code in range(3))
        if arrived != parts:
            yield f"worker {name} counted {parts} ok, failed, cancelled but {arrived} arrived; {GATHER}"


def _health(entry: Mapping[str, Any]) -> WorkerHealth:
    known = {k: v for k, v in entry.items() if k in WorkerHealth.__struct_fields__}
    return msgspec.convert(known, WorkerHealth, strict=False)


def _greatest(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _total(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None
