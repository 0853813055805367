"""The classes of a workload file, mixed by their weights, with lengths from their distributions."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from workloads.randomness import key_of, uniform_array, uniforms
from workloads.sources import Design, TurnDesign
from workloads.spec import Documents, Lora, RequestClass, Turns, Workload


class Mix:
    """An endless source; lengths and order depend on the seed alone, never on the run's salt."""

    length = None

    def __init__(self, workload: Workload, seed: int) -> None:
        self._key = key_of("mix", seed)
        self._seed = seed
        self._classes: list[tuple[str, RequestClass]] = list(workload.classes.items())
        self._cumulative = list(itertools.accumulate(item.weight for _, item in self._classes))
        self._turn_key = lru_cache(maxsize=256)(lambda turn: key_of("turn", seed, turn))

    def design(self, index: int) -> Design:
        (name, item), (length_in, length_out, group) = self._drawn(index)
        assert item.input_tokens is not None, "the schema asks for both lengths where nothing else gives them"
        assert item.output_tokens is not None, "as above"
        shared = item.shared_prefix
        return Design(
            request_class=name,
            input_tokens=item.input_tokens.at(length_in),
            output_tokens=item.output_tokens.at(length_out),
            group=_zipf_rank(group, shared.groups, shared.zipf) if shared else None,
            turns=self._turns(item.turns, index) if item.turns else 1,
            documents=self._documents(item.documents, index) if item.documents else (),
            model=self._model(item.lora, index) if item.lora else None,
        )

    def turn(self, index: int, turn: int) -> TurnDesign:
        (_, item), _ = self._drawn(index)
        turns = item.turns
        assert turns is not None, "only such conversations have later turns"
        length_in, length_out, think = uniforms(self._turn_key(turn), index, 3)
        answers = turns.output_tokens or item.output_tokens
        assert answers is not None, "the schema asks for both lengths where nothing else gives them"
        return TurnDesign(
            turns.input_tokens.at(length_in), answers.at(length_out), turns.think_time.at(think), turns.role
        )

    def _drawn(self, index: int) -> tuple[tuple[str, RequestClass], list[float]]:
        which, *others = uniforms(self._key, index, 4)
        chosen = min(bisect.bisect_right(self._cumulative, which * self._cumulative[-1]), len(self._classes) - 1)
        return self._classes[chosen], others

    def _turns(self, turns: Turns, index: int) -> int:
        return turns.count.at(uniforms(key_of("turns", self._seed), index, 1)[0])

    def _documents(self, documents: Documents, index: int) -> tuple[int, ...]:
        """As many different ones as asked for, in the order in which they were drawn."""
        found: dict[int, None] = {}
        for draw in self._draws(key_of("documents", self._seed), index, documents.per_request):
            found[_zipf_rank(draw, documents.count, documents.zipf)] = None
            if len(found) == documents.per_request:
                return tuple(found)
        # So few and so unequal that the rest never came: those that are missing, the frequent ones first.
        missing = (rank for rank in range(documents.count) if rank not in found)
        return (*found, *itertools.islice(missing, documents.per_request - len(found)))

    @staticmethod
    def _draws(key: bytes, index: int, wanted: int) -> Iterator[float]:
        for part in range(8):
            yield from uniform_array(key_of(key.hex(), part) if part else key, index, 2 * wanted + 8).tolist()

    def _model(self, lora: Lora, index: int) -> str | None:
        base, which = uniforms(key_of("lora", self._seed), index, 2)
        return None if base < lora.base_share else lora.models[_zipf_rank(which, len(lora.models), lora.zipf)]


def _zipf_rank(u: float, count: int, exponent: float) -> int:
    """The rank (0 is the most frequent) at the quantile u of Zipf's law over `count` ranks; flat at exponent 0."""
    if not exponent:
        return min(int(u * count), count - 1)
    ends = _zipf_ends(count, exponent)
    return min(int(np.searchsorted(ends, u * ends[-1], side="right")), count - 1)


@lru_cache(maxsize=32)
def _zipf_ends(count: int, exponent: float) -> npt.NDArray[np.float64]:
    return np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
