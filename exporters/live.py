"""A run as it goes, in numbers that do not grow with it: what Prometheus and the web UI's tab both show.

Only what `summary.json` counts is counted here, requests inside the window. Quantiles come from log-linear histograms
(within 0.4 %) until `finish` brings the summary, whose exact ones replace them. `""` as a class stands for all of them
together, never for an average; no class can have that name.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from exporters import quality
from exporters.blocks import COMPARED, LEVELS_COMPARED
from exporters.columns import Columns
from exporters.compare import Comparison, Measurement
from exporters.counted import Ended, Latencies, Tally, count_ended
from exporters.facts import Facts
from exporters.histogram import LatencyHistogram
from exporters.quality import Measured, WorkerHealth
from exporters.quantiles import enough
from exporters.record import RequestRecord

WHOLE = ""
CHARTED = ("ttft", "itl")
CHARTED_LEVELS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_SLICE_S = 2.0
_MOST_POINTS = 180
_MOST_CHARTED_CLASSES = 16
_LONGEST_TRAIL = 90
_MOST_WAITING = 5000
_BEHIND = frozenset({"simulated_behind_steps_total", "step_tokens_count"})

Point = tuple[float, float | None, float | None, float | None]
Statistics = Mapping[str, float | int | None]


class _Course:
    """One latency over time: a point a slice, each level resting on the last observations that are enough for it."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._open = LatencyHistogram()
        self._trail: deque[LatencyHistogram] = deque(maxlen=_LONGEST_TRAIL)

    def add(self, values: LatencyHistogram) -> None:
        self._open.merge(values)

    def close_slice(self, at_s: float) -> None:
        self._trail.append(self._open)
        self._open = LatencyHistogram()
        found: dict[str, float | None] = dict.fromkeys(CHARTED_LEVELS)
        so_far, used = LatencyHistogram(), 0
        for name, level in CHARTED_LEVELS.items():
            while used < len(self._trail) and not enough(so_far.count, level):
                used += 1
                so_far.merge(self._trail[-used])
            if enough(so_far.count, level):
                found[name] = float(so_far.quantiles([level])[0])
        while len(self._trail) > used:
            self._trail.popleft()
        self.points.append((at_s, *found.values()))  # type: ignore[arg-type]

    def thin(self) -> None:
        """Every second point; each stands for itself, so nothing is averaged."""
        del self.points[::2]


@dataclass
class Worker:
    """A load generator, by what it last said."""

    host: str = ""
    clock: str = ""
    in_flight: int = 0
    health: WorkerHealth = field(default_factory=WorkerHealth)


class BaselineFigures:
    """What the baseline's runs came to, in the form that a live run is held against."""

    def __init__(self, runs: Sequence[Measurement]) -> None:
        self.label = runs[0].facts.label
        blocks = [run.blocks for run in runs]
        seconds = sum(b.block_s * b.count for b in blocks)
        self.output_tokens_per_s = float(sum(b.tokens.sum() for b in blocks)) / seconds
        sent = float(sum(b.sent.sum() for b in blocks))
        good = [b.good for b in blocks]
        self.goodput_share = (
            float(sum(g.sum() for g in good if g is not None)) / sent
            if sent and all(g is not None for g in good)
            else None
        )
        self.histograms: dict[str, LatencyHistogram] = {}
        self.quantiles: dict[tuple[str, str, str], float] = {}
        for metric in COMPARED:
            pooled = LatencyHistogram()
            for b in blocks:
                counts = b.latencies[metric]
                pooled.counts[counts.buckets] += counts.counts.sum(axis=0)
            # Its extremes are not kept; the buckets' own bounds do.
            pooled.least_s, pooled.greatest_s = 0.0, np.inf
            self.histograms[metric] = pooled
            for name, level in LEVELS_COMPARED.items():
                if enough(pooled.count, level):
                    exact = blocks[0].exact[metric][level] if len(blocks) == 1 else float(pooled.quantiles([level])[0])
                    self.quantiles[(metric, WHOLE, name)] = exact
        if len(runs) == 1:
            for cls, part in (runs[0].summary.get("classes") or {}).items():
                for metric in COMPARED:
                    found = (part.get("metrics") or {}).get(f"{metric}_s") or {}
                    for name in LEVELS_COMPARED:
                        if found.get(name) is not None:
                            self.quantiles[(metric, cls, name)] = float(found[name])


class LiveRun:
    """One run. Not for several threads at once: the master's greenlets, or one program.

    `meta` is its `run.json`. `now_s` is a clock that only goes forward.
    """

    def __init__(self, meta: Mapping[str, Any], now_s: Callable[[], float] = time.monotonic) -> None:
        self.meta = meta
        self.facts = Facts(meta)
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._waiting: defaultdict[tuple[str, str], list[Latencies]] = defaultdict(list)
        self._waiting_count = 0
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """Ended ones by class, outcome and kind of error."""
        self.tokens: Counter[tuple[str, str]] = Counter()
        self.good: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.workers: dict[str, Worker] = {}
        self.lost: Callable[[], Mapping[str, str]] = dict
        """Workers that are gone, by name, and why one thinks so."""
        self.baseline: BaselineFigures | None = None
        self.comparison: Comparison | None = None
        self.summary: Mapping[str, Any] | None = None
        self.ending = False
        self._engine: list[tuple[float, float]] = []
        self._events = 0
        self._coalesced = 0
        self._now_s = now_s
        self._window_began_s = self._slice_began_s = now_s() + _warm_up_left_s(meta)
        self._ended_s: float | None = None
        self._slice_s = _SLICE_S
        self._courses: dict[tuple[str, str], _Course] = {}

    def observe(self, records: Iterable[RequestRecord]) -> None:
        """Counts finished requests, each of which must come once."""
        self.take(Columns.of(records))

    def take(self, columns: Columns) -> None:
        """As `observe`."""
        self.add(count_ended(columns, self.facts))

    def add(self, ended: Mapping[str, Ended]) -> None:
        """Requests that were counted elsewhere, by class."""
        for name, part in ended.items():
            self._events += part.events
            self._coalesced += part.coalesced
            self.sent[name] += part.sent
            self.good[name] += part.good
            self.tokens[name, "output"] += part.output_tokens
            self.tokens[name, "prompt"] += part.prompt_tokens
            for outcome, error, number in part.outcomes:
                self.requests[name, outcome, error] += number
            for metric, latencies in part.latencies.items():
                self._waiting[metric, name].append(latencies)
                self._waiting_count += 1
        if self._waiting_count >= _MOST_WAITING:
            self._add_up()

    @property
    def tallies(self) -> Mapping[tuple[str, str], Tally]:
        """By metric and class, of those that have any value."""
        self._add_up()
        return self._tallies

    def see_engine(self, sample: Mapping[str, Any]) -> None:
        """A sample of the engine's own metrics; those of the embedded one tell whether it keeps up with real time."""
        if self._now_s() >= self._window_began_s and sample.keys() >= _BEHIND:
            # Counters: the first and the last are all that is needed.
            self._engine[1:] = [(sample["simulated_behind_steps_total"], sample["step_tokens_count"])]

    def tick(self) -> None:
        """Closes the slice of time that is over, if it is; call it about once a second."""
        now = self._now_s()
        if self._ended_s is not None or now - self._slice_began_s < self._slice_s:
            return
        self._slice_began_s = now
        self._add_up()
        for course in self._courses.values():
            course.close_slice(now - self._window_began_s)
        if any(len(course.points) >= _MOST_POINTS for course in self._courses.values()):
            self._slice_s *= 2
            for course in self._courses.values():
                course.thin()

    def finish(self, summary: Mapping[str, Any], comparison: Comparison | None = None) -> None:
        """The run is over: its summary, and what the baseline says to it."""
        self._ended_s = self._now_s()
        self.summary = summary
        self.comparison = comparison
        for worker in self.workers.values():
            worker.in_flight = 0

    @property
    def seconds(self) -> float:
        """Since the warm-up ended; of the whole window, once it is over."""
        if self.summary is not None:
            return float(self.summary["window"]["seconds"])
        now = self._now_s() if self._ended_s is None else self._ended_s
        return max(now - self._window_began_s, 0.0)

    @property
    def in_flight(self) -> int:
        return sum(worker.in_flight for worker in self.workers.values())

    @property
    def classes(self) -> list[str]:
        return sorted(self.sent)

    def statistics(self, metric: str, cls: str) -> Statistics:
        """`{count, mean, min, max, p50, …}` of a metric like "ttft": exact once the run is over."""
        if self.summary is not None:
            part = self.summary if cls == WHOLE else self.summary["classes"].get(cls, {})
            found = part.get("metrics", {}).get(f"{metric}_s")
            if found is not None:
                return dict(found)
        tally = self.tallies.get((metric, cls))
        return (tally.fine if tally else LatencyHistogram()).statistics()

    def goodput_share(self, cls: str) -> float | None:
        """Share of all requests that met the SLO; None where there is none, or nothing to share."""
        if self.facts.slo is None:
            return None
        sent = sum(self.sent.values()) if cls == WHOLE else self.sent[cls]
        good = sum(self.good.values()) if cls == WHOLE else self.good[cls]
        return good / sent if sent else None

    def over_time(self, metric: str, cls: str) -> list[Point]:
        """`(seconds since the warm-up ended, p50, p95, p99)`, at most 180; None where a level has too few."""
        course = self._courses.get((metric, cls))
        return list(course.points) if course else []

    def reasons(self) -> list[str]:
        """Why the measurement is not valid; while the run goes, by what cannot mend itself any more."""
        if self.summary is not None:
            return [str(reason) for reason in self.summary["quality"]["reasons"]]
        health = [worker.health for worker in self.workers.values()]
        asked = [h.in_flight_asked for h in health if h.in_flight_asked is not None]
        flying = [h.in_flight_mean for h in health if h.in_flight_mean is not None]
        lag = self.tallies.get(("send_lag", WHOLE))
        late = self.facts.open_loop and lag is not None and enough(lag.fine.count, 0.99)
        return quality.reasons(
            Measured(
                clock=self.facts.clock or "user",
                workers=max(len(self.workers), 1),
                open_loop=self.facts.open_loop,
                # How many have succeeded, or were sent a second, is judged at the end.
                ok=sys.maxsize,
                coalesced_share=self._coalesced / self._events if self._events else None,
                loop_lag_p99_s=_greatest(h.loop_lag_p99_s for h in health),
                send_lag_p99_s=float(lag.fine.quantiles([0.99])[0]) if late and lag is not None else None,
                rate_requested=None,
                rate_achieved=None,
                rate_chance=0.0,
                worker_cpu_max=_greatest(h.cpu_share for h in health),
                ring_drop_share=sum(h.ring_drops for h in health) / self._events if self._events else 0.0,
                cancelled_share=0.0,
                in_flight_ratio=sum(flying) / sum(asked) if asked and sum(asked) and self._events else None,
                wall_clock_step_s=_greatest(h.wall_clock_step_s for h in health),
                engine_late_share=self._engine_late_share(),
                unaccounted=tuple(f"{name} {why}" for name, why in self.lost().items()),
            )
        )

    def _engine_late_share(self) -> float | None:
        if len(self._engine) < 2 or self._engine[1][1] <= self._engine[0][1]:
            return None
        (late, steps), (later, more) = self._engine
        return (later - late) / (more - steps)

    def _course(self, metric: str, cls: str) -> _Course | None:
        known = self._courses.get((metric, cls))
        if known is None and (cls == WHOLE or len(self._courses) < 2 * _MOST_CHARTED_CLASSES):
            known = self._courses[(metric, cls)] = _Course()
        return known

    def _add_up(self) -> None:
        """Puts what waits into the tallies and the open slice of time: many reports at once cost what one does."""
        waiting, self._waiting, self._waiting_count = self._waiting, defaultdict(list), 0
        for (metric, name), parts in waiting.items():
            found = Tally.of(parts)
            for cls in (name, WHOLE):
                self._tallies.setdefault((metric, cls), Tally()).merge(found)
                if metric in CHARTED and (course := self._course(metric, cls)) is not None:
                    course.add(found.fine)


def _warm_up_left_s(meta: Mapping[str, Any]) -> float:
    window = meta.get("window")
    start_ns = window.get("start_ns") if isinstance(window, Mapping) else None
    return max(start_ns * 1e-9 - time.time(), 0.0) if start_ns else 0.0


def _greatest(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)
