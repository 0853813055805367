"""Baseline against candidate: each figure's ratio with an interval, a verdict on each, and one on the whole.

A metric is *worse* (or *better*) where the difference is beyond the margin and cannot be chance, all gated metrics
looked at together (Holm, Scandinavian Journal of Statistics 6, 1979; family-wise level `FAMILY_LEVEL`, two-sided;
metrics that are only shown form a family of their own); *same* where the whole 95 % interval lies within the margin;
*undecided* otherwise, with how much more would decide; *too few* where a quantile has fewer than ten observations
beyond it on either side, which gives neither number nor verdict. Only the gate decides the exit code: metrics by their
verdicts, each with a limit of its own in the margin's place where the gate names one, and bounds on the run itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from exporters.blocks import Blocks, blocks_of
from exporters.comparable import obstacles, one_slo, remarks
from exporters.facts import Facts
from exporters.gate import Held, exit_codes, gate_of, hold
from exporters.histogram import SHORTEST_S
from exporters.intervals import (
    Effect,
    QuantileDraws,
    draw_weights,
    quantile_effect,
    rate_effect,
    share_effect,
)
from exporters.quantiles import enough
from exporters.run import Run
from exporters.verdict import CONFIDENCE, FAMILY_LEVEL, judge
from tailgate.exits import BadInput, Exit, worst
from tailgate.thresholds import COMPARED, COMPARED_NAMES, FALLS_ARE_WORSE, LEVELS_COMPARED, Change, Gate, parse_gate

COMPARISON_SCHEMA = "tailgate.comparison/1"
Verdict = Literal["better", "worse", "same", "undecided", "too few"]
MARGIN = 0.05
DEFAULT_GATE = ("ttft_p95", "ttft_p99", "itl_p95", "itl_p99", "e2e_p95", "throughput", "goodput", "error_share")
METRIC_NAMES = COMPARED_NAMES


@dataclass(frozen=True)
class Measurement:
    """One side's run, reduced to what a comparison needs; made from a `Run` or read from a baseline file."""

    facts: Facts
    summary: Mapping[str, Any]
    blocks: Blocks

    @staticmethod
    def of(run: Run) -> Measurement:
        return Measurement(run.facts, run.summary, blocks_of(run))


@dataclass
class MetricComparison:
    """One figure of both sides. Latencies are seconds, throughput tokens/s, goodput requests/s, shares 0 to 1.

    `ratio`, `low` and `high` are candidate / baseline with its 95 % interval; for `error_share`, where a ratio means
    nothing, they are candidate - baseline. None where there is no number.
    """

    name: str
    unit: Literal["s", "tokens/s", "requests/s", "share"]
    gated: bool
    base: float | None = None
    candidate: float | None = None
    effect: Effect | None = field(default=None, repr=False)
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_adjusted: float | None = None
    verdict: Verdict = "too few"
    note: str = ""
    limit: float | None = None
    """How much worse the gate lets it be, in the margin's place: a share, or points for `error_share`."""
    threshold: str = ""
    """The gate's term that says so."""

    @property
    def is_difference(self) -> bool:
        return self.name == "error_share"

    @property
    def higher_is_worse(self) -> bool:
        return self.name not in FALLS_ARE_WORSE

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; an infinite value is written as 'infinite'."""
        kind = "difference" if self.is_difference else "ratio"
        return {
            "name": self.name,
            "unit": self.unit,
            "gated": self.gated,
            "baseline": _finite(self.base),
            "candidate": _finite(self.candidate),
            kind: _finite(self.ratio),
            "low": _finite(self.low),
            "high": _finite(self.high),
            "p_adjusted": self.p_adjusted,
            "verdict": self.verdict,
            "note": self.note,
            "limit": self.limit,
        }


@dataclass
class Comparison:
    """What comparing two sides came to."""

    base_label: str
    candidate_label: str
    runs: tuple[int, int]
    margin: float
    simulated: bool
    metrics: list[MetricComparison]
    refusals: list[str]
    forced: bool
    notes: list[str] = field(default_factory=list)
    """What a reader must know that is no obstacle, each one line."""
    held: list[Held] = field(default_factory=list)
    """The gate's bounds on the candidate itself."""
    missing: list[str] = field(default_factory=list)
    """Metrics that the gate names and that these runs do not have."""
    asked: bool = False
    """Whether someone chose the gate: then what it names must be told, and is no ornament."""

    @property
    def refused(self) -> bool:
        return bool(self.refusals) and not self.forced

    @property
    def gated(self) -> list[MetricComparison]:
        return [m for m in self.metrics if m.gated]

    @cached_property
    def verdict(self) -> str:
        """Of the whole: 'not comparable'; 'failed' where a bound on the run itself is broken and nothing else decides;
        'passed' where there is nothing but bounds, and all hold; else as `relative`."""
        if self.refused:
            return "not comparable"
        said = self.relative
        if any(one.met is False for one in self.held) and said not in ("worse", "mixed"):
            return "failed"
        return said or ("passed" if self.held and all(one.met for one in self.held) else "undecided")

    @cached_property
    def relative(self) -> str:
        """What the gated metrics say; 'mixed' is better here and worse there, '' that none is gated."""
        said = {m.verdict for m in self.gated}
        if "worse" in said:
            return "mixed" if "better" in said else "worse"
        if "better" in said:
            return "better"
        return "same" if said == {"same"} else "undecided" if said else ""

    @property
    def exit_code(self) -> Exit:
        """4 not comparable, or a chosen gate cannot be told; 3 a gated metric is worse or a bound broken; else 0."""
        if self.refused:
            return Exit.NOT_VALID
        codes = exit_codes(self.held)
        codes += [Exit.REGRESSION for m in self.gated if m.verdict == "worse"]
        if self.asked and (self.missing or any(m.verdict == "too few" for m in self.gated)):
            codes.append(Exit.NOT_VALID)
        return worst(codes)

    def metric(self, name: str) -> MetricComparison:
        """The figure of that name, like 'ttft_p95'. Raises KeyError where it was not compared."""
        return next((m for m in self.metrics if m.name == name), None) or _missing(name)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        from exporters.wording import sentence

        return {
            "schema": COMPARISON_SCHEMA,
            "verdict": self.verdict,
            "sentence": sentence(self),
            "exit_code": int(self.exit_code),
            "simulated": self.simulated,
            "baseline": self.base_label,
            "candidate": self.candidate_label,
            "runs": {"baseline": self.runs[0], "candidate": self.runs[1]},
            "margin": self.margin,
            "confidence": CONFIDENCE,
            "family_level": FAMILY_LEVEL,
            "refusals": self.refusals,
            "forced": self.forced,
            "notes": self.notes,
            "thresholds": [one.to_dict() for one in self.held],
            "not_measured": self.missing,
            "metrics": [m.to_dict() for m in self.metrics],
        }

    def text(self) -> str:
        """For the screen: the verdict in a sentence, then the table."""
        from exporters.wording import screen

        return screen(self)


def compare(
    base: Sequence[Run | Measurement],
    candidate: Sequence[Run | Measurement],
    margin: float = MARGIN,
    gate: Sequence[str] | Gate | None = None,
    force: bool = False,
) -> Comparison:
    """Compares the runs of two sides (several on a side are repeats). Raises `BadInput` for an unknown gate.

    `gate` is what decides: thresholds (`tailgate.thresholds`), or names of metrics (`METRIC_NAMES`); else the gate of
    the candidate's workload, else `DEFAULT_GATE`. `force` compares what should not be compared, and says so in the
    result.
    """
    if not base or not candidate:
        raise BadInput("a comparison needs runs on both sides", "name a baseline and a candidate")
    chosen, asked = _chosen(gate, candidate[0].facts)
    against = obstacles(base, candidate)
    labels = base[0].facts.label, candidate[0].facts.label
    if labels[0] == labels[1]:
        labels = "the baseline", "the candidate"
    comparison = Comparison(
        base_label=labels[0],
        candidate_label=labels[1],
        runs=(len(base), len(candidate)),
        margin=margin,
        simulated=any(run.facts.simulated for run in (*base, *candidate)),
        metrics=[],
        refusals=against,
        forced=force and bool(against),
        notes=remarks(base, candidate),
        asked=asked,
    )
    if comparison.refused:
        return comparison
    comparison.held = hold(chosen, candidate)
    sides = tuple(
        [run if isinstance(run, Measurement) else Measurement.of(run) for run in runs] for runs in (base, candidate)
    )
    changes = {change.name: change for change in chosen.changes}
    comparison.metrics = _figures(sides[0], sides[1], frozenset(changes))
    for figure in comparison.gated:
        figure.limit, figure.threshold = changes[figure.name].limit, changes[figure.name].text
    if asked:
        comparison.missing = [name for name in changes if name not in {m.name for m in comparison.metrics}]
    judge(comparison)
    return comparison


def _chosen(gate: Sequence[str] | Gate | None, facts: Facts) -> tuple[Gate, bool]:
    """The gate, and whether someone asked for it."""
    if gate is None:
        of_workload = gate_of(facts)
        usual = Gate(changes=tuple(Change(name, None, name) for name in DEFAULT_GATE))
        return (of_workload, True) if of_workload else (usual, False)
    # A list of names is an experiment's, whose repeats may be short: what they cannot tell stays untold.
    return (gate, True) if isinstance(gate, Gate) else (parse_gate(",".join(gate), "gate"), False)


def _matched(base: list[Measurement], candidate: list[Measurement]) -> bool:
    """Whether each run has one of the same seed on the other side; puts both sides into the seeds' order if so."""
    seeds = [[str(m.facts.seed) for m in side if m.facts.seed is not None] for side in (base, candidate)]
    if sorted(seeds[0]) != sorted(seeds[1]) or not len(set(seeds[0])) == len(seeds[0]) == len(base) == len(candidate):
        return False
    for side in (base, candidate):
        side.sort(key=lambda m: str(m.facts.seed))
    return True


def _figures(base: list[Measurement], candidate: list[Measurement], gate: frozenset[str]) -> list[MetricComparison]:
    """Every figure both sides have, without verdicts."""
    matched = _matched(base, candidate)
    blocks = [m.blocks for m in base], [m.blocks for m in candidate]
    weights = draw_weights(*blocks, paired=matched and base[0].facts.open_loop)
    failures = any(b.failed.any() for side in blocks for b in side)
    figures: list[MetricComparison] = []
    for metric in COMPARED:
        draws = tuple(QuantileDraws(s, w, metric) for s, w in zip(blocks, weights, strict=True))
        for name, level in LEVELS_COMPARED.items():
            figure = MetricComparison(f"{metric}_{name}", "s", f"{metric}_{name}" in gate)
            _compare_quantile(
                figure,
                draws[0],
                draws[1],
                level,
                [_exact(side, d, metric, level) for side, d in zip(blocks, draws, strict=True)],
                matched,
            )
            figures.append(figure)
        if metric in ("ttft", "e2e") and (failures or gate & {f"{metric}_p95_adjusted", f"{metric}_p99_adjusted"}):
            draws = tuple(QuantileDraws(s, w, metric, failed_too=True) for s, w in zip(blocks, weights, strict=True))
            for name, level in (("p95", 0.95), ("p99", 0.99)):
                figure = MetricComparison(f"{metric}_{name}_adjusted", "s", f"{metric}_{name}_adjusted" in gate)
                _compare_quantile(figure, draws[0], draws[1], level, [d.whole(level) for d in draws], matched)
                figures.append(figure)
    throughput = MetricComparison("throughput", "tokens/s", "throughput" in gate)
    throughput.base, throughput.candidate = (_per_s(side, "tokens") for side in blocks)
    throughput.effect = rate_effect(*blocks, weights, lambda b: b.tokens, matched)
    figures.append(throughput)
    if all(b.good is not None for side in blocks for b in side) and one_slo(base, candidate):
        goodput = MetricComparison("goodput", "requests/s", "goodput" in gate)
        goodput.base, goodput.candidate = (_per_s(side, "good") for side in blocks)
        goodput.effect = rate_effect(*blocks, weights, lambda b: b.sent if b.good is None else b.good, matched)
        if goodput.effect is None:
            _compare_without_goodput(goodput, share_effect(*blocks, weights, "good"))
        figures.append(goodput)
    errors = MetricComparison("error_share", "share", "error_share" in gate)
    errors.base, errors.candidate = (
        float(sum(b.failed.sum() for b in side)) / max(float(sum(b.sent.sum() for b in side)), 1.0) for side in blocks
    )
    errors.effect = share_effect(*blocks, weights)
    figures.append(errors)
    return figures


def _compare_quantile(
    figure: MetricComparison,
    base: QuantileDraws,
    candidate: QuantileDraws,
    level: float,
    values: Sequence[float],
    matched: bool,
) -> None:
    counts = base.observations, candidate.observations
    if not all(enough(n, level) for n in counts):
        needed = math.ceil(10 / (1 - level))
        figure.note = (
            f"needs {needed / max(min(counts), 1):.1f} times the observations" if min(counts) else "not measured"
        )
        return
    figure.base, figure.candidate = values
    if min(values) <= SHORTEST_S:
        _compare_vanishing(figure, base, candidate, level)
        return
    if not (base.always_finite(level) and candidate.always_finite(level)):
        figure.verdict = "undecided"
        _compare_infinite(figure, base, candidate, level)
        return
    figure.effect = quantile_effect(base, candidate, level, math.log(values[1] / values[0]), matched)


def _compare_infinite(figure: MetricComparison, base: QuantileDraws, candidate: QuantileDraws, level: float) -> None:
    """A tail that failures reach on one side only is a verdict where nearly every redrawing agrees."""
    lost = [float((side.draws(level) == math.inf).mean()) for side in (base, candidate)]
    figure.note = "failures reach this quantile"
    if lost[0] <= FAMILY_LEVEL / 2 and lost[1] >= 1 - FAMILY_LEVEL / 2:
        figure.verdict, figure.ratio = "worse", math.inf
    elif lost[1] <= FAMILY_LEVEL / 2 and lost[0] >= 1 - FAMILY_LEVEL / 2:
        figure.verdict, figure.ratio = "better", 0.0


def _compare_vanishing(figure: MetricComparison, base: QuantileDraws, candidate: QuantileDraws, level: float) -> None:
    """Gaps between events of one packet are none, and a figure has no ratio to nothing: a verdict only where it is
    nothing on both sides, or on one alone as nearly every redrawing agrees."""
    none = [float((side.draws(level) <= SHORTEST_S).mean()) for side in (base, candidate)]
    sure, never = 1 - FAMILY_LEVEL / 2, FAMILY_LEVEL / 2
    figure.verdict, figure.note = "undecided", "events that came together have no time between them"
    if min(none) >= sure:
        figure.verdict = "same"
    elif none[0] >= sure and none[1] <= never:
        figure.verdict, figure.ratio = "worse", math.inf
    elif none[1] >= sure and none[0] <= never:
        figure.verdict, figure.ratio = "better", 0.0


def _compare_without_goodput(figure: MetricComparison, shares: Effect) -> None:
    """Where a side met the SLO never there is no ratio; the shares of requests that met it still differ, or do not."""
    figure.verdict, figure.note = "undecided", "no request met the SLO on one side"
    if not (figure.base or figure.candidate):
        figure.verdict, figure.note = "same", "no request met the SLO on either side"
    elif shares.p_value < FAMILY_LEVEL / len(METRIC_NAMES):
        figure.verdict, figure.ratio = ("worse", 0.0) if figure.base else ("better", math.inf)


def _exact(side: Sequence[Blocks], draws: QuantileDraws, metric: str, level: float) -> float:
    """One run's own quantile is known exactly; that of several runs pooled comes from their histograms."""
    if len(side) == 1:
        return side[0].exact[metric][level]
    pooled = draws.whole(level)
    return pooled if pooled > SHORTEST_S else 0.0


def _per_s(side: Sequence[Blocks], what: str) -> float:
    return float(sum(getattr(b, what).sum() for b in side)) / sum(b.block_s * b.count for b in side)


def _finite(value: float | None) -> float | str | None:
    return "infinite" if value is not None and math.isinf(value) else value


def _missing(name: str) -> MetricComparison:
    raise KeyError(name)
