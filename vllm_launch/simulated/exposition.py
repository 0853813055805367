"""Prometheus' text format: histograms, counters and gauges whose text is made once and whose numbers are filled in."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence

Labels = dict[str, str]


def label_text(labels: Labels) -> str:
    escaped = (f'{k}="{_escape(v)}"' for k, v in sorted(labels.items()))
    return "{" + ",".join(escaped) + "}" if labels else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Histogram:
    """Counts per bucket; `observe` takes a weight, for what many tokens have in common."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], labels: Labels) -> None:
        self.bounds = [float(bound) for bound in bounds]
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self._head = f"# HELP {name} {text}\n# TYPE {name} histogram\n"
        self.keys = [f"{name}_bucket{label_text({**labels, 'le': str(le)})} " for le in (*self.bounds, "+Inf")]
        self._count_key, self._sum_key = f"{name}_count{label_text(labels)} ", f"{name}_sum{label_text(labels)} "
        self._created = created_lines(name, text, labels)

    def observe(self, value: float, weight: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += weight
        self.sum += value * weight

    def quantile(self, q: float) -> float:
        """The upper bound of the bucket that holds quantile `q`; infinite past the last bound, 0 where empty."""
        wanted, seen = q * sum(self.counts), 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if seen and seen >= wanted:
                return bound
        return 0.0

    def render(self) -> str:
        lines = [self._head]
        total = 0
        for key, count in zip(self.keys, self.counts, strict=True):
            total += count
            lines.append(f"{key}{total}.0\n")
        lines += (f"{self._count_key}{total}.0\n", f"{self._sum_key}{float(self.sum)!r}\n", self._created)
        return "".join(lines)


def created_lines(name: str, text: str, labels: Labels) -> str:
    """When counting began, as a gauge of its own."""
    name = f"{name}_created"
    return f"# HELP {name} {text}\n# TYPE {name} gauge\n{name}{label_text(labels)} {time.time()!r}\n"


class Samples:
    """Counters and gauges: one family, its samples given as (labels, value) when it is rendered."""

    def __init__(self, name: str, text: str, kind: str, labels: Iterable[Labels], created: bool = True) -> None:
        self._head = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        self.keys = [f"{name}{label_text(each)} " for each in labels]
        self._created = ""
        if kind == "counter" and created:
            first, *others = (created_lines(name.removesuffix("_total"), text, each) for each in labels)
            self._created = first + "".join(other.splitlines(keepends=True)[-1] for other in others)

    def render(self, values: Iterable[float]) -> str:
        lines = (f"{key}{float(value)!r}\n" for key, value in zip(self.keys, values, strict=True))
        return self._head + "".join(lines) + self._created
