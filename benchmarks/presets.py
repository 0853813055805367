"""What each goal of the presets does on the embedded engine, against its baseline: simulated, in virtual time.

Two loads: chats with a long document (4,000 to 8,000 tokens) in eight, Poisson at a rate that the baseline carries; and
400 users without pause with short chats, for the throughput.
"""

from __future__ import annotations

import random

import numpy as np

from vllm_launch.config import GOALS, load_config
from vllm_launch.engine import embedded
from vllm_launch.simulated.settings import EngineSettings
from vllm_launch.simulated.virtual import Ask, Served, closed_loop, open_loop

RATES = {"h100-llama-8b": 16.0, "h200-llama-8b": 16.0, "a100-llama-8b": 7.0, "h100-qwen3-32b": 8.0}
_LONG = 1000


def mixed(rate: float, requests: int = 1500, seed: int = 1) -> list[Ask]:
    """The first load, `rate` requests a second."""
    draw, now, asks = random.Random(seed), 0.0, []
    for _ in range(requests):
        now += draw.expovariate(rate)
        prompt = draw.randint(4000, 8000) if draw.random() < 0.12 else draw.randint(100, 600)
        asks.append(Ask(prompt, draw.randint(30, 250), now))
    return asks


def settings(name: str) -> EngineSettings:
    """A preset as the embedded engine takes it."""
    return embedded.settings(load_config(name))[0]


def short_ttft_p95_s(served: list[Served]) -> float:
    return float(np.quantile([one.ttft_s for one in served if one.ask.prompt_tokens <= _LONG], 0.95))


def long_ttft_p95_s(served: list[Served]) -> float:
    return float(np.quantile([one.ttft_s for one in served if one.ask.prompt_tokens > _LONG], 0.95))


def gap_p99_s(served: list[Served]) -> float:
    return float(np.quantile(np.concatenate([np.diff(one.token_s or []) for one in served]), 0.99))


def full_tokens_per_s(name: str) -> float:
    """Output tokens a second under the second load."""
    users, each, output = 400, 2, 128
    return users * each * output / closed_loop(settings(name), users, each, lambda _: Ask(300, output)).virtual_s


def main() -> None:
    print("SIMULATED        preset                    TTFT p95 short   TTFT p95 long   ITL p99   tokens/s when full")
    for base, rate in RATES.items():
        for goal in ("baseline", *GOALS):
            name = f"{base}-{goal}"
            served = open_loop(settings(name), mixed(rate), keep_tokens=True).served
            figures = [short_ttft_p95_s(served), long_ttft_p95_s(served), gap_p99_s(served)]
            cells = "".join(f"{value * 1e3:>{width}.0f} ms" for value, width in zip(figures, (13, 13, 7), strict=True))
            print(f"{name:<42}{cells}{full_tokens_per_s(name):>21,.0f}")


if __name__ == "__main__":
    main()
