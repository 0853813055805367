"""Service-level objectives as users write them: `ttft_p95<1s,itl_p95<100ms,error_share<1%`, or a preset's name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tailgate.exits import BadInput
from tailgate.slo_presets import PRESETS

LATENCIES = ("ttft", "itl", "itl_token", "stall", "tpot", "e2e", "send_lag", "ttft_scheduled", "e2e_scheduled")
_UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0}
_LATENCY = re.compile(r"(?P<metric>[a-z_0-9]+?)(?:_(?P<stat>p\d{2}|p9\d\d|max|mean))?$")
_TERM = re.compile(r"(?P<name>[a-z_0-9]+)\s*(?P<op><=|<)\s*(?P<value>\d+(?:\.\d+)?)\s*(?P<unit>s|ms|us|m|%)?$")


@dataclass(frozen=True, slots=True)
class Objective:
    """One bound: `metric`'s `statistic` stays below `limit` (seconds for latencies, a share for the rest).

    Without a statistic (`ttft<500ms`) the bound is on every single request, as goodput uses it.
    """

    metric: str
    statistic: str | None
    limit: float
    text: str

    @property
    def quantile(self) -> float | None:
        """0.95 for p95, 0.999 for p999; None where the statistic is not a quantile."""
        if not self.statistic or not self.statistic.startswith("p"):
            return None
        return int(self.statistic[1:]) / 10 ** (len(self.statistic) - 1)


def parse_objectives(text: str, source: str = "--slo") -> tuple[Objective, ...]:
    """`text` as objectives, in order; a preset's name stands for its own. Raises `BadInput` naming the faulty term."""
    return tuple(
        _term(part.strip(), source)
        for term in text.split(",")
        for part in (PRESETS[term.strip()].objectives if term.strip() in PRESETS else term).split(",")
        if part.strip()
    )


def sources_of(text: str) -> tuple[str, ...]:
    """Where the presets named in `text` come from, a line each."""
    named = [term.strip() for term in text.split(",")]
    return tuple(f"{name}: {PRESETS[name].objectives}, {PRESETS[name].source}" for name in named if name in PRESETS)


def _term(term: str, source: str) -> Objective:
    mend = "write it like ttft_p95<1s, itl_p95<100ms or error_share<1%"
    if re.fullmatch(r"[A-Za-z][\w.-]*", term):
        raise BadInput(f"{source}: no preset '{term}'", f"known: {', '.join(PRESETS)}; or {mend}")
    match = _TERM.match(term)
    if not match:
        raise BadInput(f"{source}: cannot read the objective '{term}'", mend)
    name, value, unit = match["name"], float(match["value"]), match["unit"]
    if name == "error_share":
        if unit not in ("%", None):
            raise BadInput(f"{source}: '{term}' needs a share", "write it like error_share<1%")
        return Objective(name, None, value / 100 if unit == "%" else value, term)
    latency = _LATENCY.match(name)
    metric, _, statistic = name.rpartition("_")
    if latency and latency["metric"] == name and metric in LATENCIES and name not in LATENCIES:
        raise BadInput(f"{source}: '{term}' bounds '{statistic}', which is none", "write p50 to p999, max or mean")
    if not latency or latency["metric"] not in LATENCIES:
        raise BadInput(f"{source}: unknown metric '{name}' in '{term}'", f"known: {', '.join(LATENCIES)}, error_share")
    if unit not in _UNITS_S:
        raise BadInput(
            f"{source}: '{term}' names no unit", f"write {name}<{match['value']}ms or {name}<{match['value']}s"
        )
    return Objective(latency["metric"], latency["stat"], value * _UNITS_S[unit], term)
