"""The scheduler follows vLLM's V1 rules, and keeps its books whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_launch.simulated.generation import Generation, Limits, Phase, Step
from vllm_launch.simulated.kv_cache import KVCache
from vllm_launch.simulated.scheduler import Scheduler

BLOCK = 16


def scheduler(blocks: int = 1001, caching: bool = True, **limits: object) -> Scheduler:
    chosen = {"max_num_scheduled_tokens": 64, "max_num_active_seqs": 8, "max_model_len": 512} | limits
    return Scheduler(Limits(**chosen), KVCache(blocks, BLOCK, caching))  # type: ignore[arg-type]


def add(target: Scheduler, prompt: int, output: int = 4, **fields: object) -> Generation:
    generation = Generation(prompt, output, **fields)  # type: ignore[arg-type]
    target.add(generation)
    return generation


def run(target: Scheduler) -> tuple[Step, list[Generation]]:
    step = target.schedule()
    return step, target.complete(step)[1]


def drain(target: Scheduler, most: int = 10_000) -> int:
    for steps in range(most):
        if not target.unfinished:
            return steps
        run(target)
    raise AssertionError("requests that never end")


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    s = scheduler()
    a = add(s, 150)
    assert [run(s)[0].prefills.get(a) for _ in range(3)] == [64, 64, 22]
    assert s.generated(a) == 1


def test_running_sequences_come_before_waiting_ones() -> None:
    s = scheduler()
    first = add(s, 10, output=100)
    run(s)
    second = add(s, 200)
    step, _ = run(s)
    assert step.decodes == 1
    assert step.prefills == {second: 63}
    assert s.generated(first) == 2


def test_a_chunked_prompt_keeps_its_turn_before_later_ones() -> None:
    s = scheduler()
    long, short = add(s, 100), add(s, 10)
    assert run(s)[0].prefills == {long: 64}
    assert run(s)[0].prefills == {long: 36, short: 10}


def test_prompts_wait_whole_where_chunked_prefill_is_off() -> None:
    s = scheduler(enable_chunked_prefill=False)
    a, b = add(s, 40), add(s, 30)
    assert run(s)[0].prefills == {a: 40}
    assert run(s)[0].prefills == {b: 30}


def test_the_long_prefill_threshold_caps_a_chunk_unless_the_prompt_is_alone() -> None:
    alone = scheduler(long_prefill_token_threshold=16)
    only = add(alone, 60)
    assert run(alone)[0].prefills == {only: 60}
    s = scheduler(long_prefill_token_threshold=16)
    long, short = add(s, 60), add(s, 10)
    assert run(s)[0].prefills == {long: 16, short: 10}


def test_no_more_sequences_run_than_allowed() -> None:
    s = scheduler(max_num_active_seqs=2)
    for _ in range(5):
        add(s, 4, output=3)
    run(s)
    assert len(s.running) == 2
    assert len(s.waiting) == 3


def test_priority_orders_the_queue_by_priority_then_arrival() -> None:
    s = scheduler(priority_policy=True, max_num_active_seqs=1)
    low = add(s, 4, output=1, priority=5, arrived=0.0)
    later = add(s, 4, output=1, priority=0, arrived=2.0)
    earlier = add(s, 4, output=1, priority=0, arrived=1.0)
    order = [run(s)[1][0] for _ in range(3)]
    assert order == [earlier, later, low]


def test_fcfs_ignores_priority() -> None:
    s = scheduler(max_num_active_seqs=1)
    first = add(s, 4, output=1, priority=5)
    add(s, 4, output=1, priority=0)
    assert run(s)[1] == [first]


def test_the_last_sequence_is_preempted_and_computed_again() -> None:
    s = scheduler(blocks=5, max_model_len=64, caching=False)
    first, last = add(s, 31, output=30), add(s, 30, output=30)
    run(s)
    preempted = [step.preempted for step in (run(s)[0] for _ in range(4)) if step.preempted]
    assert preempted == [[last]]
    assert last.phase is Phase.WAITING
    assert s.waiting.first() is last
    generated = s.generated(last)
    assert generated > 0
    drain(s)
    assert s.generated(first) == s.generated(last) == 30
    assert last.preemptions >= 1
    assert first.preemptions == 0


def test_under_priority_the_least_important_is_preempted() -> None:
    s = scheduler(blocks=5, max_model_len=64, caching=False, priority_policy=True)
    least = add(s, 31, output=20, priority=9, arrived=0.0)
    run(s)
    most = add(s, 15, output=20, priority=0, arrived=1.0)
    drain(s)
    assert least.preemptions >= 1
    assert most.preemptions == 0


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    s = scheduler(blocks=5, max_model_len=64, caching=False)
    add(s, 31, output=30)
    add(s, 30, output=30)
    run(s)
    add(s, 1, output=1)
    for _ in range(4):
        step, _ = run(s)
        if step.preempted:
            assert not step.admitted
            return
    raise AssertionError("nothing was preempted")


def test_the_whole_prompt_must_fit_before_a_sequence_is_admitted() -> None:
    held = scheduler(blocks=9, max_model_len=128, caching=False)
    add(held, 60, output=60)
    run(held)
    add(held, 100)
    assert not run(held)[0].admitted
    eager = scheduler(blocks=9, max_model_len=128, caching=False, reserve_full_isl=False)
    add(eager, 60, output=60)
    run(eager)
    assert (add(eager, 100)) in run(eager)[0].admitted


def test_a_shared_prefix_is_not_computed_twice() -> None:
    s = scheduler(max_num_scheduled_tokens=512)
    shared = [101, 102, 103]
    first = add(s, 50, block_hashes=shared)
    second = add(s, 60, block_hashes=[*shared[:2], 777])
    step, _ = run(s)
    assert step.prefills == {first: 50, second: 60 - 2 * BLOCK}
    assert second.cached_tokens == 2 * BLOCK
    assert (s.prefix_queries, s.prefix_hits) == (110, 32)


def test_the_last_token_of_a_prompt_is_computed_even_if_all_of_it_is_cached() -> None:
    s = scheduler(max_num_scheduled_tokens=512)
    add(s, 32, output=1, block_hashes=[1, 2])
    run(s)
    again = add(s, 32, output=1, block_hashes=[1, 2])
    assert run(s)[0].prefills == {again: BLOCK}


def test_the_output_of_a_reply_is_found_by_the_next_turn() -> None:
    s = scheduler(max_num_scheduled_tokens=512)
    add(s, 20, output=30, block_hashes=[1, 2, 3])
    drain(s)
    turn = add(s, 64, output=1, block_hashes=[1, 2, 3, 4])
    run(s)
    assert turn.cached_tokens == 48


def test_prefix_caching_can_be_off() -> None:
    s = scheduler(caching=False)
    for _ in range(2):
        latest = add(s, 32, output=1, block_hashes=[1, 2])
        drain(s)
    assert latest.cached_tokens == 0


def test_a_reply_stops_at_the_models_length() -> None:
    s = scheduler(max_model_len=40)
    a = add(s, 30, output=100)
    drain(s)
    assert s.generated(a) == 10


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (512, 1), (10, 0)])
def test_what_cannot_run_is_refused(prompt: int, output: int) -> None:
    with pytest.raises(ValueError, match="room for at least one token"):
        add(scheduler(), prompt, output)


def test_an_aborted_sequence_gives_back_its_blocks_wherever_it_stands() -> None:
    s = scheduler(caching=False, max_num_active_seqs=2)
    decoding, prefilling, waiting = add(s, 10, output=50), add(s, 200), add(s, 10)
    run(s)
    step = s.schedule()
    for generation in (decoding, prefilling, waiting):
        s.abort(generation)
    assert s.complete(step) == ([], [])
    assert (s.unfinished, s.cache.usage) == (0, 0.0)


requests = st.lists(
    st.tuples(
        st.integers(1, 120), st.integers(1, 60), st.integers(0, 3), st.integers(0, 30), st.integers(0, 2), st.booleans()
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(
    asked=requests,
    budget=st.integers(8, 100),
    seqs=st.integers(1, 8),
    threshold=st.sampled_from([0, 0, 5, 20]),
    blocks=st.integers(12, 40),
    priority=st.booleans(),
    caching=st.booleans(),
    reserve=st.booleans(),
)
def test_every_request_ends_and_no_block_is_lost(
    asked: list[tuple[int, int, int, int, int, bool]],
    budget: int,
    seqs: int,
    threshold: int,
    blocks: int,
    priority: bool,
    caching: bool,
    reserve: bool,
) -> None:
    s = scheduler(
        blocks=blocks + 1,
        caching=caching,
        max_num_scheduled_tokens=max(budget, seqs),
        max_num_active_seqs=seqs,
        max_model_len=blocks * BLOCK,
        long_prefill_token_threshold=threshold,
        priority_policy=priority,
        reserve_full_isl=reserve,
    )
    due = sorted(asked, key=lambda a: a[3])
    told: dict[Generation, int] = {}
    aborted: set[Generation] = set()
    number = 0
    while due or s.unfinished:
        while due and due[0][3] <= number:
            prompt, output, level, _, family, quits = due.pop(0)
            hashes = [family * 100 + i for i in range((prompt + output) // BLOCK)]
            generation = Generation(prompt, output, hashes, level, float(number))
            s.add(generation)
            told[generation] = 0
            if quits and number % 2:
                s.abort(generation)
                aborted.add(generation)
        step = s.schedule()
        assert step.tokens <= s.limits.max_num_scheduled_tokens
        assert len(s.running) <= seqs
        assert step.context == sum(g.prompt_tokens + s.generated(g) for g in s.decoding() if g not in step.starved)
        producing = [g for g in s.decoding() if g not in step.starved]
        assert len(producing) == step.decodes
        before = {g: s.generated(g) for g in told}
        for g in producing:
            assert len(g.blocks) >= s.cache.blocks_for(g.prompt_tokens + before[g])
        started, finished = s.complete(step)
        for g in (*producing, *started):
            told[g] += 1
        for g in told:
            assert s.generated(g) == told[g]
        assert all(told[g] == g.output_tokens for g in finished)
        # Every block is free or in use by someone, and counted once for each who uses it.
        in_use = {block for g in s.running for block in g.blocks}
        assert s.cache.free == s.cache.blocks - len(in_use)
        number += 1
        assert number < 20_000
    assert s.cache.free == s.cache.blocks
    assert all(told[g] == g.output_tokens for g in told if g not in aborted)
