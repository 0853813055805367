"""What a prefix cache can find of a plan's prompts, by design, counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workloads import Plan, Workload, load_workload, make_plan
from workloads.reuse import PrefixCache


def plan(workload: Workload, **keys: Any) -> Plan:
    return make_plan(workload, **{"seed": 4, "model": "m", "counter": None, **keys})


def test_only_whole_blocks_behind_equal_beginnings_are_found() -> None:
    cache = PrefixCache()
    cache.add([("head", 10), ("a", 30)], 100)
    assert cache.reuse.cached_tokens == 0
    cache.add([("head", 10), ("a", 30)], 100)
    assert cache.reuse.cached_tokens == 32, "40 tokens are two whole blocks of 16"
    cache.add([("head", 10), ("b", 30), ("a", 30)], 100)
    assert cache.reuse.cached_tokens == 32, "the same text behind another is another"
    cache.add([("head", 10), ("a", 30)], 32)
    assert cache.reuse == (332, 32 + 16), "the last token is never found"


def test_prompts_of_their_own_share_nothing() -> None:
    workload = Workload.model_validate({"name": "w", "classes": {"a": {"input-tokens": 64, "output-tokens": 4}}})
    assert plan(workload).designed_reuse(dict.fromkeys(range(500), 1)).share == 0


def test_groups_and_system_prompts_are_found_from_their_second_time_on() -> None:
    item = {"input-tokens": 512, "output-tokens": 4, "endpoint": "completions"}
    workload = Workload.model_validate(
        {"name": "w", "classes": {"a": item | {"shared-prefix": {"tokens": 256, "groups": 2}}}}
    )
    assert plan(workload).designed_reuse(dict.fromkeys(range(100), 1)).share == pytest.approx(
        98 * 256 / (100 * 512), abs=0.02
    )


def test_a_later_turn_finds_all_that_was_said_and_counts_only_where_it_was_sent() -> None:
    chat = {"input-tokens": 64, "output-tokens": 32, "turns": {"count": 4, "input-tokens": 20}}
    workload = Workload.model_validate({"name": "w", "classes": {"a": chat}})
    begun = plan(workload).designed_reuse({0: 1, 1: 1})
    assert begun is not None
    assert begun.share == 0
    later = plan(workload).designed_reuse({0: 1, 1: 2})
    assert later is not None
    assert later.prompt_tokens - begun.prompt_tokens > 64 + 32
    assert later.cached_tokens == 96


def test_a_traces_blocks_are_found_where_prompts_begin_with_the_same(tmp_path: Path) -> None:
    rows = [(1024, [1, 2]), (1024, [1, 2]), (1024, [3, 2]), (700, [1, 9])]
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        "".join(
            f'{{"timestamp": {i}, "input_length": {length}, "output_length": 1, "hash_ids": {ids}}}\n'
            for i, (length, ids) in enumerate(rows)
        )
    )
    reuse = plan(load_workload("mooncake-conversation"), trace=trace).designed_reuse(dict.fromkeys(range(4), 1))
    # 1023 of 1024 are two blocks less one of 16; the third begins otherwise; of the fourth one block is known.
    assert reuse.prompt_tokens == 3 * 1024 + 700
    assert reuse.cached_tokens == pytest.approx(1008 + 512, abs=3 * 16)
