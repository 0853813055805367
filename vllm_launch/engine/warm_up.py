"""Requests sent to a fresh engine until its latency has settled: first answers pay for compiling, caches, allocation.

The rule: rounds of a few requests at once, of prompts never sent before; settled is when the middle one of the last
rounds is hardly faster than the middle one of the rounds before them. A time limit ends it, and then it says so.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from vllm_launch.engine import api

AT_ONCE = 4
SPAN = 5
"""Rounds that are looked at together."""
TOLERANCE = 0.1
LIMIT_S = 60.0
_WORDS, _TOKENS = 120, 8


@dataclass(frozen=True)
class WarmUp:
    """What it took. Times are those of a round, seconds."""

    rounds: int
    seconds: float
    settled: bool
    first_s: float
    last_s: float

    def to_dict(self) -> dict[str, Any]:
        """For run.json."""
        return {
            "rounds": self.rounds,
            "requests": self.rounds * AT_ONCE,
            "seconds": round(self.seconds, 3),
            "settled": self.settled,
            "first_round_s": round(self.first_s, 4),
            "last_rounds_s": round(self.last_s, 4),
        }


def settled(rounds: Sequence[float]) -> bool:
    """Whether the last rounds are no more than a tenth faster than those before them (middle ones of `SPAN` each)."""
    if len(rounds) < 2 * SPAN:
        return False
    before, last = statistics.median(rounds[-2 * SPAN : -SPAN]), statistics.median(rounds[-SPAN:])
    return last >= before * (1 - TOLERANCE)


def warm_up(
    url: str, model: str, *, limit_s: float = LIMIT_S, say: Callable[[str], None] = lambda text: None
) -> WarmUp:
    """Warms the engine at `url` up; raises `EngineUnreachable` where it does not answer."""
    started = time.monotonic()
    draw = random.Random()
    rounds: list[float] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while not settled(rounds) and time.monotonic() - started < limit_s:
            began = time.monotonic()
            prompts = [_prompt(draw) for _ in range(AT_ONCE)]
            list(pool.map(lambda prompt: api.stream(url, model, prompt, _TOKENS), prompts))
            rounds.append(time.monotonic() - began)
            say(f"warming up, round {len(rounds)}: {rounds[-1] * 1e3:.0f} ms")
    last = statistics.median(rounds[-SPAN:])
    return WarmUp(len(rounds), time.monotonic() - started, settled(rounds), rounds[0], last)


def _prompt(draw: random.Random) -> str:
    return " ".join(str(draw.randrange(100, 1000)) for _ in range(_WORDS))
