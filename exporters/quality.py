"""Whether a run may be believed: what the client measured of itself, held against one table of limits.

Only what spoils a figure makes a run invalid, and that depends on the clock: with the wire clock an event's time is
taken before this program reads it, so a late reader does no harm to it, while a packet ring that overflowed does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from exporters.columns import ABSENT, Columns
from exporters.facts import Facts, Window

READ_CLOCKS = frozenset({"user"})
LATE_READER_CLOCKS = frozenset({"user", "kernel"})
ANY_CLOCK = frozenset({"user", "kernel", "wire"})
_FULL = 0.92


class WorkerHealth(msgspec.Struct, kw_only=True):
    """What one worker measured of itself; an entry of `run.json`'s `workers`. None where it did not measure.

    `cpu_share` is its process's CPU seconds per second of the window (1.0 is one whole core); the four counts cover
    the worker's whole life, not only the window, so that they can be held against the records that arrived.
    """

    host: str | None = None
    version: str | None = None
    loop_lag_p50_s: float | None = None
    loop_lag_p99_s: float | None = None
    cpu_share: float | None = None
    cores: int | None = None
    """Cores that this process may use; on one machine the workers share them."""
    machine_busy: float | None = None
    """Share of the machine's CPU time that anything used, 0 to 1."""
    ring_drops: int = 0
    wall_clock_step_s: float | None = None
    in_flight_mean: float | None = None
    in_flight_asked: float | None = None
    sent: int | None = None
    ok: int | None = None
    failed: int | None = None
    cancelled: int | None = None
    lost: str | None = None
    """Why the worker was not heard of again, if so: "stopped reporting"."""


@dataclass(frozen=True)
class Measured:
    """Everything the rules look at, for a whole run."""

    clock: str
    workers: int
    open_loop: bool
    ok: int
    coalesced_share: float | None
    loop_lag_p99_s: float | None
    send_lag_p99_s: float | None
    rate_requested: float | None
    rate_achieved: float | None
    rate_chance: float
    """Requests/s that a random schedule may fall short of its own rate by (three standard deviations of its count)."""
    worker_cpu_max: float | None
    ring_drop_share: float
    cancelled_share: float
    in_flight_ratio: float | None
    wall_clock_step_s: float | None
    unaccounted: tuple[str, ...]
    broken_off: bool = False
    due: int | None = None
    missing: int = 0
    """Requests of the schedule, inside the window, and how many of them were not sent as far as is known."""
    cache_hit_share: float | None = None
    cache_designed_share: float | None = None
    engine_late_share: float | None = None
    """Share of the embedded engine's steps that it handled over 20 ms after their simulated end."""
    failed_share: float = 0.0
    commonest_error: str | None = None
    machine_full: str | None = None
    """The host whose cores are all busy, if one is."""
    unreadable: tuple[int, ...] = ()
    """Numbers of the lines of requests.jsonl that cannot be read."""
    empty_window: bool = False

    @property
    def late_reader(self) -> bool:
        """Whether this program, and not the server, may have put several events into one read."""
        return self.loop_lag_p99_s is None or self.loop_lag_p99_s > 0.002

    @property
    def cache_surplus(self) -> float | None:
        """By how much the engine's prefix cache found more than the workload shares; None where that is not known."""
        if self.cache_hit_share is None or self.cache_designed_share is None:
            return None
        return self.cache_hit_share - self.cache_designed_share

    @property
    def rate_share(self) -> float | None:
        """Sent over due; without a schedule achieved over requested rate, None where random arrivals alone may have
        made up for what is missing."""
        if self.due is not None:
            return 1 - self.missing / self.due if self.due else None
        if not self.rate_requested or self.rate_achieved is None:
            return None
        if self.rate_chance and self.rate_achieved + self.rate_chance >= self.rate_requested:
            return None
        return self.rate_achieved / self.rate_requested

    @property
    def relief(self) -> str:
        """What lets the client keep up: more workers, bringing the busiest core down to about 60 %, where there is room
        for them and they would help."""
        if self.failed_share > 0.5:
            return (
                f"{self.failed_share:.0%} of the requests failed (most with {self.commonest_error}), which no more "
                "workers will mend: look at the errors first"
            )
        if self.machine_full is not None:
            return (
                f"every core of {self.machine_full} is busy, so more workers there would not help: free it of other "
                "work, or add workers on another machine (--worker --master-host)"
            )
        busiest = self.worker_cpu_max or 0.9
        more = max(1, math.ceil(self.workers * busiest / 0.6) - self.workers)
        return f"add {more} worker{'s' if more > 1 else ''} (--processes {self.workers + more})"


@dataclass(frozen=True)
class Rule:
    """One limit: broken where `value` is beyond `limit` (above it, or below it for a floor) on one of `clocks`."""

    value: Callable[[Measured], float | None]
    limit: float
    clocks: frozenset[str]
    problem: str
    mend: Callable[[Measured], str]
    floor: bool = False

    def broken_by(self, measured: Measured) -> str | None:
        """The reason in one line, or None."""
        found = self.value(measured)
        if found is None or measured.clock not in self.clocks:
            return None
        if (found >= self.limit) if self.floor else (found <= self.limit):
            return None
        return f"{self.problem.format(found=found, limit=self.limit)}; {self.mend(measured)}"


RULES: tuple[Rule, ...] = (
    Rule(
        lambda m: m.loop_lag_p99_s,
        0.005,
        READ_CLOCKS,
        "the client read its sockets late (loop lag p99 {found:.4f} s, limit {limit} s), where its clock stamps",
        lambda m: f"{m.relief}, or grant CAP_NET_RAW for the wire clock",
    ),
    Rule(
        lambda m: m.loop_lag_p99_s,
        0.1,
        ANY_CLOCK,
        "the client noticed the ends of streams late (loop lag p99 {found:.3f} s, limit {limit} s): a thinner load",
        lambda m: m.relief,
    ),
    Rule(
        lambda m: m.coalesced_share if m.late_reader else None,
        0.01,
        LATE_READER_CLOCKS,
        "{found:.1%} of the events shared a read with another (limit {limit:.0%}), so their times are not their own",
        lambda m: f"{m.relief}, or grant CAP_NET_RAW for the wire clock",
    ),
    Rule(
        lambda m: m.ring_drop_share,
        0.001,
        frozenset({"wire"}),
        "the packet ring overflowed: {found:.2%} of the events lost their packet's time (limit {limit:.1%})",
        lambda m: f"{m.relief}, or give the ring more room (--ring-packets)",
    ),
    Rule(
        lambda m: m.send_lag_p99_s,
        0.05,
        ANY_CLOCK,
        "requests left late: send lag p99 is {found:.3f} s (limit {limit} s), so the arrivals were not those asked for",
        lambda m: f"{m.relief}, or raise --max-in-flight if it was reached",
    ),
    Rule(
        lambda m: m.rate_share,
        0.97,
        ANY_CLOCK,
        "only {found:.1%} of the requests asked for were sent (limit {limit:.0%})",
        lambda m: f"{m.relief}, or raise --max-in-flight if it was reached",
        floor=True,
    ),
    Rule(
        lambda m: m.in_flight_ratio,
        0.95,
        ANY_CLOCK,
        "only {found:.1%} of the streams asked for were in flight (limit {limit:.0%})",
        lambda m: m.relief,
        floor=True,
    ),
    Rule(
        lambda m: m.worker_cpu_max,
        0.9,
        LATE_READER_CLOCKS,
        "a worker kept its core {found:.0%} busy (limit {limit:.0%})",
        lambda m: m.relief,
    ),
    Rule(
        lambda m: m.cancelled_share,
        0.01,
        ANY_CLOCK,
        "{found:.1%} of the requests were cut off before their end (limit {limit:.0%}), and the slowest are those",
        lambda m: "give them time with a longer --drain, and Locust a longer --stop-timeout",
    ),
    Rule(
        lambda m: m.wall_clock_step_s,
        0.001,
        ANY_CLOCK,
        "the wall clock was stepped by {found:.3f} s during the run (limit {limit} s)",
        lambda m: "let the machine's clock be slewed, not stepped, while measuring",
    ),
    Rule(
        lambda m: m.cache_surplus,
        0.02,
        ANY_CLOCK,
        "the engine's prefix cache served {found:.1%} of the prompt tokens more than the workload shares (limit "
        "{limit:.0%}), so these are not the latencies of new prompts",
        lambda m: "leave out --seed or add --salt fresh, so that no earlier run sent the same; or keep others off it",
    ),
    Rule(
        lambda m: m.engine_late_share,
        0.01,
        ANY_CLOCK,
        "the embedded engine fell behind real time in {found:.1%} of its steps (limit {limit:.0%}), so these latencies "
        "are not the simulated GPU's",
        lambda m: "leave it a core of its own, or lower the load",
    ),
    Rule(
        lambda m: float(m.ok),
        20,
        ANY_CLOCK,
        "only {found:.0f} requests succeeded inside the window (at least {limit:.0f} are needed for a median)",
        lambda m: m.relief if m.failed_share > 0.5 else "run longer, or send more",
        floor=True,
    ),
)


def reasons(measured: Measured) -> list[str]:
    """Why the run is not valid, each with its mend; empty where it is."""
    broken = [reason for rule in RULES if (reason := rule.broken_by(measured))]
    if measured.empty_window:
        broken.insert(0, "the run ended within its warm-up, so nothing was measured; run longer, or shorten --warmup")
    if measured.broken_off:
        broken.append(
            "the run was broken off: what was in flight then is missing, the slowest requests first; run it again"
        )
    if measured.unreadable:
        lines = f"{len(measured.unreadable)} line{'s' if len(measured.unreadable) > 1 else ''}"
        broken.append(
            f"{lines} of requests.jsonl cannot be read, the first is line {measured.unreadable[0]}: requests are "
            f"missing here; {_GATHER}"
        )
    return [*broken, *measured.unaccounted]


def lost_worker(name: str, why: str) -> str:
    """The one sentence on a worker that was not heard of again."""
    return f"{name} {why}, so its last records may be missing here; {_GATHER}"


_GATHER = "gather the journals and run: python -m exporters recover"


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
        yield f"{missing} requests that were due in the window were not heard of; {_GATHER}"
    for name, entry in health.items():
        if entry.lost is not None:
            yield lost_worker(name, entry.lost)
            continue
        if entry.sent is None:
            continue
        parts = (entry.ok or 0, entry.failed or 0, entry.cancelled or 0)
        if entry.sent != sum(parts):
            yield f"worker {name} sent {entry.sent} requests but ended {sum(parts)}; {_GATHER}"
        mine = (
            columns.worker_code == columns.workers.index(name) if name in columns.workers else np.zeros(0, dtype=bool)
        )
        arrived = tuple(int((columns.outcome[mine] == code).sum()) if mine.size else 0 for code in range(3))
        if arrived != parts:
            yield f"worker {name} counted {parts} ok, failed, cancelled but {arrived} arrived; {_GATHER}"


def _health(entry: Mapping[str, Any]) -> WorkerHealth:
    known = {k: v for k, v in entry.items() if k in WorkerHealth.__struct_fields__}
    return msgspec.convert(known, WorkerHealth, strict=False)


def _greatest(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _total(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None
