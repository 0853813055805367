"""The block pool: what is shared, what is evicted, and when."""

from __future__ import annotations

from vllm_launch.simulated.kv_cache import KVCache


def filled(blocks: int, hashes: list[int]) -> tuple[KVCache, list[int]]:
    cache = KVCache(blocks, 16, caching=True)
    taken = cache.take(len(hashes))
    for block, content in zip(taken, hashes, strict=True):
        cache.remember(block, content)
    return cache, taken


def test_the_longest_cached_prefix_is_found_and_stops_at_the_first_gap() -> None:
    cache, taken = filled(10, [1, 2, 4])
    assert cache.cached_prefix([1, 2, 3, 4], 100) == taken[:2]
    assert cache.cached_prefix([2, 1], 100) == [taken[1], taken[0]]
    assert cache.cached_prefix([9, 1], 100) == []


def test_freed_blocks_keep_their_content_until_they_are_needed() -> None:
    cache, taken = filled(4, [1, 2])
    cache.release(taken)
    assert cache.free == 3
    assert cache.cached_prefix([1, 2], 100) == taken
    cache.take(3)
    assert cache.cached_prefix([1, 2], 100) == []


def test_the_end_of_a_prompt_is_evicted_before_its_start() -> None:
    cache, taken = filled(4, [1, 2, 3])
    cache.release(taken)
    cache.take(1)
    assert cache.cached_prefix([1, 2, 3], 100) == taken[:2]


def test_the_least_recently_freed_goes_first() -> None:
    cache, taken = filled(3, [1, 2])
    cache.release(taken[:1])
    cache.release(taken[1:])
    cache.share(cache.cached_prefix([1], 100))
    cache.release(taken[:1])
    cache.take(1)
    assert cache.cached_prefix([1], 100) == taken[:1]
    assert cache.cached_prefix([2], 100) == []


def test_a_block_in_use_by_two_is_free_only_after_both() -> None:
    cache, taken = filled(3, [1])
    cache.share(taken)
    cache.release(taken)
    assert cache.free == 1
    cache.release(taken)
    assert cache.free == 2


def test_usage_counts_blocks_in_use_only() -> None:
    cache, taken = filled(5, [1, 2])
    assert cache.usage == 0.5
    cache.release(taken)
    assert cache.usage == 0.0
