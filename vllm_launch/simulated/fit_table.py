"""Fits a `FittedTable` on runs of one real server: a replay of each, every request at the time it was really sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from exporters.columns import ABSENT, Columns
from exporters.run import Run
from tailgate.exits import BadInput
from vllm_launch.simulated.catalogue import Device, Model
from vllm_launch.simulated.fitted import FittedTable
from vllm_launch.simulated.fitting import least_squares
from vllm_launch.simulated.settings import EngineSettings
from vllm_launch.simulated.step_time import Overhead
from vllm_launch.simulated.virtual import Ask, open_loop

_FEWEST = 20
_GROUPS = 8
_GAP_LEVELS = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Replayed:
    """A real run's usable requests, ready to be asked again: lengths, arrival (s), and what was measured (s)."""

    asks: list[Ask]
    ttft_s: np.ndarray
    tpot_s: np.ndarray
    gaps_s: np.ndarray


def replayable(run: Run) -> Replayed:
    """What a replay needs of `run`. Raises `BadInput` where too few requests tell their token counts."""
    c = run.columns
    usable = np.flatnonzero(c.ok & (c.first_ns != ABSENT) & (c.prompt_tokens > 0) & (c.output_tokens > 0))
    usable = usable[np.argsort(c.sent_ns[usable])]
    if usable.size < _FEWEST:
        raise BadInput(
            f"{run.path}: {usable.size} requests can be replayed", f"give a run of at least {_FEWEST} good requests"
        )
    start = int(c.sent_ns[usable[0]])
    rows = [(int(c.prompt_tokens[i]), int(c.output_tokens[i]), (int(c.sent_ns[i]) - start) / 1e9) for i in usable]
    chosen = np.zeros(len(c), dtype=np.bool_)
    chosen[usable] = True
    return Replayed(
        [Ask(*row) for row in rows],
        c.per_request("ttft_s")[usable],
        c.per_request("tpot_s")[usable],
        _gaps(c, chosen),
    )


def _gaps(columns: Columns, chosen: np.ndarray) -> np.ndarray:
    return columns.values("itl_s", chosen)


def fit_table(runs: Sequence[Run], flags: Mapping[str, object], model: Model, device: Device) -> FittedTable:
    """The table with which the embedded engine, under `flags`, comes closest to `runs` of one server.

    The KV cache is as the runs' own launch said it. Raises `BadInput` where they do not say it, or hold too little.
    """
    measured = [replayable(run) for run in runs]
    cache = runs[0].facts.launch.get("kv_cache") or {}
    blocks, size = (_whole(cache.get(key)) for key in ("blocks", "block_tokens"))
    if not blocks or not size:
        raise BadInput(f"{runs[0].path}: does not say the engine's KV cache", "launch the engine with an experiment")
    start = FittedTable(
        model,
        device,
        size,
        blocks,
        _start_overhead(measured),
        **_start_terms(measured),
        source=", ".join(run.path.name for run in runs),
        tensor_parallel=_whole(flags.get("tensor-parallel-size")) or 1,
        pipeline_parallel=_whole(flags.get("pipeline-parallel-size")) or 1,
    )

    def table(values: np.ndarray) -> FittedTable:
        step, sequence, request, token, pair, context = (float(np.exp(v)) for v in values)
        return replace(
            start,
            overhead=Overhead(step, sequence, request),
            per_token_s=token,
            per_pair_s=pair,
            per_context_s=context,
        )

    def misses(values: np.ndarray) -> np.ndarray:
        settings, _ = EngineSettings.from_fitted(table(values), flags)
        return np.concatenate([replay_misses(run, settings) for run in measured])

    first = (
        *(start.overhead.per_step_s, start.overhead.per_sequence_s, start.overhead.per_request_s),
        *(start.per_token_s, start.per_pair_s, start.per_context_s),
    )
    found = least_squares(misses, np.log(first), np.full(6, 0.15), rounds=8, floor=-30.0)
    return replace(table(found), error=float(np.abs(misses(found)).mean()))


def replay_misses(run: Replayed, settings: EngineSettings) -> np.ndarray:
    """Log ratios, simulated over measured: TTFT and TPOT of neighbours, short and long prompts apart; gap quantiles."""
    served = {id(r.ask): r for r in open_loop(settings, run.asks, keep_tokens=True).served}
    ttft = np.array([served[id(ask)].ttft_s for ask in run.asks])
    tpot = np.array([served[id(ask)].tpot_s or np.nan for ask in run.asks])
    prompts = np.array([ask.prompt_tokens for ask in run.asks])
    found = []
    middle = np.sqrt(prompts.min() * prompts.max())
    kinds = [prompts <= middle, prompts > middle] if prompts.max() > 3 * prompts.min() else [prompts > 0]
    for kind in kinds:
        members = np.flatnonzero(kind)
        for group in np.array_split(members, max(1, min(_GROUPS, members.size // 5))):
            for simulated, measured in ((ttft, run.ttft_s), (tpot, run.tpot_s)):
                pair = np.nanmean(simulated[group]), np.nanmean(measured[group])
                if np.isfinite(pair).all() and min(pair) > 0:
                    found.append(float(np.log(pair[0] / pair[1])) / len(kinds))
    gaps = np.concatenate([np.diff(r.token_s or []) for r in served.values()])
    tails = (np.maximum(np.quantile(of, _GAP_LEVELS), 1e-6) for of in (gaps, run.gaps_s))
    simulated_tails, measured_tails = tails
    found += (2 * np.log(simulated_tails / measured_tails)).tolist()
    return np.clip(np.array(found), -2.0, 2.0)


def _start_overhead(measured: Sequence[Replayed]) -> Overhead:
    step = float(np.median(np.concatenate([run.gaps_s for run in measured])))
    return Overhead(0.6 * step, 0.04 * step, 0.5 * step)


def _start_terms(measured: Sequence[Replayed]) -> dict[str, float]:
    """A prompt's cost from the slope of TTFT on its length; attention a tenth of that at full length."""
    prompts = np.array([ask.prompt_tokens for run in measured for ask in run.asks])
    ttft = np.concatenate([run.ttft_s for run in measured])
    slope = float(np.polyfit(prompts, ttft, 1)[0]) if np.ptp(prompts) > 0 else float(np.mean(ttft / prompts))
    token = max(slope, 1e-7)
    return {"per_token_s": token, "per_pair_s": 0.1 * token / prompts.max(), "per_context_s": 0.01 * token / 10}


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) and value == int(value) else 0
