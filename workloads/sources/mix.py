"""The classes of a workload file, mixed by their weights, with lengths from their distributions."""

from __future__ import annotations

import bisect
import itertools

from workloads.randomness import key_of, uniforms
from workloads.sources import Design
from workloads.spec import RequestClass, SharedPrefix, Workload


class Mix:
    """An endless source; lengths and order depend on the seed alone, never on the run's salt."""

    length = None

    def __init__(self, workload: Workload, seed: int) -> None:
        self._key = key_of("mix", seed)
        self._classes: list[tuple[str, RequestClass]] = list(workload.classes.items())
        self._cumulative = list(itertools.accumulate(item.weight for _, item in self._classes))
        self._groups = {name: _group_ends(item.shared_prefix) for name, item in self._classes}

    def design(self, index: int) -> Design:
        which, length_in, length_out, group = uniforms(self._key, index, 4)
        chosen = min(bisect.bisect_right(self._cumulative, which * self._cumulative[-1]), len(self._classes) - 1)
        name, item = self._classes[chosen]
        assert item.input_tokens is not None, "the schema asks for both lengths where nothing else gives them"
        assert item.output_tokens is not None, "as above"
        ends = self._groups[name]
        return Design(
            request_class=name,
            input_tokens=item.input_tokens.at(length_in),
            output_tokens=item.output_tokens.at(length_out),
            group=min(bisect.bisect_right(ends, group * ends[-1]), len(ends) - 1) if ends else None,
        )


def _group_ends(shared: SharedPrefix | None) -> list[float]:
    """Cumulative popularity of the groups: Zipf's law, flat at exponent 0."""
    if shared is None:
        return []
    return list(itertools.accumulate((rank + 1) ** -shared.zipf for rank in range(shared.groups)))
