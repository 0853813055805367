"""The report in short, as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from exporters import wording
from exporters.compare import CONFIDENCE, Comparison, Measurement
from exporters.gate import Decision, decision_of, decisions_alone
from exporters.quantiles import LEVELS
from exporters.report import alone
from exporters.report.differences import config_differences
from exporters.run import Run
from exporters.tables import TITLES, said_of_sending
from tailgate.thresholds import Gate

_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>|#~!"} | {"\n": " ", "\r": " "})


_SIMULATED = "**Simulated:** these figures come from the embedded engine, not from a GPU."


def markdown(
    base: Sequence[Run | Measurement],
    candidate: Sequence[Run],
    comparison: Comparison | None,
    gate: Gate | None = None,
) -> str:
    """The verdict, the table, what differed, and how it was measured."""
    runs = [run for run in (*base, *candidate) if isinstance(run, Run)]
    if comparison is None:
        lines = [f"## {_safe(runs[0].facts.label)}", ""]
        for run in runs:
            lines += [f"**{alone.word(run, gate).capitalize()}.** {_safe(alone.sentence(run))}", ""]
            if run.facts.simulated:
                lines += [_SIMULATED, ""]
            lines += _one(run)
        if gate:
            lines += [*_thresholds(decisions_alone(gate, runs)), ""]
        return "\n".join([*lines, *_classes(runs), *_commands(runs), ""])
    lines = [f"## {comparison.verdict.capitalize()}", "", _safe(wording.sentence(comparison)), ""]
    if comparison.simulated:
        lines += [_SIMULATED, ""]
    lines += [
        f"**Forced although not comparable:** {_safe(reason)}\n" for reason in comparison.refusals if comparison.forced
    ]
    if not comparison.refused:
        lines += [f"Note: {_safe(note)}.\n" for note in comparison.notes]
        lines += [
            f"| metric | baseline | candidate | change | {CONFIDENCE:.0%} interval | verdict |",
            "| --- | ---: | ---: | ---: | ---: | --- |",
        ]
        for figure in sorted(comparison.metrics, key=lambda m: not m.gated):
            name = f"**{wording.title(figure.name)}**" if figure.gated else wording.title(figure.name)
            cells = [
                name,
                wording.amount(figure, figure.base),
                wording.amount(figure, figure.candidate),
                wording.change(figure),
                wording.interval(figure),
                f"{figure.verdict}{f' ({figure.note})' if figure.note else ''}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", *_thresholds(decision_of(one) for one in comparison.held)]
        lines += ["", f"Bold metrics decide; differences within {comparison.margin:.0%} do not matter.", ""]
    differences = config_differences(base[0].facts, candidate[0].facts)
    if differences:
        lines += ["| setting | baseline | candidate |", "| --- | --- | --- |"]
        lines += [f"| {_safe(d['name'])} | {_safe(d['base'])} | {_safe(d['candidate'])} |" for d in differences]
        lines.append("")
    return "\n".join([*lines, *_classes(runs), *(_measured(run) for run in runs), *_commands(runs), ""])


def _thresholds(decisions: Iterable[Decision]) -> list[str]:
    return [f"- Threshold `{one.title}`: **{one.outcome}**, {_safe(one.said)}" for one in decisions]


def _classes(runs: list[Run]) -> list[str]:
    """Each class's tails in every run, where there are several classes."""
    names = sorted({name for run in runs for name in run.summary["classes"]})
    if len(names) < 2:
        return []
    shown = (("ttft_s", "p50"), ("ttft_s", "p95"), ("itl_s", "p50"), ("itl_s", "p99"))
    lines = [
        f"| class (ms) | run | {' | '.join(f'{TITLES[metric]} {level}' for metric, level in shown)} |",
        f"| --- | --- |{' ---: |' * len(shown)}",
    ]
    for name in names:
        for run in runs:
            metrics = run.summary["classes"].get(name, {}).get("metrics")
            if metrics:
                values = [metrics[metric][level] for metric, level in shown]
                cells = ["too few" if value is None else wording.milliseconds(value) for value in values]
                lines.append(f"| {_safe(name)} | {_safe(run.path.name)} | {' | '.join(cells)} |")
    return [*lines, ""]


def _commands(runs: list[Run]) -> list[str]:
    """What repeats the runs. Four spaces make code of a line whatever stands in it."""
    commands = dict.fromkeys(" ".join(c.split()) for run in runs if (c := run.facts.command))
    return ["", "To repeat it:", "", *(f"    {command}" for command in commands)] if commands else []


def _one(run: Run) -> list[str]:
    head = ["ms", "count", "mean", *("p99.9" if name == "p999" else name for name in LEVELS), "max"]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for name, found in run.summary["metrics"].items():
        if found["count"]:
            tails = ["too few" if found[level] is None else wording.milliseconds(found[level]) for level in LEVELS]
            ends = [wording.milliseconds(found[key]) for key in ("mean", "max")]
            lines.append(f"| {' | '.join([TITLES[name], str(found['count']), ends[0], *tails, ends[1]])} |")
    return [*lines, "", _measured(run), ""]


def _measured(run: Run) -> str:
    summary = run.summary
    requests, quality = summary["requests"], summary["quality"]
    state = "valid" if summary["valid"] else f"**not valid** ({_safe('; '.join(quality['reasons']))})"
    counts = (
        f"{requests['sent']} sent, {requests['ok']} ok, {requests['failed']} failed, {requests['cancelled']} cancelled"
    )
    told = "".join(f"; {_safe(line)}" for line in said_of_sending(quality))
    seconds = summary["window"]["seconds"]
    return f"- {_safe(run.facts.label)}: {state}, {quality['clock']} clock, {seconds:.1f} s, {counts}{told}"


def _safe(text: str) -> str:
    return text.translate(_SPECIAL)
