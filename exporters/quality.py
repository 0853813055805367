"""Whether a run may be believed: what the client measured of itself, held against one table of limits.

Only what spoils a figure makes a run invalid, and that depends on the clock: with the wire clock an event's time is
taken before this program reads it, so a late reader does no harm to it, while a packet ring that overflowed does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

READ_CLOCKS = frozenset({"user"})
LATE_READER_CLOCKS = frozenset({"user", "kernel"})
ANY_CLOCK = frozenset({"user", "kernel", "wire"})


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
        "requests that succeeded inside the window: {found:.0f} (at least {limit:.0f} are needed for a median)",
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
            f"missing here; {GATHER}"
        )
    return [*broken, *measured.unaccounted]


def lost_worker(name: str, why: str) -> str:
    """The one sentence on a worker that was not heard of again."""
    return f"{name} {why}, so its last records may be missing here; {GATHER}"


GATHER = "gather the journals and run: python -m exporters recover"
