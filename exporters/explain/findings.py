"""What the rules find in a run, each finding with the figures it rests on."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exporters.explain.figures import KNOWN, figures_of, limit_sources
from exporters.explain.rules import Condition, Rule, load_rules
from exporters.run import Run


@dataclass(frozen=True)
class Finding:
    """One finding: the rule's `id`, what it `says`, the `evidence` in lines, and what to try next."""

    id: str
    says: str
    evidence: list[str]
    figures: Mapping[str, float]
    trials: list[dict[str, Any]]
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "id": self.id,
            "says": self.says,
            "evidence": self.evidence,
            "figures": dict(self.figures),
            "try": self.trials,
            "advice": self.advice,
        }


def explain(run: Run, rules: Sequence[Rule] | None = None) -> list[Finding]:
    """The findings, most important first. None of them is no proof that all is well: see `findings_text`."""
    figures = figures_of(run)
    sources = limit_sources(run)
    spoken = [r for r in (load_rules() if rules is None else rules) if all(c.holds(figures) for c in r.when)]
    hidden = {name for rule in spoken for name in rule.hides}
    return [_finding(rule, figures, sources, run) for rule in spoken if rule.id not in hidden]


def _finding(rule: Rule, figures: Mapping[str, float], sources: Mapping[str, str], run: Run) -> Finding:
    evidence = [_told(condition, figures, sources) for condition in rule.when]
    used = [condition.figure for condition in rule.when]
    for name in rule.shows:
        if name in figures and name not in used:
            evidence.append(f"{KNOWN[name]} is {shown(name, figures[name])}")
            used.append(name)
    if rule.id == "not-valid":
        evidence += run.summary["quality"]["reasons"]
    trials = [
        {
            "flag": trial.flag,
            "move": trial.move,
            "to": trial.to,
            "now": _now(run, trial.flag),
            "expect": trial.expect,
            "cost": trial.cost,
        }
        for trial in rule.trials
    ]
    return Finding(rule.id, rule.says.strip(), evidence, {n: figures[n] for n in used}, trials, rule.advice.strip())


def _told(condition: Condition, figures: Mapping[str, float], sources: Mapping[str, str]) -> str:
    named = condition.above if condition.above is not None else condition.at_most
    bound = condition.bound(figures)
    assert bound is not None, "a condition that holds has a bound"
    relation = "above" if condition.above is not None else "not above"
    said = f"{KNOWN[condition.figure]} is {shown(condition.figure, figures[condition.figure])}, {relation} "
    said += shown(condition.figure, bound)
    if isinstance(named, str):
        times = f"{condition.times:g} x " if condition.times != 1 else ""
        said += f" ({times}{KNOWN[named]}{f', {sources[named]}' if named in sources else ''})"
    return said


def _now(run: Run, flag: str) -> Any:
    """A flag's value in this run, as far as the run tells."""
    launch = run.facts.launch
    for part in ("effective", "args"):
        settings = launch.get(part)
        if isinstance(settings, Mapping) and flag in settings:
            return settings[flag]
    return None


def shown(name: str, value: float) -> str:
    """A figure with its unit."""
    if name.endswith("_s") and not name.endswith("per_s"):
        return f"{value * 1e3:,.4g} ms" if value < 10 else f"{value:,.4g} s"
    if "share" in name or name.startswith("kv_cache") or name == "gpu_utilisation_mean":
        return f"{value:.1%}"
    return f"{value:,.4g}"


def findings_text(run: Run, found: Sequence[Finding]) -> str:
    """For the screen."""
    lines = ["SIMULATED: these figures come from the embedded engine, not from a GPU."] if run.facts.simulated else []
    if not run.engine:
        lines.append("The engine's own metrics were not scraped: only the client's side can be read.")
    if not found:
        lines.append("No rule speaks: nothing stands out in what client and engine say.")
    for number, finding in enumerate(found, start=1):
        lines.append(f"{number}. {_wrapped(finding.says, '   ')}")
        lines += [f"   - {line}" for line in finding.evidence]
        for trial in finding.trials:
            lines.append(f"   try: {trial_text(trial)}")
            lines.append(f"        expect: {_wrapped(trial['expect'], ' ' * 16)}")
            lines.append(f"        cost:   {_wrapped(trial['cost'], ' ' * 16)}")
        if finding.advice:
            lines.append(f"   {_wrapped(finding.advice, '   ')}")
        lines.append("")
    return "\n".join(lines).rstrip()


def trial_text(trial: Mapping[str, Any]) -> str:
    """`raise max-num-seqs (now 4)`."""
    to = f" to {trial['to']}" if trial["to"] else ""
    now = f" (now {trial['now']})" if trial["now"] is not None else ""
    return f"{trial['move']} {trial['flag']}{to}{now}"


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(" ".join(text.split()), 110, subsequent_indent=indent)
