"""How sure a comparison is: the log ratio of two sides' figures with its standard error and degrees of freedom.

Three sources of noise are told apart:

- *within runs*: blocks of time (`exporters.blocks`) are drawn anew, with replacement, inside each run; two neighbours
  at a time, as near its limit a queue remembers longer than a block (the circular block bootstrap: Politis and Romano,
  in Exploring the Limits of Bootstrap, 1992). Where both sides replayed the same schedule, a pair of runs draws the
  same blocks, so that what the schedule did to both cancels.
- *between repeats, as seen*: what the spread of repeated runs shows beyond what their blocks explain; where runs of the
  sides share their seeds, the spread of their differences.
- *between launches, as allowed for*: two launches of one config differ by more than one run can show. Intervals and
  verdicts allow for a spread of `LAUNCH_SPEED` in the launches' speed, held with the weight of `LAUNCH_DF` repeats and
  corrected by those that are there; so a single run a side gives a verdict on large differences only.

How strongly a figure answers to a launch's speed is read off the runs themselves. 1 % less speed makes every latency
1 % longer and is to the queue 1 % more load. The answer to load shows between blocks: chance varies the load of n
requests that come independently by sqrt(`WORK` / n), where `WORK` is 1 + the squared variation of a request's work,
here that of work spread evenly from nothing to twice its mean; the spread of the figure divided by it is the answer.
The two are added like errors that go together by a quarter (`TOGETHER`): their plain sum is too much, since part of a
latency answers to neither, and the spread is not the load's alone; their squares are too little, since a slow launch is
slow in both. (Embedded engine, launches that really differ: 2 and 6 is what an E2E p95 answers at 60 % and 90 % load,
1.4 and 4.2 a TTFT p95. With the same seeds the sum made intervals that held in 97 to 100 % at 60 % load, the squares
alone in 90 to 99 %; stalls aside.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from exporters import student
from exporters.blocks import Blocks
from exporters.histogram import BUCKETS, EDGES_S, RELATIVE_ERROR
from exporters.quantiles import Floats

REPLICATES = 600
LAUNCH_SPEED = 0.0075
LAUNCH_DF = 8
WORK = 4 / 3
TOGETHER = 1 / 4
NEIGHBOURS = 2
_DF_LEFT = 2 / 3
"""Overlapping pairs of blocks know a variance as well as two thirds as many blocks apart (the sum of their squared
weights at lags -1, 0 and 1 is 3 / 2)."""

Side = Sequence[Blocks]
_UPPER_EDGES_S = np.append(EDGES_S[1:], EDGES_S[-1] * 2)


@dataclass(frozen=True)
class Effect:
    """A difference `estimate` (candidate - baseline, of logs or of shares) with the noise around it.

    `error` and `df` are what was seen; `verdict_error` and `verdict_df` allow for launches as well, and they are what
    intervals rest on: with two launches a side, 1 % apart in speed, intervals without that hold in 65 to 85 % of cases.
    """

    estimate: float
    error: float
    df: float
    verdict_error: float
    verdict_df: float

    def half_width(self, confidence: float) -> float:
        """Half the interval of that confidence, launches allowed for."""
        return student.critical(1 - confidence, self.verdict_df) * self.verdict_error

    @property
    def p_value(self) -> float:
        """Two-sided, for no difference at all, launches allowed for."""
        if self.verdict_error == 0:
            return 0.0 if self.estimate else 1.0
        return student.two_sided_p(self.estimate / self.verdict_error, self.verdict_df)


def draw_weights(base: Side, candidate: Side, paired: bool, seed: int = 0) -> tuple[list[Floats], list[Floats]]:
    """For each run how often each block is drawn: replicates x blocks, a replicate adding up to the number of blocks.

    A block is drawn with the one after it, the last with the first. Paired runs with equal blocks draw alike.
    """
    rng = np.random.default_rng(seed)

    def draw(run: Blocks) -> Floats:
        starts = math.ceil(run.count / NEIGHBOURS)
        first = rng.multinomial(starts, np.full(run.count, 1 / run.count), size=REPLICATES).astype(np.float64)
        drawn: Floats = sum((np.roll(first, i, axis=1) for i in range(NEIGHBOURS)), np.zeros_like(first))
        return drawn * (run.count / (starts * NEIGHBOURS))

    of_base = [draw(run) for run in base]
    of_candidate = [
        of_base[i] if paired and i < len(base) and base[i].count == run.count else draw(run)
        for i, run in enumerate(candidate)
    ]
    return of_base, of_candidate


class QuantileDraws:
    """One metric of one side: its quantiles under every redrawing of blocks, pooled over the side's runs.

    With `failed_too`, failed requests count as observations that are later than any other.
    """

    def __init__(self, side: Side, weights: Sequence[Floats], metric: str, *, failed_too: bool = False) -> None:
        self._side = side
        buckets = np.unique(np.concatenate([run.latencies[metric].buckets for run in side]))
        self._edges = EDGES_S[buckets], _UPPER_EDGES_S[buckets]
        self._tables = [run.latencies[metric].spread(buckets) for run in side]
        if failed_too:
            self._edges = np.append(self._edges[0], math.inf), np.append(self._edges[1], math.inf)
            self._tables = [np.column_stack((table, run.failed)) for table, run in zip(self._tables, side, strict=True)]
        upto = [np.cumsum(table, axis=1) for table in self._tables]
        redrawn = [w @ counts for w, counts in zip(weights, upto, strict=True)]
        self._redrawn = [_Cumulated(counts) for counts in redrawn]
        self._pooled = _Cumulated(np.sum(redrawn, axis=0)) if len(redrawn) > 1 else self._redrawn[0]
        self._runs = [_Cumulated(counts.sum(axis=0, keepdims=True)) for counts in upto]
        self._whole = _Cumulated(np.sum([counts.sum(axis=0, keepdims=True) for counts in upto], axis=0))

    @property
    def requests(self) -> float:
        """Requests sent, of all runs."""
        return float(sum(run.sent.sum() for run in self._side))

    @property
    def observations(self) -> int:
        return int(sum(table.sum() for table in self._tables))

    def whole(self, level: float) -> float:
        """The quantile with no block redrawn, pooled over runs."""
        return float(self._whole.quantile(level, self._edges)[0])

    def by_run(self, level: float) -> Floats:
        """The quantile of each run."""
        return np.array([run.quantile(level, self._edges)[0] for run in self._runs])

    def draws(self, level: float) -> Floats:
        """The pooled quantile in each replicate."""
        return self._pooled.quantile(level, self._edges)

    def draws_by_run(self, level: float) -> list[Floats]:
        """The quantile of each run in each replicate."""
        return [run.quantile(level, self._edges) for run in self._redrawn]

    def always_finite(self, level: float) -> bool:
        """Whether failures reach the quantile nowhere: not in the whole, not in any run, not in any replicate."""
        drawn = [self.draws(level), *self.draws_by_run(level), self.by_run(level), np.array([self.whole(level)])]
        return all(bool(np.isfinite(values).all()) for values in drawn)

    def df(self, level: float) -> float:
        """Degrees of freedom: the blocks that really hold what lies beyond the quantile, less one a run.

        Counted as (sum e)^2 / sum e^2 over each block's share e of it: one burst that holds the whole tail is one, and
        then the interval is as wide as it must be. (With a floor of 3 the 95 % interval held the truth in 75 to 85 % of
        runs at 90 % load; without one in 92 to 97 %.)
        """
        limit = self.whole(level)
        lower, upper = self._edges
        beyond = lower >= limit * (1 - RELATIVE_ERROR)
        if not any(table[:, beyond].any() for table in self._tables):
            beyond = upper >= limit
        held = np.concatenate([table[:, beyond].sum(axis=1) for table in self._tables])
        squares = float((held**2).sum())
        holding = float(held.sum()) ** 2 / squares if squares else 0.0
        return max(1.0, holding - len(self._tables))


class _Cumulated:
    """Many histograms over the same buckets, one a row, each as counts up to and with a bucket; asked for quantiles."""

    def __init__(self, upto: Floats) -> None:
        self._upto = upto
        self._found: dict[float, Floats] = {}
        self._total = np.maximum(upto[:, -1], 1e-9) if upto.shape[1] else np.full(len(upto), 1e-9)
        self._rows = np.arange(len(upto))

    def quantile(self, level: float, edges: tuple[Floats, Floats]) -> Floats:
        """One a row, interpolated between the `edges` (lower, upper) of the bucket that holds it."""
        if level not in self._found:
            self._found[level] = self._search(level, edges)
        return self._found[level]

    def _search(self, level: float, edges: tuple[Floats, Floats]) -> Floats:
        upto, rank = self._upto, self._total * level
        # All rows are searched at once, by halving: the first bucket up to which there are `rank` observations.
        at, last = np.zeros(len(upto), dtype=np.int64), np.full(len(upto), upto.shape[1] - 1)
        for _ in range(upto.shape[1].bit_length()):
            middle = (at + last) // 2
            short = upto[self._rows, middle] < rank
            at, last = np.where(short & (at < last), middle + 1, at), np.where(short, last, middle)
        before = np.where(at > 0, upto[self._rows, at - 1], 0.0)
        held = np.maximum(upto[self._rows, at] - before, 1e-9)
        low, high = edges[0][at], edges[1][at]
        with np.errstate(invalid="ignore"):
            inside = low + (high - low) * np.clip((rank - before) / held, 0, 1)
        found: Floats = np.where(np.isinf(low), np.inf, inside)
        return found


def quantile_effect(
    base: QuantileDraws, candidate: QuantileDraws, level: float, estimate: float, matched: bool = False
) -> Effect:
    """The effect on a quantile's logarithm; `estimate` is the log ratio of the exact values.

    `matched`: the sides have as many runs, and run i of one had the seed of run i of the other.
    """
    logs = [np.log(side.draws(level)) for side in (base, candidate)]
    drawn = logs[1] - logs[0]
    launch = _launch_spread(logs, (base.requests, candidate.requests))
    runs = [(np.log(side.by_run(level)), [np.log(d) for d in side.draws_by_run(level)]) for side in (base, candidate)]
    # Buckets have a width: no two quantiles are known to be closer than that allows.
    grain = RELATIVE_ERROR / math.sqrt(3)
    df = base.df(level), candidate.df(level)
    return _effect(estimate, drawn, runs, df, _blocks_a_run(base), grain, matched, launch)


def rate_effect(
    base: Side,
    candidate: Side,
    weights: tuple[list[Floats], list[Floats]],
    amount: Callable[[Blocks], Floats],
    matched: bool = False,
) -> Effect | None:
    """The effect on the logarithm of an amount per second (tokens, good requests); None where a side has none.

    `matched` as in `quantile_effect`.
    """
    totals = [_rate(side, amount) for side in (base, candidate)]
    if min(totals) <= 0:
        return None
    draws = [_rate_draws(side, w, amount) for side, w in zip((base, candidate), weights, strict=True)]
    runs = [
        (
            np.log([max(_rate([run], amount), 1e-12) for run in side]),
            [np.log(np.maximum(_rate_draws([run], [w], amount), 1e-12)) for run, w in zip(side, of, strict=True)],
        )
        for side, of in zip((base, candidate), weights, strict=True)
    ]
    logs = [np.log(np.maximum(one, 1e-12)) for one in draws]
    launch = _launch_spread(logs, [float(sum(run.sent.sum() for run in side)) for side in (base, candidate)])
    df = tuple(float(sum(run.count - 1 for run in side)) for side in (base, candidate))
    least = min(run.count for side in (base, candidate) for run in side)
    estimate = math.log(totals[1] / totals[0])
    return _effect(estimate, logs[1] - logs[0], runs, (df[0], df[1]), least, 0.0, matched, launch)


def share_effect(
    base: Side, candidate: Side, weights: tuple[list[Floats], list[Floats]], what: str = "failed"
) -> Effect:
    """The effect on the share of requests that `what` (`failed`, `good`), as a difference of shares."""
    shares, draws, floors = [], [], []
    for side, of in zip((base, candidate), weights, strict=True):
        failed, sent = (sum(float(getattr(run, n).sum()) for run in side) for n in (what, "sent"))
        shares.append(failed / max(sent, 1))
        redrawn = [sum(w @ getattr(run, n) for run, w in zip(side, of, strict=True)) for n in (what, "sent")]
        draws.append(redrawn[0] / np.maximum(redrawn[1], 1))
        guess = (failed + 1) / (sent + 2)
        floors.append(guess * (1 - guess) / max(sent, 1))
    # No failure seen is not no failure possible: never surer than as many independent trials would be.
    error = math.sqrt(max(float((draws[1] - draws[0]).var()), sum(floors)))
    df = float(sum(run.count - 1 for side in (base, candidate) for run in side))
    return Effect(shares[1] - shares[0], error, df, error, df)


def _effect(
    estimate: float,
    drawn: Floats,
    runs: Sequence[tuple[Floats, list[Floats]]],
    dfs: tuple[float, float],
    least_blocks: int,
    grain: float,
    matched: bool,
    launch: float,
) -> Effect:
    # Drawing B blocks out of B, some at a time, sees (B - some) / B of their variance.
    small = least_blocks / max(least_blocks - NEIGHBOURS, 1)
    within = float(np.var(drawn)) * small + grain**2
    repeats = [len(of_runs) for of_runs, _ in runs]
    seen_df = repeats[0] - 1 if matched else sum(repeats) - 2
    shared = sum(1 / n for n in repeats)
    seen = 0.0
    if seen_df > 0:
        if matched:
            # What one seed did to both of its runs is no noise: only how far apart they are can be.
            differences = [runs[1][0] - runs[0][0]]
            redrawn = [b - a for a, b in zip(runs[0][1], runs[1][1], strict=True)]
            parts = 2
        else:
            differences = [of_runs for of_runs, _ in runs]
            redrawn = [d for _, draws in runs for d in draws]
            parts = 1
        spread = sum(float(((d - d.mean()) ** 2).sum()) for d in differences) / seen_df
        explained = float(np.mean([np.var(d) for d in redrawn])) * small
        seen = max(0.0, spread - explained) / parts
    within_df = max(1.0, _DF_LEFT * ((dfs[0] + dfs[1]) / 2 if min(dfs) < 2 else dfs[0] + dfs[1]))
    allowed = (LAUNCH_DF * launch**2 + max(seen_df, 0) * seen) / (LAUNCH_DF + max(seen_df, 0))
    error, df = _combined((within, within_df), (seen * shared, max(seen_df, 1)))
    verdict_error, verdict_df = _combined(
        (within, within_df), (max(allowed, seen) * shared, LAUNCH_DF + max(seen_df, 0))
    )
    return Effect(estimate, error, df, verdict_error, verdict_df)


def _launch_spread(logs: Sequence[Floats], requests: Sequence[float]) -> float:
    """How far launches of one config may lie apart in this figure's logarithm; see the module's head.

    `logs` are both sides' draws, not their difference: pairing takes out of it what the schedule did, by which the
    answer to load is measured.
    """
    by_chance = WORK * sum(1 / max(n, 1.0) for n in requests)
    by_load = math.sqrt(sum(float(np.var(one)) for one in logs) / by_chance)
    return LAUNCH_SPEED * math.sqrt(1 + by_load**2 + 2 * TOGETHER * by_load)


def _combined(*parts: tuple[float, float]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum of variances (Satterthwaite, Biometrics Bulletin 2, 1946)."""
    variance = sum(v for v, _ in parts)
    if variance == 0:
        return 0.0, parts[0][1]
    return math.sqrt(variance), variance**2 / sum(v**2 / df for v, df in parts if v)


def _blocks_a_run(draws: QuantileDraws) -> int:
    return min(run.count for run in draws._side)


def _rate(side: Side, amount: Callable[[Blocks], Floats]) -> float:
    return float(sum(amount(run).sum() for run in side)) / sum(run.block_s * run.count for run in side)


def _rate_draws(side: Side, weights: Sequence[Floats], amount: Callable[[Blocks], Floats]) -> Floats:
    total: Any = sum(w @ amount(run) for run, w in zip(side, weights, strict=True))
    return np.asarray(total / sum(run.block_s * run.count for run in side), dtype=np.float64)


assert BUCKETS == EDGES_S.size == _UPPER_EDGES_S.size
