"""Synthetic runs: records and run directories with known latencies, for the tests of whatever reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from exporters.record import RequestRecord
from exporters.run_store import Run, RunStore

START_NS = 1_790_000_000_000_000_000


def record(
    index: int = 0, *, at_s: float = 0.0, ttft_s: float = 0.05, gaps_s: tuple[float, ...] = (), **changes: Any
) -> RequestRecord:
    """A successful request sent `at_s` after the start; `changes` replace any of its fields."""
    sent = START_NS + round(at_s * 1e9)
    first = sent + round(ttft_s * 1e9)
    gaps = [round(gap * 1e9) for gap in gaps_s]
    last = first + sum(gaps)
    fields: dict[str, Any] = {
        "index": index,
        "worker": "w0",
        "request_class": "chat",
        "endpoint": "/v1/chat/completions",
        "sent_ns": sent,
        "first_ns": first,
        "last_ns": last,
        "end_ns": last + 100_000,
        "gaps_ns": gaps,
        "events": len(gaps) + 1,
        "prompt_tokens": 128,
        "output_tokens": len(gaps) + 1,
        "finish_reason": "length",
        "http_status": 200,
        "outcome": "ok",
        "clock": "wire",
        "sequence": index,
    }
    return RequestRecord(**fields | changes)


def failed(index: int = 0, *, at_s: float = 0.0, error: str = "http_500", **changes: Any) -> RequestRecord:
    """A request that failed 10 ms after it was sent, before any event."""
    sent = START_NS + round(at_s * 1e9)
    return record(
        index,
        at_s=at_s,
        **{
            "first_ns": None,
            "last_ns": None,
            "end_ns": sent + 10_000_000,
            "events": 0,
            "output_tokens": None,
            "outcome": "failed",
            "error": error,
            "finish_reason": None,
        }
        | changes,
    )


def queueing_records(
    seed: int,
    *,
    seconds: float = 60.0,
    rate: float = 20.0,
    load: float = 0.6,
    tokens: int = 16,
    slower: float = 1.0,
    ttft_slower: float = 1.0,
) -> list[RequestRecord]:
    """Requests of one first-come-first-served queue in open loop (Lindley's recursion): neighbours correlate."""
    rng = np.random.default_rng(seed)
    count = int(rate * seconds)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    service = rng.gamma(4.0, load / rate / 4.0, count)
    records = []
    free_at = 0.0
    for i in range(count):
        begin = max(free_at, arrivals[i])
        free_at = begin + service[i]
        busy = 1 + 4 * (begin - arrivals[i])
        gaps = 0.01 * busy * slower * rng.gamma(50.0, 1 / 50.0, tokens - 1)
        records.append(
            record(
                i,
                at_s=arrivals[i],
                ttft_s=(free_at - arrivals[i] + 0.02) * slower * ttft_slower,
                gaps_s=tuple(gaps),
                scheduled_ns=START_NS + round(arrivals[i] * 1e9),
            )
        )
    return records


def meta(seconds: float = 60.0, **changes: Any) -> dict[str, Any]:
    """What run.json says of such a run."""
    return {
        "label": "base",
        "workload": {"name": "chat-short"},
        "model": "llama",
        "seed": 1,
        "arrival": {"kind": "poisson", "rate": 20.0},
        "users": 64,
        "clock": "wire",
        "engine": {"name": "vllm", "version": "0.32.0", "simulated": False},
        "window": {"start_ns": START_NS, "end_ns": START_NS + round(seconds * 1e9)},
        "argv": ["locust", "-f", "locustfiles/chat.py", "--headless"],
        "launch": {"name": "base", "args": {"max-num-seqs": 256}},
    } | changes


def store(directory: Path, records: list[RequestRecord], **changes: Any) -> Run:
    """Those records as a finished run directory."""
    run = RunStore.create(directory, meta(**changes))
    run.append(records)
    run.finish()
    return Run.load(directory)
