"""What a gate lets pass, as users write it: `ttft_p99<1s,throughput_drop<20%,itl_p95`.

Three kinds of terms, separated by commas:

- a bound on the run itself: an objective (`ttft_p99<1s`, `error_share<1%`), or a floor such as `throughput>900`
  (output tokens/s), `requests_per_s>10`, `goodput_share>95%`;
- a bound on the change against a baseline: `throughput_drop<20%`, `ttft_p95_rise<10%`, `error_share_rise<1%`;
- a metric's name alone (`itl_p95`): it must not be worse than the baseline's by more than the margin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tailgate.exits import BadInput
from tailgate.objectives import Objective, parse_objectives

COMPARED = ("ttft", "itl", "tpot", "e2e", "stall")
LEVELS_COMPARED = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
COMPARED_NAMES = (
    *(f"{metric}_{level}" for metric in COMPARED for level in LEVELS_COMPARED),
    *(f"{metric}_{level}_adjusted" for metric in ("ttft", "e2e") for level in ("p95", "p99")),
    "throughput",
    "goodput",
    "error_share",
)
"""The figures that a comparison gives a verdict on."""
FALLS_ARE_WORSE = frozenset({"throughput", "goodput"})
FLOORS = {"throughput": "tokens/s", "requests_per_s": "requests/s", "goodput": "requests/s", "goodput_share": "share"}
_MEND = "write it like ttft_p99<1s, throughput>900, throughput_drop<20%, ttft_p95_rise<10% or itl_p95"
_CHANGE = re.compile(r"(?P<name>[a-z0-9_]+)_(?P<way>drop|rise)\s*<=?\s*(?P<value>\d+(?:\.\d+)?)\s*%$")
_FLOOR = re.compile(r"(?P<name>[a-z0-9_]+)\s*>=?\s*(?P<value>\d+(?:\.\d+)?)\s*(?P<unit>%?)$")


@dataclass(frozen=True, slots=True)
class Floor:
    """A figure of the run that stays above `limit`: tokens/s, requests/s, or a share of 0 to 1."""

    name: str
    limit: float
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    """A compared figure that may be worse by `limit` (a share; points for `error_share`); None leaves the margin."""

    name: str
    limit: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Gate:
    """What decides, in the order written."""

    bounds: tuple[Objective | Floor, ...] = ()
    changes: tuple[Change, ...] = ()
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.bounds or self.changes)


def parse_gate(text: str, source: str = "--gate") -> Gate:
    """`text` as a gate. Raises `BadInput` naming the term at fault."""
    terms = [_term(word.strip(), source) for word in text.split(",") if word.strip()]
    if not terms:
        raise BadInput(f"{source}: names no threshold", _MEND)
    changes = [term for term in terms if isinstance(term, Change)]
    twice = next((c.name for i, c in enumerate(changes) if c.name in {d.name for d in changes[:i]}), None)
    if twice:
        raise BadInput(f"{source}: '{twice}' is bounded twice", "keep one of them")
    return Gate(tuple(term for term in terms if not isinstance(term, Change)), tuple(changes), text.strip())


def _term(term: str, source: str) -> Objective | Floor | Change:
    if change := _CHANGE.match(term):
        return _change(change, term, source)
    if floor := _FLOOR.match(term):
        return _floor(floor, term, source)
    if "<" in term:
        (objective,) = parse_objectives(term, source)
        if objective.statistic is None and objective.metric != "error_share":
            raise BadInput(f"{source}: '{term}' names no statistic", f"write {objective.metric}_p99<…, say")
        return objective
    if not re.fullmatch(r"[a-z0-9_]+", term):
        raise BadInput(f"{source}: cannot read the threshold '{term}'", _MEND)
    return Change(_known(term, source), None, term)


def _change(found: re.Match[str], term: str, source: str) -> Change:
    name, limit = _known(found["name"], source), float(found["value"]) / 100
    expected = "drop" if name in FALLS_ARE_WORSE else "rise"
    if found["way"] != expected:
        raise BadInput(f"{source}: '{term}' bounds what is no loss", f"write {name}_{expected}<{found['value']}%")
    if limit == 0 or (expected == "drop" and limit >= 1):
        raise BadInput(f"{source}: '{term}' cannot be told", "give a limit above 0% and, for a drop, below 100%")
    return Change(name, limit, term)


def _floor(found: re.Match[str], term: str, source: str) -> Floor:
    name, unit = found["name"], found["unit"]
    if name not in FLOORS:
        raise BadInput(f"{source}: '{term}' is no floor", f"only these have one: {', '.join(FLOORS)}")
    if (unit == "%") != (FLOORS[name] == "share"):
        mend = f"write {name}>95%" if FLOORS[name] == "share" else f"write a number of {FLOORS[name]}"
        raise BadInput(f"{source}: '{term}' has the wrong unit", mend)
    return Floor(name, float(found["value"]) / (100 if unit else 1), term)


def _known(name: str, source: str) -> str:
    if name not in COMPARED_NAMES:
        raise BadInput(f"{source}: unknown metric '{name}'", f"known: {', '.join(COMPARED_NAMES)}")
    return name
