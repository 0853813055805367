"""The highest request rate that meets an SLO: bisection that follows the margin, and stops when it is sure enough.

One probe is one load test at one rate. Its *margin* is the log of its worst objective's value over its limit: below
zero the SLO is met. A probe's noise comes from redrawing its blocks of time. Rates are tried between the highest that
surely meets the SLO and the lowest that surely misses it, each under a seed of its own; a probe too near zero to tell
is no verdict, but it is the best of evidence on where the margin crosses zero. That crossing, from a regression of the
margins near it on the log of the rate, with its interval, is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from exporters.blocks import COMPARED, blocks_of
from exporters.intervals import QuantileDraws, draw_weights
from exporters.quantiles import enough
from exporters.run import Run
from exporters.student import critical
from tailgate.exits import BadInput
from tailgate.objectives import Objective

CONFIDENCE = 0.95
# A margin this far from zero is beyond what a straight line through zero describes.
_NEAR = 0.7
_SURE = 2.0
# Requests that failed or were cut off count as later than any limit; so does what has no value at all.
_MISSED = 1.5
_LEAST_ERROR = 0.01
_LARGEST_STEP = 4.0
_FEWEST_NEAR = 4
# A crossing further from its probes than this, as a log of rates, or known no better, is none.
_FURTHEST = 2.0
# Half an interval, as a share of the rate, from which on probes further off are asked too.
_VAGUE = 0.5
_WIDENED = (1, 2, 4, 8)
_DONE_SHARE = 0.9
KEEPS_UP = "done>90%"
# Ends of the bracket further apart than this many tolerances are brought together first.
_FAR = 6.0
# Where probes go around the crossing, in tolerances, in turns.
_AROUND = (-1.0, 1.0, -2.0, 2.0)


@dataclass(frozen=True)
class Judged:
    """One objective in one probe: its margin with the standard error, and the value it reached (None: no value).

    `enough` is whether the quantile has the observations beyond it that a figure needs.
    """

    margin: float
    error: float
    value: float | None
    enough: bool = True


@dataclass(frozen=True)
class Probe:
    """One load test at `rate` requests/s, each objective (by its text) judged; `done_per_s` requests were finished."""

    rate: float
    judged: Mapping[str, Judged]
    done_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    name: str = ""
    valid: bool = True

    @property
    def decided_by(self) -> str:
        """The objective with the worst margin."""
        return max(self.judged, key=lambda text: self.judged[text].margin)

    @property
    def margin(self) -> float:
        """The worst objective's."""
        return self.judged[self.decided_by].margin

    @property
    def error(self) -> float:
        """Its noise; another objective that may as well have been the worst makes the worst as uncertain as itself."""
        near = [j.error for j in self.judged.values() if j.margin + _SURE * j.error >= self.margin]
        return max(near)

    @property
    def verdict(self) -> str:
        """'met', 'missed' or 'too near to tell'."""
        if abs(self.margin) < _SURE * self.error:
            return "too near to tell"
        return "met" if self.margin < 0 else "missed"


def require_searchable(objectives: Sequence[Objective], where: str) -> None:
    """Raises `BadInput` unless every objective is one of a whole run's, on a figure that a search can judge."""
    if not objectives:
        raise BadInput(f"{where}: a search needs objectives to meet", "write them like ttft_p95<1s,itl_p95<100ms")
    for objective in objectives:
        if objective.metric == "error_share":
            continue
        if objective.metric not in COMPARED:
            raise BadInput(f"{where}: '{objective.text}' cannot be searched for", f"known: {', '.join(COMPARED)}")
        if objective.quantile is None:
            raise BadInput(
                f"{where}: '{objective.text}' bounds no quantile of the run",
                f"write it like {objective.metric}_p95<{objective.text.partition('<')[2]}",
            )


def probe_of(run: Run, rate: float, objectives: Sequence[Objective]) -> Probe:
    """What a run at `rate` says of the objectives (as `require_searchable` admits them)."""
    requests = run.summary["requests"]
    lost = (requests["failed"] + requests["cancelled"]) / max(requests["sent"], 1)
    blocks = blocks_of(run)
    weights, _ = draw_weights([blocks], [], paired=False)
    done_per_s = float(run.summary["throughput"]["requests_per_s"])
    return Probe(
        rate,
        {objective.text: _judged(objective, lost, [blocks], weights) for objective in objectives}
        | {KEEPS_UP: _kept_up(run, done_per_s)},
        done_per_s=done_per_s,
        output_tokens_per_s=float(run.summary["throughput"]["output_tokens_per_s"]),
        name=run.path.name,
        valid=run.valid,
    )


def _kept_up(run: Run, done_per_s: float) -> Judged:
    """Whether what came was also done: an engine with a growing queue carries no such load, whatever its latencies."""
    done, sent = done_per_s * run.window.seconds, run.summary["requests"]["sent"]
    share = done / sent if sent else 0.0
    # What began before the window and ended in it, or the other way round, is chance.
    chance = _SURE * math.sqrt(1 / max(sent, 1) + 1 / max(done, 1))
    behind = share < _DONE_SHARE and share * (1 + chance) < _DONE_SHARE
    return Judged(_MISSED if behind else -_MISSED, _LEAST_ERROR, share)


def _judged(objective: Objective, lost: float, side: Any, weights: Any) -> Judged:
    if objective.metric == "error_share":
        return Judged(_MISSED if lost >= objective.limit else -_MISSED, _LEAST_ERROR, lost)
    level = objective.quantile
    assert level is not None, "checked by require_searchable"
    draws = QuantileDraws(side, weights, objective.metric)
    if not draws.observations or lost > 1 - level:
        return Judged(_MISSED, _LEAST_ERROR, None)
    value = draws.whole(level)
    redrawn = draws.draws(level)
    spread = float(np.log(redrawn[redrawn > 0]).std()) if (redrawn > 0).any() else 1.0
    told = enough(draws.observations, level)
    return Judged(math.log(value / objective.limit), max(spread, _LEAST_ERROR), value, told)


@dataclass(frozen=True)
class Crossing:
    """Where the margin crosses zero: a rate and its interval (requests/s)."""

    rate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval, as a share of the rate."""
        return (self.high - self.low) / 2 / self.rate


class _Pooled(NamedTuple):
    rate: float
    margin: float
    error: float


@dataclass
class RateSearch:
    """Proposes rates and takes probes until sure, or until `most_runs` are spent. Rates in requests/s.

    `bounds` are rates below and above which nothing is tried; `start` is the first rate, from which it steps up or down
    by `step` until both sides are known: small steps suit a start that is nearly right.
    """

    start: float
    tolerance: float = 0.03
    most_runs: int = 15
    step: float = _LARGEST_STEP
    bounds: tuple[float, float] = (1e-3, 1e6)
    probes: list[Probe] = field(default_factory=list)

    def run(self, measure: Callable[[float, int], Probe], say: Callable[[Probe], None] = lambda probe: None) -> None:
        """Searches; `measure(rate, number)` runs the load test `number` (0, 1, …) at `rate`."""
        while (rate := self.next_rate()) is not None:
            probe = measure(rate, len(self.probes))
            self.probes.append(probe)
            say(probe)

    def next_rate(self) -> float | None:
        """The rate to try next; None when the search is over."""
        if len(self.probes) >= self.most_runs or self.done:
            return None
        if not self.probes:
            return self._kept(self.start)
        low, high = self.bracket
        if low is None or high is None:
            return self._step_out(low, high)
        apart = math.log(high / low)
        if apart > math.log1p(_FAR * self.tolerance):
            return self._kept(self._between(low, high, apart))
        # Near: to either side of the crossing in turns, far enough from it that a line's slope can be told.
        crossing = self._told()
        centre = math.sqrt(low * high)
        if crossing is not None:
            centre = min(max(crossing.rate, low * (1 - self.tolerance)), high * (1 + self.tolerance))
        return self._kept(centre * (1 + _AROUND[len(self.probes) % len(_AROUND)] * self.tolerance))

    @property
    def bracket(self) -> tuple[float | None, float | None]:
        """The highest rate below which nothing surely missed that met, and the lowest above it that missed."""
        pooled = self._pooled()
        met = [p.rate for p in pooled if p.margin < 0]
        missed = [p.rate for p in pooled if p.margin >= 0]
        if not met or not missed:
            return (max(met) if met else None), (min(missed) if missed else None)
        # Noise can turn neighbours over: the cut with the fewest contradictions, weighted by how sure they are.
        cuts = sorted({p.rate for p in pooled})
        edges = [0.0, *cuts]

        def contradicted(cut: float) -> float:
            return sum(abs(p.margin) / p.error for p in pooled if (p.margin >= 0) == (p.rate <= cut))

        best = min(edges, key=contradicted)
        below = [rate for rate in cuts if rate <= best]
        above = [rate for rate in cuts if rate > best]
        return (max(below) if below else None), (min(above) if above else None)

    @property
    def best(self) -> float:
        """The highest rate that meets the SLO, as well as it is known; 0 where none was found."""
        if self.crossing:
            return self.crossing.rate
        return self.bracket[0] or 0.0

    @property
    def done(self) -> bool:
        """Whether the crossing is known as well as asked for."""
        crossing = self._told()
        if crossing is not None and crossing.half_width <= self.tolerance:
            return True
        low, high = self.bracket
        if low is not None and high is None and low >= self.bounds[1] * 0.999:
            return True
        return high is not None and low is None and high <= self.bounds[0] * 1.001

    @property
    def crossing(self) -> Crossing | None:
        """Of the objective that is missed first, as the probes near the bracket tell; None while unknown.

        Where noise hides the slope of what is near, what lies further off tells it.
        """
        found = []
        for widened in _WIDENED:
            crossing = self._told(widened)
            if crossing is not None:
                found.append(crossing)
                if crossing.half_width < _VAGUE:
                    break
        return min(found, key=lambda one: one.half_width, default=None)

    def _told(self, widened: int = 1) -> Crossing | None:
        """The crossing by the probes that lie near the bracket, or `widened` times as far."""
        low, high = self.bracket
        if low is None or high is None:
            return None
        middle = math.log(low * high) / 2
        reach = widened * max(math.log(high / low), _FAR * math.log1p(self.tolerance))
        near = [p for p in self.probes if abs(math.log(p.rate) - middle) <= reach]
        found = [_crossing([(p.rate, p.judged[text]) for p in near], middle) for text in near[0].judged]
        return min((c for c in found if c is not None), key=lambda c: c.rate, default=None)

    def _pooled(self) -> list[_Pooled]:
        """Probes, those of one rate as one."""
        found: dict[float, list[Probe]] = {}
        for probe in self.probes:
            found.setdefault(probe.rate, []).append(probe)
        return [
            _Pooled(
                rate,
                float(np.mean([p.margin for p in several])),
                math.sqrt(sum(p.error**2 for p in several)) / len(several),
            )
            for rate, several in found.items()
        ]

    def _step_out(self, low: float | None, high: float | None) -> float:
        """Further out on the side that is not known yet; the last margin's size says how far."""
        factor = self.step if abs(self.probes[-1].margin) > _NEAR else math.sqrt(self.step)
        return self._kept((low or self.start) * factor if high is None else high / factor)

    def _between(self, low: float, high: float, apart: float) -> float:
        """Between halving, which is sure, and what the probes tell, which is quick; never close to either end."""
        ends = {p.rate: p.margin for p in self._pooled()}
        below, above = min(ends[low], -1e-6), max(ends[high], 1e-6)
        guess = low * math.exp(apart * -below / (above - below))
        swamped = [p.done_per_s for p in self.probes if p.rate >= high and low < p.done_per_s < 0.95 * p.rate]
        if swamped:
            # What an overloaded engine got done is an upper bound, and often near.
            guess = 0.95 * min(swamped)
        share = min(max(math.log(guess / low) / apart, 0.35), 0.65) if guess > low else 0.35
        return low * math.exp(share * apart)

    def _kept(self, rate: float) -> float:
        # Four digits: a rate that can be typed again.
        return float(f"{min(max(rate, self.bounds[0]), self.bounds[1]):.4g}")


def _crossing(near: Sequence[tuple[float, Judged]], middle: float) -> Crossing | None:
    """Where one objective's margin crosses zero: a regression on the log of the rate.

    `near` are rates and margins, `middle` the log rate they lie about. None where they do not tell.
    """
    # Clipped, not left out: leaving out only what lies far above zero would draw the crossing upwards.
    points = [(math.log(rate) - middle, min(max(j.margin, -_NEAR), _NEAR), j.error) for rate, j in near]
    if len(points) < _FEWEST_NEAR or {True, False} != {margin < 0 for _, margin, _ in points}:
        return None
    x, y, error = (np.array(column) for column in zip(*points, strict=True))
    # All probes weigh alike: one whose blocks look calm is mostly one that was lucky, and trusting it more than the
    # others would draw the crossing upwards.
    centre, height = float(x.mean()), float(y.mean())
    spread = float(((x - centre) ** 2).sum())
    slope = float(((x - centre) * y).sum()) / spread if spread > 0 else 0.0
    if slope <= 0:
        return None
    root = centre - height / slope
    residual = y - height - slope * (x - centre)
    df = len(points) - 2
    # The noise is what the line leaves over, or what the probes' own blocks say of it, whichever is more: with few
    # probes the first can be small by chance.
    variance = max(float((residual**2).sum()) / df, float(np.median(error)) ** 2)
    half = critical(1 - CONFIDENCE, df) * math.sqrt(variance * (1 / len(points) + (root - centre) ** 2 / spread))
    # Nearly flat, the line crosses zero anywhere: that is no crossing that was found.
    if abs(root) > _FURTHEST or half / slope > _FURTHEST:
        return None
    rate = math.exp(middle + root)
    return Crossing(rate, rate * math.exp(-half / slope), rate * math.exp(half / slope))
