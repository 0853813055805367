"""Step times fitted on runs of a server that no table of measured kernels stands for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporters.columns import Columns
from exporters.record import RequestRecord
from tailgate.exits import BadInput
from vllm_launch.engine.embedded import stand_ins
from vllm_launch.simulated.fit_table import fit_table

STAND_INS = stand_ins("tiny", "cpu", 4096)
STEP_S, PROMPT_TOKEN_S = 0.005, 0.00005


def _run(kv_cache: dict[str, float]) -> Any:
    """A server that is never busy: a step takes the same time each, and longer by its tokens of prompt."""
    records = []
    for index in range(40):
        sent_ns = 10**18 + index * 200_000_000
        prompt_tokens = (100, 150, 200, 250)[index % 4]
        gaps = [int(STEP_S * 1e9)] * 19
        first_ns = sent_ns + int((STEP_S + prompt_tokens * PROMPT_TOKEN_S) * 1e9)
        end_ns = first_ns + sum(gaps)
        records.append(
            RequestRecord(
                index=index,
                worker="worker-0",
                request_class="chat",
                endpoint="/v1/chat/completions",
                sent_ns=sent_ns,
                first_ns=first_ns,
                last_ns=end_ns,
                end_ns=end_ns,
                gaps_ns=gaps,
                events=20,
                prompt_tokens=prompt_tokens,
                output_tokens=20,
                outcome="ok",
                clock="wire",
            )
        )
    facts = SimpleNamespace(launch={"kv_cache": kv_cache}, label="mine")
    return SimpleNamespace(path=Path("run"), columns=Columns.of(records), facts=facts)


def test_the_cache_is_as_the_engine_says_and_the_times_are_found() -> None:
    """vLLM's page has numbers, which run.json keeps as such: 8192.0 blocks."""
    table = fit_table([_run({"blocks": 8192.0, "block_tokens": 128.0})], {}, *STAND_INS)
    assert (table.kv_blocks, table.block_size) == (8192, 128)
    assert table.error < 0.02


def test_an_engine_that_does_not_tell_its_cache_is_named() -> None:
    with pytest.raises(BadInput, match="run: does not say the engine's KV cache"):
        fit_table([_run({"tokens": 4096.0})], {}, *STAND_INS)
