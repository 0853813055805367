"""A verdict as Markdown for a pull request or a job's summary: what decided, and the rest folded away."""

from __future__ import annotations

from exporters import wording
from exporters.compare import CONFIDENCE, Comparison, MetricComparison
from exporters.gate import Decision, decisions

_SIGNS = {"passed": "✅", "failed": "❌", "undecided": "❔", "too few": "⚠️"}
_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>|#~!"} | {"\n": " ", "\r": " "})


def dump(comparison: Comparison) -> str:
    """The whole text; what users named is escaped, so that no label can bring markup along."""
    head = "❌" if int(comparison.exit_code) else "✅" if comparison.verdict != "undecided" else "❔"
    lines = [f"### {head} Tailgate: {comparison.verdict}", "", _safe(wording.sentence(comparison)), ""]
    if comparison.simulated:
        lines += ["**Simulated:** these figures come from the embedded engine, not from a GPU.", ""]
    if comparison.refused:
        return "\n".join(lines)
    lines += [f"**Forced although not comparable:** {_safe(reason)}\n" for reason in comparison.refusals]
    lines += [f"Note: {_safe(note)}.\n" for note in comparison.notes]
    lines += ["| the gate looked at | | |", "| --- | --- | --- |", *(_decision(d) for d in decisions(comparison)), ""]
    others = [m for m in comparison.metrics if not m.gated]
    labels = f"{_safe(comparison.base_label)} | {_safe(comparison.candidate_label)}"
    lines += [
        f"<details><summary>{len(others)} other figures</summary>",
        "",
        f"| metric | {labels} | change | {CONFIDENCE:.0%} interval | verdict |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        *(_row(m) for m in others),
        "",
        "</details>",
        "",
        f"Runs: {comparison.runs[0]} and {comparison.runs[1]}. Margin: {comparison.margin:.0%} where none is named.",
        "",
    ]
    return "\n".join(lines)


def _decision(decision: Decision) -> str:
    return f"| {_SIGNS[decision.outcome]} {decision.outcome} | **{_safe(decision.title)}** | {_safe(decision.said)} |"


def _row(figure: MetricComparison) -> str:
    cells = [
        wording.title(figure.name),
        wording.amount(figure, figure.base),
        wording.amount(figure, figure.candidate),
        wording.change(figure),
        wording.interval(figure),
        f"{figure.verdict}{f' ({figure.note})' if figure.note else ''}",
    ]
    return f"| {' | '.join(cells)} |"


def _safe(text: str) -> str:
    return text.translate(_SPECIAL)
