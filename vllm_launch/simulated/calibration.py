"""The host's overhead: the figures published from silicon, the terms fitted on them, and how to fit them again.

Three terms, each with a meaning (see `step_time.Overhead`), fitted on one table of five points (TPOT and TTFT each) and
checked on ten more that took no part. All are means over closed-loop runs of ten requests a user. In lockstep, with
replies of one and the same length, all users would go on asking in the same instant for ever; no real client does. So
the replies of these runs are spread by up to 20 tokens either way (16 to 25 fit about as well; without any, TTFT is
14 % off), which is part of the definition, not of the engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tailgate.exits import BadInput
from vllm_launch.simulated.fitting import least_squares
from vllm_launch.simulated.step_time import Overhead

if TYPE_CHECKING:
    from vllm_launch.simulated.settings import EngineSettings

# Least squares on PUBLISHED below: `python -m vllm_launch.simulated.calibrate --published` makes them anew.
FITTED = Overhead(per_step_s=1.2e-3, per_sequence_s=40e-6, per_request_s=34e-3)
# Two terms alone, the step's constant left out: `fit(published_misses, TWO_FITTED, terms=TWO_TERMS)` makes them anew.
TWO_FITTED = Overhead(per_step_s=0.0, per_sequence_s=61.7e-6, per_request_s=33.7e-3)
TERMS = ("per_step_s", "per_sequence_s", "per_request_s")
TWO_TERMS = ("per_sequence_s", "per_request_s")
_NUDGES = {"per_step_s": 2e-4, "per_sequence_s": 1e-5, "per_request_s": 5e-3}
OVERHEAD_VARIABLE = "TAILGATE_SIMULATED_OVERHEAD"

SPREAD_TOKENS = 20
REQUESTS_PER_USER = 10


@dataclass(frozen=True, slots=True)
class Point:
    """Mean TPOT and TTFT (s) of a closed loop at one concurrency, as published."""

    users: int
    tpot_s: float
    ttft_s: float


@dataclass(frozen=True, slots=True)
class Published:
    """A table of published points for Qwen3-32B, tensor parallel 2, H100 SXM, vLLM 0.12, 2048 batched tokens, 256
    sequences.

    Source: `silicon_sample.csv` of aiconfigurator-core 0.12.0 (Apache-2.0).
    """

    prompt_tokens: int
    output_tokens: int
    points: tuple[Point, ...]


def _published(prompt: int, output: int, rows: str) -> Published:
    """`rows`: users, TPOT ms, TTFT ms; semicolons between points."""
    points = (tuple(map(float, row.split())) for row in rows.split(";"))
    return Published(prompt, output, tuple(Point(int(u), tpot / 1e3, ttft / 1e3) for u, tpot, ttft in points))


PUBLISHED = _published(1024, 1024, "8 15.90 154; 16 17.38 187; 32 20.06 237; 64 26.09 381; 128 37.84 652")
HELD_OUT = (
    _published(1024, 512, "8 16.48 154; 16 17.88 190; 32 21.00 242; 64 28.51 386; 128 42.29 682"),
    _published(1024, 128, "8 18.04 154; 16 22.18 188; 32 29.38 250; 64 46.02 388; 128 80.26 692"),
)

# Prompts of two steps, and a cache too small from 64 users on: where this engine is least true (`make bench`).
BEYOND = _published(4096, 1024, "8 17.87 749; 16 21.88 840; 32 29.33 979; 64 52.57 4376; 128 55.20 58753")


def overhead_for(table: str) -> Overhead:
    """The overhead in use: a user's own fit where the environment names its file, else the one fitted on silicon.

    One fit serves all tables: the terms are the host's, not the GPU's.
    """
    path = os.environ.get(OVERHEAD_VARIABLE)
    if not path:
        return FITTED
    mend = f"make it with python -m vllm_launch.simulated.calibrate RUN -o FILE, or unset {OVERHEAD_VARIABLE}"
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Overhead)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadInput(f"{OVERHEAD_VARIABLE}: cannot read the overhead of {table} from {path}: {error}", mend) from None


@dataclass(frozen=True, slots=True)
class Checked:
    """A published point and what the engine makes of it in virtual time."""

    published: Point
    tpot_s: float
    ttft_s: float
    speed: float


def published_settings(overhead: Overhead | None = None) -> EngineSettings:
    """The engine as the published runs had it; their vLLM admitted prompts without asking whether all of them fits."""
    from vllm_launch.simulated.settings import EngineSettings

    flags: dict[str, object] = {"tensor-parallel-size": 2, "max-num-batched-tokens": 2048, "max-num-seqs": 256}
    flags |= {"gpu-memory-utilization": 0.9, "scheduler-reserve-full-isl": False}
    return EngineSettings.from_flags("Qwen/Qwen3-32B", "h100-sxm", flags, overhead=overhead)[0]


def replay(table: Published, settings: EngineSettings, seeds: Sequence[int] = (0, 1)) -> list[Checked]:
    """Each point of a published table in virtual time; means over runs with these seeds."""
    from vllm_launch.simulated.virtual import Ask, closed_loop

    checked = []
    for point in table.points:
        runs = []
        for seed in seeds:
            rng = np.random.default_rng([seed, point.users])
            total = point.users * REQUESTS_PER_USER
            lengths = table.output_tokens + rng.integers(-SPREAD_TOKENS, SPREAD_TOKENS + 1, total)
            asks = [Ask(table.prompt_tokens, int(length)) for length in lengths]
            runs.append(closed_loop(settings, point.users, REQUESTS_PER_USER, asks.__getitem__))
        tpot, ttft, speed = (
            float(np.mean([value(run) for run in runs]))
            for value in (lambda r: r.tpot_s().mean(), lambda r: r.ttft_s().mean(), lambda r: r.speed)
        )
        checked.append(Checked(point, tpot, ttft, speed))
    return checked


def errors(checked: Sequence[Checked]) -> tuple[float, float]:
    """Mean absolute percentage errors of TPOT and TTFT, as shares."""
    tpot = np.mean([abs(c.tpot_s / c.published.tpot_s - 1) for c in checked])
    ttft = np.mean([abs(c.ttft_s / c.published.ttft_s - 1) for c in checked])
    return float(tpot), float(ttft)


def fit(
    misses: Callable[[Overhead], np.ndarray],
    start: Overhead = FITTED,
    rounds: int = 5,
    terms: Sequence[str] = TERMS,
) -> Overhead:
    """The overhead with the least sum of squared misses; `misses(overhead)` are relative errors, any number of them.

    Only `terms` are fitted, the others stay as in `start`; no term goes below zero.
    """

    def overhead(values: np.ndarray) -> Overhead:
        return replace(start, **dict(zip(terms, map(float, values), strict=True)))

    found = least_squares(
        lambda values: misses(overhead(values)),
        np.array([getattr(start, term) for term in terms]),
        np.array([_NUDGES[term] for term in terms]),
        rounds,
    )
    return overhead(found)


def published_misses(overhead: Overhead) -> np.ndarray:
    """Relative errors of the fitted table, TPOT's then TTFT's."""
    checked = replay(PUBLISHED, published_settings(overhead))
    tpot = [c.tpot_s / c.published.tpot_s - 1 for c in checked]
    ttft = [c.ttft_s / c.published.ttft_s - 1 for c in checked]
    return np.array(tpot + ttft)
