"""Whether two sides may be compared at all: the same traffic, measured the same way, by runs that are valid."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

from exporters.facts import Facts


class Comparable(Protocol):
    """What is asked of a run (or of a stored baseline)."""

    @property
    def facts(self) -> Facts: ...

    @property
    def summary(self) -> Mapping[str, Any]: ...


def obstacles(base: Sequence[Comparable], candidate: Sequence[Comparable]) -> list[str]:
    """Why the sides must not be compared, each reason one line; empty where nothing stands against it."""
    found: list[str] = []
    for side, runs in (("baseline", base), ("candidate", candidate)):
        for run in runs:
            if not run.summary["valid"]:
                reasons = run.summary["quality"]["reasons"]
                found.append(f"the {side} run {run.facts.label} is not valid: {'; '.join(reasons) or 'no reason kept'}")
    imported = any(run.facts.meta.get("imported_from") for run in (*base, *candidate))
    for what, read in _MUST_AGREE.items():
        if imported and what in _UNKNOWN_TO_IMPORTS:
            continue
        values = [sorted({_shown(read(run.facts)) for run in runs}) for runs in (base, candidate)]
        if values[0] != values[1]:
            found.append(f"another {what}: {', '.join(values[0])} against {', '.join(values[1])}")
    found += _other_lengths(base, candidate) if imported else _other_definition(base, candidate)
    found += [] if imported else _other_seeds(base, candidate)
    found += _other_paces((*base, *candidate))
    found += _one_engine(base, candidate)
    for side, runs in (("baseline", base), ("candidate", candidate)):
        if len({_shown(run.facts.launch.get("args")) for run in runs}) > 1:
            found.append(f"the {side} runs are not repeats of one another: their launch configs differ")
    return found


def remarks(base: Sequence[Comparable], candidate: Sequence[Comparable]) -> list[str]:
    """What does not stand against a comparison but belongs beside it, each remark one line."""
    found = []
    launches = [{_shown(_engine_launched(run.facts)) for run in side if run.facts.launch} for side in (base, candidate)]
    if len(launches[0]) == 1 and launches[0] == launches[1]:
        found.append("both sides ran one and the same launch config: whatever differs is chance")
    ids = [
        {str(run.facts.meta["run_id"]) for run in side if run.facts.meta.get("run_id")} for side in (base, candidate)
    ]
    if ids[0] & ids[1]:
        found.append("the same run stands on both sides: what is compared with itself cannot differ")
    seeds = [sorted(_shown(run.facts.seed) for run in side) for side in (base, candidate)]
    imported = any(run.facts.meta.get("imported_from") for run in (*base, *candidate))
    if seeds[0] != seeds[1] and not imported:
        found.append(
            "the sides sent other requests of the same kind, since their seeds differ; one --seed for both tells "
            "smaller differences apart"
        )
    for side, runs in (("baseline", base), ("candidate", candidate)):
        if any(run.facts.meta.get("imported_from") for run in runs):
            found.append(
                f"the {side} is an import from vllm bench serve, whose times were taken when its program read the "
                "events: its tails are too long where that program was busy; of the traffic only model, arrivals and "
                "mean lengths could be checked"
            )
    if not one_slo(base, candidate):
        found.append("goodput is left out: the runs were held to different objectives")
    return found


def one_slo(base: Sequence[Comparable], candidate: Sequence[Comparable]) -> bool:
    """Whether all runs were held to the same objectives (or to none)."""
    return len({run.facts.slo for run in (*base, *candidate)}) == 1


def _one_engine(base: Sequence[Comparable], candidate: Sequence[Comparable]) -> list[str]:
    """Two launches that differ on paper and run as one, by the engines' own word: somebody believes in a tuning that is
    none. One launch on both sides is a check for drift, and allowed (`remarks` says so)."""
    launched = {_shown(_engine_launched(run.facts)) for run in (*base, *candidate)}
    if len(launched) == 1:
        return []
    sides = [{_shown(_said(run.facts)) for run in side} for side in (base, candidate)]
    if any(not run.facts.launch.get("effective") for run in (*base, *candidate)):
        return []
    settings = len(base[0].facts.launch["effective"])
    if len(sides[0]) != 1 or sides[0] != sides[1]:
        return []
    return [
        (
            f"both sides resolve to the same engine config ({settings} settings as the engines tell them, "
            "and nothing else differs): whatever differs is chance"
        )
    ]


def _said(facts: Facts) -> dict[str, Any]:
    launch = facts.launch
    told = {key: launch.get(key) for key in ("engine", "url", "model", "device", "effective", "env", "gpus")}
    return {**told, "version": facts.engine_version, "served": facts.model}


def _engine_launched(facts: Facts) -> dict[str, Any]:
    return {key: facts.launch.get(key) or None for key in ("engine", "model", "device", "args", "env")}


def _arrival(facts: Facts) -> Any:
    """What the sending depends on: the schedule in open loop, the number of users in closed loop."""
    arrival = facts.meta.get("arrival")
    spec = dict(arrival) if isinstance(arrival, Mapping) else {"kind": arrival or "closed"}
    kind = spec.pop("kind", "closed")
    for key, of in (("time_scale", "trace"), ("burstiness", "gamma")):
        if kind != of:
            spec.pop(key, None)
    told = {k: v for k, v in spec.items() if v is not None} if facts.open_loop else {"users": facts.meta.get("users")}
    return " ".join([str(kind), *(f"{k}={v}" for k, v in sorted(told.items()))])


def _other_paces(runs: Sequence[Comparable]) -> list[str]:
    """Rates or numbers of users that were changed while a run went on, by a hand or a shape: never twice in the same
    instant, so they are alike where little of the load lies between them."""
    if not any(_changes(run.facts) for run in runs):
        return []
    first, *others = runs
    for other in others:
        paces = _pace(first.facts), _pace(other.facts)
        between, load = _between(*paces, min(_length_s(first), _length_s(other)))
        if between > _PACES_ALIKE * load:
            told = [", ".join(f"{level:g} from {at_s:.1f} s on" for at_s, level in pace) for pace in paces]
            return [f"another load: {told[0]} against {told[1]}"]
    return []


def _changes(facts: Facts) -> Sequence[tuple[float, float]]:
    """(seconds after the start, requests/s or users from then on)."""
    return facts.meta.get("rate_changes") or facts.meta.get("user_changes") or ()


def _pace(facts: Facts) -> list[tuple[float, float]]:
    """The changes, and before them what the run began with."""
    arrival = facts.meta.get("arrival")
    rate = arrival.get("rate") if isinstance(arrival, Mapping) else None
    return [(0.0, (rate if facts.open_loop else facts.meta.get("users")) or 0), *_changes(facts)]


def _length_s(run: Comparable) -> float:
    return float(run.summary["window"]["seconds"]) + (run.facts.meta.get("warmup_s") or 0)


def _between(
    one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]], until_s: float
) -> tuple[float, float]:
    """The area between two paces, and that under the higher of them, up to `until_s`."""
    edges = sorted({0.0, until_s, *(at_s for at_s, _ in (*one, *other) if 0 < at_s < until_s)})
    between = load = 0.0
    for begin_s, end_s in pairwise(edges):
        levels = [[level for at_s, level in pace if at_s <= begin_s][-1] for pace in (one, other)]
        between += abs(levels[0] - levels[1]) * (end_s - begin_s)
        load += max(levels) * (end_s - begin_s)
    return between, load


_MUST_AGREE: dict[str, Callable[[Facts], Any]] = {
    "workload": lambda f: f.workload,
    "model": lambda f: f.model,
    "arrival": _arrival,
    "engine kind": lambda f: f"{f.engine}{' (simulated)' if f.simulated else ''}",
    "clock": lambda f: f.clock,
}

_NO_TRAFFIC = frozenset({"gate", "slo", "description"})
"""Keys of a workload that say how it is judged, not what is sent."""
_UNKNOWN_TO_IMPORTS = frozenset({"workload", "clock", "engine kind"})
_LENGTHS_ALIKE = 0.05
_PACES_ALIKE = 0.1


def _other_lengths(base: Sequence[Comparable], candidate: Sequence[Comparable]) -> list[str]:
    """Where a side was imported, nothing names its workload; its mean lengths show whether it was the same traffic."""
    found = []
    for what in ("prompt", "output"):
        means = [_mean_tokens(side, what) for side in (base, candidate)]
        if min(means) > 0 and abs(means[1] / means[0] - 1) > _LENGTHS_ALIKE:
            found.append(f"another workload: {means[0]:.0f} {what} tokens a request against {means[1]:.0f}")
    return found


def _mean_tokens(side: Sequence[Comparable], what: str) -> float:
    tokens = sum(int((run.summary.get("tokens") or {}).get(what) or 0) for run in side)
    return tokens / max(sum(int(run.summary["requests"]["ok"]) for run in side), 1)


def _other_seeds(base: Sequence[Comparable], candidate: Sequence[Comparable]) -> list[str]:
    """Seeds that were asked for and differ. One drawn by the run itself is a fresh sample of the same traffic, which
    the intervals allow for: whoever asked for none does not expect the same requests twice."""
    asked = not any(run.facts.meta.get("seed_drawn") for run in (*base, *candidate))
    seeds = [sorted({_shown(run.facts.seed) for run in runs}) for runs in (base, candidate)]
    return (
        [f"another seed: {', '.join(seeds[0])} against {', '.join(seeds[1])}"] if asked and seeds[0] != seeds[1] else []
    )


def _other_definition(base: Sequence[Comparable], candidate: Sequence[Comparable]) -> list[str]:
    """Two workloads of one name that are not the same traffic: a key that differs, or other bodies for equal seeds."""
    one, other = (runs[0].facts.meta for runs in (base, candidate))
    first, second = one.get("workload"), other.get("workload")
    if isinstance(first, Mapping) and isinstance(second, Mapping) and first.get("name") == second.get("name"):
        differing = sorted(k for k in (first.keys() | second.keys()) - _NO_TRAFFIC if first.get(k) != second.get(k))
        if differing:
            return [f"another workload: {first.get('name')} is defined otherwise ({', '.join(differing)})"]
    bodies = [sorted({_shown(run.facts.meta.get("bodies_sha256")) for run in runs}) for runs in (base, candidate)]
    seeds = [{f"{r.facts.seed} {r.facts.meta.get('salt') or ''}" for r in side} for side in (base, candidate)]
    same_seeds = seeds[0] == seeds[1]
    if bodies[0] != bodies[1] and same_seeds and None not in (one.get("bodies_sha256"), other.get("bodies_sha256")):
        return ["another workload: the same seed yielded other requests (bodies_sha256 differs)"]
    return []


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
