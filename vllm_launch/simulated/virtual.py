"""The engine in virtual time: as fast as it computes, for calibrating, searching and checking statistics.

    python -m vllm_launch.simulated.virtual --model Qwen/Qwen3-32B --flag tensor-parallel-size=2 --concurrency 8,32

A load is either `closed_loop` (users that wait for their reply before they ask again) or `open_loop` (requests that
come when they come). Both are exact: nothing is sampled, nothing waits.
"""

from __future__ import annotations

import heapq
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tailgate.command_line import Parser
from tailgate.exits import BadInput, run_command
from vllm_launch.simulated.engine import Engine
from vllm_launch.simulated.generation import Generation
from vllm_launch.simulated.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Ask:
    """A request in virtual time: arrival (s, open loop only), lengths in tokens, and what its blocks are known by."""

    prompt_tokens: int
    output_tokens: int
    arrival_s: float = 0.0
    block_hashes: Sequence[int] = ()
    priority: int = 0


@dataclass(slots=True)
class Served:
    """What became of a request, in seconds of virtual time; `token_s` (one time for each token) only where kept."""

    ask: Ask
    arrival_s: float
    first_s: float
    end_s: float
    cached_tokens: int
    preemptions: int
    token_s: list[float] | None = None

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """None for a single token."""
        tokens = self.ask.output_tokens
        return (self.end_s - self.first_s) / (tokens - 1) if tokens > 1 else None


@dataclass(slots=True)
class Outcome:
    """A load's outcome: each request served, in the order they ended."""

    served: list[Served] = field(default_factory=list)
    virtual_s: float = 0.0
    real_s: float = 0.0
    steps: int = 0

    @property
    def speed(self) -> float:
        """Virtual seconds a second of one core."""
        return self.virtual_s / self.real_s if self.real_s else 0.0

    def ttft_s(self) -> np.ndarray:
        return np.array([request.ttft_s for request in self.served])

    def tpot_s(self) -> np.ndarray:
        return np.array([request.tpot_s for request in self.served if request.tpot_s is not None])


def closed_loop(
    settings: EngineSettings, users: int, requests_per_user: int, ask: Callable[[int], Ask], keep_tokens: bool = False
) -> Outcome:
    """`users` users that all start at once and ask `requests_per_user` times each, without pausing; `ask(i)` is the
    i-th request of all."""
    run = _Run(settings, keep_tokens)
    asked = 0
    for _ in range(users):
        run.arrive(0.0, ask(asked))
        asked += 1
    total = users * requests_per_user

    def again(_: Served) -> None:
        nonlocal asked
        if asked < total:
            run.arrive(run.now, ask(asked))
            asked += 1

    return run.until_done(again)


def closed_for(
    settings: EngineSettings, users: int, seconds: float, ask: Callable[[int], Ask], keep_tokens: bool = False
) -> Outcome:
    """As `closed_loop`, but users stop asking after `seconds` of virtual time; what is under way then is finished."""
    run = _Run(settings, keep_tokens)
    asked = itertools.count()
    for _ in range(users):
        run.arrive(0.0, ask(next(asked)))

    def again(_: Served) -> None:
        if run.now < seconds:
            run.arrive(run.now, ask(next(asked)))

    return run.until_done(again)


def open_loop(settings: EngineSettings, asks: Iterable[Ask], keep_tokens: bool = False) -> Outcome:
    """Requests that arrive at their `arrival_s`, whatever the engine is doing."""
    run = _Run(settings, keep_tokens)
    for ask in asks:
        run.arrive(ask.arrival_s, ask)
    return run.until_done(lambda _: None)


class _Run:
    def __init__(self, settings: EngineSettings, keep_tokens: bool) -> None:
        self.engine = Engine(settings)
        self.now = 0.0
        self._delay = self.engine.times.overhead.per_request_s
        self._arrivals: list[tuple[float, int, Served]] = []
        self._arrived = 0
        self._outcome = Outcome()
        self._keep_tokens = keep_tokens

    def arrive(self, when: float, ask: Ask) -> None:
        served = Served(ask, when, -1.0, -1.0, 0, 0, [] if self._keep_tokens else None)
        heapq.heappush(self._arrivals, (when + self._delay, self._arrived, served))
        self._arrived += 1

    def until_done(self, ended: Callable[[Served], None]) -> Outcome:
        # The process's own time: on a free core the same as the clock's, and true on a busy machine too.
        started = time.process_time()
        scheduler = self.engine.scheduler
        while True:
            self._enqueue()
            begun = self.engine.begin()
            if begun is None:
                if not self._arrivals:
                    break
                self.now = self._arrivals[0][0]
                continue
            step, duration = begun
            self.now += duration
            self._outcome.steps += 1
            if self._keep_tokens:
                for generation in scheduler.decoding():
                    if generation not in step.starved:
                        self._told(generation)
            first, finished = scheduler.complete(step)
            for generation in first:
                self._started(generation)
            for generation in finished:
                served = self._ended(generation)
                ended(served)
        self._outcome.virtual_s = self.now
        self._outcome.real_s = time.process_time() - started
        return self._outcome

    def _enqueue(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now:
            when, _, served = heapq.heappop(self._arrivals)
            ask = served.ask
            self.engine.scheduler.add(
                Generation(ask.prompt_tokens, ask.output_tokens, ask.block_hashes, ask.priority, when, served)
            )

    def _started(self, generation: Generation) -> None:
        served = generation.owner
        assert isinstance(served, Served)
        if served.first_s < 0:
            served.first_s = self.now
        self._told(generation)

    def _told(self, generation: Generation) -> None:
        served = generation.owner
        if isinstance(served, Served) and served.token_s is not None:
            served.token_s.append(self.now)

    def _ended(self, generation: Generation) -> Served:
        served = generation.owner
        assert isinstance(served, Served)
        served.end_s = self.now
        served.cached_tokens = generation.cached_tokens
        served.preemptions = generation.preemptions
        self._outcome.served.append(served)
        return served


def main(argv: list[str] | None = None) -> int:
    from vllm_launch.simulated.__main__ import read_flags

    parser = Parser(prog="python -m vllm_launch.simulated.virtual", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B-Instruct")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--flag", action="append", default=[], metavar="NAME[=VALUE]", help="a flag of `vllm serve`")
    parser.add_argument("--concurrency", default="1,8,32,128", help="users in a closed loop, several with commas")
    parser.add_argument("--requests", type=int, default=10, help="requests of each user")
    parser.add_argument("--input", type=int, default=1024, help="prompt tokens")
    parser.add_argument("--output", type=int, default=256, help="output tokens")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)

    def run() -> int:
        settings, _ = EngineSettings.from_flags(given.model, given.device, read_flags(given.flag))
        if not given.concurrency.replace(",", "").isdigit():
            raise BadInput(f"--concurrency {given.concurrency}: not numbers", "write it like 8,32")
        rows = []
        for users in (int(text) for text in given.concurrency.split(",") if text):
            outcome = closed_loop(settings, users, given.requests, lambda _: Ask(given.input, given.output))
            ttft, tpot = outcome.ttft_s(), outcome.tpot_s()
            rows.append(
                {
                    "concurrency": users,
                    "ttft_mean_s": float(ttft.mean()),
                    "ttft_p95_s": float(np.quantile(ttft, 0.95)),
                    "tpot_mean_s": float(tpot.mean()) if len(tpot) else None,
                    "output_tokens_per_s": users * given.requests * given.output / outcome.virtual_s,
                    "speed": outcome.speed,
                }
            )
        if given.json:
            print(json.dumps({"simulated": True, "table": settings.table, "rows": rows}))
            return 0
        print("simulated   users  TTFT mean  TTFT p95  TPOT mean  tokens/s  times real time")
        for row in rows:
            tpot_ms = "-" if row["tpot_mean_s"] is None else f"{1e3 * row['tpot_mean_s']:.2f}"
            print(
                f"{row['concurrency']:>17}{1e3 * row['ttft_mean_s']:>9.0f} ms{1e3 * row['ttft_p95_s']:>7.0f} ms"
                f"{tpot_ms:>8} ms{row['output_tokens_per_s']:>10.0f}{row['speed']:>17.0f}"
            )
        return 0

    return run_command(run, "virtual engine")


if __name__ == "__main__":
    sys.exit(run_command(main, "virtual engine"))
