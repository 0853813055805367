"""From effects to verdicts: intervals, the correction for several metrics, and what would decide what is undecided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from exporters.intervals import Effect
from exporters.student import critical

if TYPE_CHECKING:
    from exporters.compare import Comparison, MetricComparison

FAMILY_LEVEL = 0.04
"""Two-sided, so that a false "worse" comes in at most half as many comparisons."""
CONFIDENCE = 0.95
ERROR_MARGIN = 0.01


def judge(comparison: Comparison) -> None:
    """Gives every figure its interval and its verdict; those that decide, and the others, corrected for together."""
    for gated in (True, False):
        judge_family([(comparison, m) for m in comparison.metrics if m.gated == gated])


def judge_family(family: Sequence[tuple[Comparison, MetricComparison]], confidence: float = CONFIDENCE) -> None:
    """Gives each figure (of the comparison beside it) its interval and a verdict, all of them corrected for together.

    Figures without an effect keep what they have. Where nothing failed there is nothing to test, and nothing that would
    make the others' tests stricter.
    """
    judged = [(c, m, m.effect) for c, m in family if m.effect is not None]
    ordered = sorted((item for item in judged if not _no_failures(item[1])), key=lambda item: item[2].p_value)
    p_so_far = 0.0
    for rank, (comparison, figure, effect) in enumerate(ordered):
        p_so_far = max(p_so_far, min(1.0, effect.p_value * (len(ordered) - rank)))
        figure.p_adjusted = p_so_far
        _give_verdict(figure, effect, comparison, len(ordered), confidence)
    for comparison, figure, effect in judged:
        if _no_failures(figure):
            _give_verdict(figure, effect, comparison, 1, confidence)


def _no_failures(figure: MetricComparison) -> bool:
    return figure.is_difference and not (figure.base or figure.candidate)


def _give_verdict(
    figure: MetricComparison, effect: Effect, comparison: Comparison, family: int, confidence: float
) -> None:
    margins = _margins(figure, comparison.margin)
    half = effect.half_width(confidence)
    bounds = effect.estimate - half, effect.estimate + half
    shown = [x if figure.is_difference else _exp(x) for x in (effect.estimate, *bounds)]
    figure.ratio, figure.low, figure.high = shown
    beyond = not -margins[0] <= effect.estimate <= margins[1]
    if _no_failures(figure):
        figure.verdict = "same" if _within(figure, bounds, margins) else "undecided"
        figure.note = "nothing failed" if figure.verdict == "same" else "nothing failed, of too few to say"
    elif beyond and figure.p_adjusted is not None and figure.p_adjusted < FAMILY_LEVEL:
        figure.verdict = "worse" if (effect.estimate > 0) == figure.higher_is_worse else "better"
    elif _within(figure, bounds, margins):
        figure.verdict = "same"
    else:
        figure.verdict = "undecided"
        margin = margins[1] if effect.estimate > 0 else margins[0]
        figure.note = _what_would_decide(effect, margin, half, max(comparison.runs), family)


def _within(figure: MetricComparison, bounds: tuple[float, float], margins: tuple[float, float]) -> bool:
    """Whether the interval lies within the margins; of a limit that someone set, only its own side matters."""
    low, high = -margins[0] <= bounds[0], bounds[1] <= margins[1]
    if figure.limit is None:
        return low and high
    return high if figure.higher_is_worse else low


def _margins(figure: MetricComparison, margin: float) -> tuple[float, float]:
    """How far down and how far up a difference does not matter: logs of ratios, or points for `error_share`."""
    usual = ERROR_MARGIN if figure.is_difference else math.log1p(margin)
    if figure.limit is None:
        return usual, usual
    if figure.is_difference:
        return usual, figure.limit
    return (usual, math.log1p(figure.limit)) if figure.higher_is_worse else (-math.log1p(-figure.limit), usual)


def _what_would_decide(effect: Effect, margin: float, half: float, runs: int, family: int) -> str:
    """How many runs a side, like those there are, would make the interval short enough (its width goes with 1/sqrt)."""
    distance = abs(effect.estimate)
    if distance > margin:
        factor = (critical(FAMILY_LEVEL / family, effect.verdict_df + 4) * effect.verdict_error / distance) ** 2
    else:
        factor = (half / max(margin - distance, 1e-9)) ** 2
    needed = max(runs + 1, math.ceil(runs * factor))
    if needed > 50:
        return "too near the margin to tell: more than 50 runs a side"
    return f"about {needed} such runs a side would decide"


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))
