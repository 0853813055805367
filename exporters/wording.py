"""A comparison in words and as a table, for the screen; the report says the same in its own way."""

from __future__ import annotations

import math
from collections.abc import Sequence

from exporters.compare import CONFIDENCE, Comparison, MetricComparison
from exporters.gate import decision_of
from exporters.histogram import SHORTEST_S

_METRICS = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E", "stall": "stall"}
_WHOLE = {"throughput": "throughput", "goodput": "goodput", "error_share": "error share"}


def title(name: str) -> str:
    """'ttft_p95' as 'TTFT p95'."""
    if name in _WHOLE:
        return _WHOLE[name]
    metric, _, rest = name.partition("_")
    return f"{_METRICS[metric]} {rest.replace('_adjusted', ' incl. failures')}"


def amount(figure: MetricComparison, value: float | None) -> str:
    """One side's figure with its unit: ms for latencies."""
    if value is None:
        return "too few" if figure.verdict == "too few" else "-"
    if math.isinf(value):
        return "infinite"
    if figure.unit == "s":
        return f"{milliseconds(value)} ms"
    if figure.unit == "share":
        return f"{value:.2%}"
    shown = f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return f"{shown} {'tok/s' if figure.unit == 'tokens/s' else 'req/s'}"


def milliseconds(seconds: float) -> str:
    """Seconds as ms with four significant digits, never in exponent form."""
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def counted(number: int, what: str) -> str:
    """'1 request', '2,000 requests'."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def change(figure: MetricComparison) -> str:
    """The difference as people say it: '-38.2 %', or 'points' for a share."""
    if figure.ratio is None:
        return ""
    if math.isinf(figure.ratio):
        return "from none" if (figure.base or 0.0) <= SHORTEST_S else "now infinite"
    if figure.ratio == 0.0 and not figure.is_difference:
        return "-100 %" if (figure.candidate or 0.0) <= SHORTEST_S else "no longer infinite"
    if figure.is_difference:
        return f"{figure.ratio * 100:+.2f} points"
    if figure.ratio >= 2:
        return f"x {figure.ratio:.2f}"
    return f"{(figure.ratio - 1) * 100:+.1f} %"


def interval(figure: MetricComparison) -> str:
    """The interval of the difference, in the same unit as `change`."""
    if figure.low is None or figure.high is None:
        return ""
    if figure.is_difference:
        return f"{figure.low * 100:+.2f} to {figure.high * 100:+.2f}"
    if figure.high > 5 * max(figure.ratio or 1.0, 1.0):
        return "very wide"
    if figure.ratio is not None and figure.ratio >= 2:
        return f"x {figure.low:.2f} to x {figure.high:.2f}"
    return f"{(figure.low - 1) * 100:+.1f} to {(figure.high - 1) * 100:+.1f} %"


def sentence(comparison: Comparison) -> str:
    """The verdict in a few sentences that name wins and costs."""
    return f"{headline(comparison)} {aside(comparison)}".rstrip()


def headline(comparison: Comparison) -> str:
    """What the gated metrics say."""
    if comparison.refused:
        return f"Not comparable: {'; '.join(comparison.refusals)}."
    who, other = comparison.candidate_label, comparison.base_label
    wins, costs = (_listed([m for m in comparison.gated if m.verdict == kind]) for kind in ("better", "worse"))
    match comparison.relative:
        case "mixed":
            said = f"{who} beats {other} on {wins}, but is worse on {costs}."
        case "worse":
            said = f"{who} is worse than {other} on {costs}."
        case "better":
            said = f"{who} beats {other} on {wins}; no gated metric is worse."
        case "":
            said = f"{who} keeps every threshold." if comparison.verdict == "passed" else ""
        case "same":
            said = f"{who} and {other} are the same within {comparison.margin:.0%} on every gated metric."
        case _:
            said = f"No difference between {who} and {other} is beyond doubt."
    broken = [decision_of(one) for one in comparison.held if one.met is False]
    if broken:
        said += f" {who} breaks {', '.join(f'{one.title} ({one.said})' for one in broken)}."
    untold = [one.text for one in comparison.held if one.met is None] + [title(name) for name in comparison.missing]
    if untold:
        said += f" Cannot be told: {', '.join(untold)}."
    said = said.lstrip()
    for kind in ("undecided", "too few"):
        named = ", ".join(title(m.name) for m in comparison.gated if m.verdict == kind)
        if named:
            said += f" {kind.capitalize()}: {named}."
    return said[:1].upper() + said[1:] if said.startswith("the ") else said


def aside(comparison: Comparison) -> str:
    """What moved outside the gate; empty where nothing did."""
    kinds = {"worse": "Outside the gate it costs", "better": "It also gains"}
    found = []
    for kind, words in kinds.items():
        named = _listed(moved_beside(comparison, kind))
        if named:
            found.append(f"{words}: {named}.")
    return " ".join(found)


def moved_beside(comparison: Comparison, verdict: str) -> list[MetricComparison]:
    """The figures outside the gate with that verdict; of each metric only the one that moved most."""
    return _least_redundant([m for m in comparison.metrics if not m.gated and m.verdict == verdict])


def screen(comparison: Comparison) -> str:
    """The sentence, whatever speaks against it, and the table."""
    lines = []
    if comparison.simulated:
        lines.append("SIMULATED: these figures come from the embedded engine, not from a GPU.")
    verdict = "" if comparison.refused else f"{comparison.verdict.upper()}: "
    lines.append(f"{verdict}{sentence(comparison)}")
    if comparison.refused:
        return "\n".join([*lines, "Make them comparable, or compare all the same with --force."])
    lines += [f"FORCED although not comparable: {reason}" for reason in comparison.refusals]
    lines += [f"Note: {note}." for note in comparison.notes]
    rows = [("metric", "baseline", "candidate", "change", f"{CONFIDENCE:.0%} interval", "verdict", "")]
    rows += [
        (
            ("* " if figure.gated else "  ") + title(figure.name),
            amount(figure, figure.base),
            amount(figure, figure.candidate),
            change(figure),
            interval(figure),
            figure.verdict,
            figure.note,
        )
        for figure in comparison.metrics
    ]
    repeats = " and ".join(f"{n} run{'s' if n > 1 else ''}" for n in comparison.runs)
    limits = "".join(f"; {m.threshold}" for m in comparison.gated if m.limit is not None)
    terms = f"* gated; {repeats}; margin {comparison.margin:.0%}{limits}."
    foot = f"{terms} A run once a side shows large differences only."
    if min(comparison.runs) > 1:
        foot = terms
    bounds = [decision_of(one) for one in comparison.held]
    told = [f"threshold {one.title}: {one.outcome}, {one.said}" for one in bounds]
    told += [f"threshold {title(name)}: was not measured on both sides" for name in comparison.missing]
    return "\n".join([*lines, "", *_table(rows), "", *told, foot])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    numeric = (1, 2, 3, 4)
    drawn = [
        "  ".join(
            cell.rjust(w) if i in numeric else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [drawn[0], "-" * max(len(line) for line in drawn), *drawn[1:]]


def _listed(figures: Sequence[MetricComparison]) -> str:
    named = [f"{title(m.name)} ({change(m)})" for m in figures]
    return " and ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else "".join(named)


def _least_redundant(figures: Sequence[MetricComparison]) -> list[MetricComparison]:
    """Of each metric the quantile that moved most: a sentence that lists all four says no more."""
    strongest: dict[str, MetricComparison] = {}
    for figure in figures:
        family = figure.name.partition("_")[0]
        if family not in strongest or _size(figure) > _size(strongest[family]):
            strongest[family] = figure
    return list(strongest.values())


def _size(figure: MetricComparison) -> float:
    return abs(figure.effect.estimate) if figure.effect else math.inf
