"""The pure part of the wire clock: sequence numbers to offsets, segments to in-order arrival times."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locustfiles.client.segments import between, in_order, unwrap
from locustfiles.client.wire import WireClock


def _arrivals(segments: list[tuple[int, int, int]], base: int = 0):  # type: ignore[no-untyped-def]
    rows = np.array(segments, np.int64).reshape(-1, 3)
    return in_order(rows[:, 0], rows[:, 1], rows[:, 2], base)


def test_segments_in_order_arrive_when_captured() -> None:
    seen = _arrivals([(0, 10, 100), (10, 30, 200), (30, 31, 300)])
    assert seen.ends.tolist() == [10, 30, 31]
    assert seen.times_ns.tolist() == [100, 200, 300]
    assert seen.lost is None
    assert (seen.repeated, seen.overtaken) == (0, 0)


def test_a_segment_that_overtook_arrives_with_the_one_that_closes_the_gap() -> None:
    seen = _arrivals([(0, 10, 100), (20, 30, 200), (30, 40, 250), (10, 20, 900), (40, 50, 950)])
    assert dict(zip(seen.ends.tolist(), seen.times_ns.tolist(), strict=True)) == {10: 100, 40: 900, 50: 950}
    assert seen.overtaken == 2
    assert seen.lost is None


def test_a_retransmission_does_not_move_what_had_arrived() -> None:
    seen = _arrivals([(0, 10, 100), (10, 20, 200), (10, 20, 700), (0, 20, 800), (20, 30, 900)])
    assert seen.ends.tolist() == [10, 20, 30]
    assert seen.times_ns.tolist() == [100, 200, 900]
    assert seen.repeated == 2


def test_a_retransmission_that_brings_new_bytes_too_counts_for_those() -> None:
    seen = _arrivals([(0, 10, 100), (5, 25, 300)])
    assert (seen.ends.tolist(), seen.times_ns.tolist(), seen.repeated) == ([10, 25], [100, 300], 0)


def test_what_an_overrun_ring_missed_is_marked_and_the_rest_keeps_its_times() -> None:
    seen = _arrivals([(0, 10, 100), (30, 40, 300), (40, 50, 400)])
    assert seen.lost is not None
    assert list(zip(seen.ends.tolist(), seen.times_ns.tolist(), seen.lost.tolist(), strict=True)) == [
        (10, 100, False),
        (30, 100, True),
        (40, 300, False),
        (50, 400, False),
    ]


def test_bytes_of_an_earlier_response_are_not_counted() -> None:
    seen = _arrivals([(0, 10, 100), (10, 20, 200), (20, 30, 300)], base=20)
    assert (seen.ends.tolist(), seen.times_ns.tolist(), seen.repeated) == ([30], [300], 0)


def test_nothing_captured() -> None:
    assert len(_arrivals([]).ends) == 0


@pytest.mark.parametrize("first", [0, 1, 2**31, 2**32 - 1, 2**32 - 700])
def test_sequence_numbers_wrap_around(first: int) -> None:
    offsets = np.array([0, 500, 1500, 2**31 - 5, 2**32 - 1, 2**32 + 10, 3 * 2**32 + 7], np.int64)
    sequences = (offsets + first) % 2**32
    near = np.maximum(0, offsets - 1_000_000)
    firsts = np.full(len(offsets), first, np.int64)
    assert unwrap(sequences, firsts, near).tolist() == offsets.tolist()


def test_an_old_sequence_number_lies_behind_not_four_gigabytes_ahead() -> None:
    one = np.array([100], np.int64)
    assert unwrap(one + 2**32 - 200, np.array([2**32 - 200], np.int64), np.array([5000], np.int64)).tolist() == [100]


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    order=st.randoms(use_true_random=False),
    copies=st.lists(st.integers(0, 29), max_size=10),
)
def test_any_order_and_repetition_gives_the_time_at_which_all_before_had_come(
    sizes: list[int], order, copies: list[int]
) -> None:
    borders = np.cumsum([0, *sizes]).tolist()
    pieces = [(borders[i], borders[i + 1]) for i in range(len(sizes))]
    sent = pieces + [pieces[i % len(pieces)] for i in copies]
    order.shuffle(sent)
    segments = [(start, end, 1000 + i) for i, (start, end) in enumerate(sent)]
    seen = _arrivals(segments)
    assert seen.lost is None
    for _, end in pieces:
        needed = max(min(t for a, b, t in segments if (a, b) == piece) for piece in pieces if piece[1] <= end)
        assert seen.times_ns[np.searchsorted(seen.ends, end)] == needed
    assert (np.diff(seen.ends) > 0).all()
    assert (np.diff(seen.times_ns) >= 0).all()


def test_where_the_ring_lacks_an_end_what_a_loss_held_back_keeps_its_time() -> None:
    """The read that took both has the stamp of the segment that came too early, as Linux has it."""
    ms = 1_000_000
    seen = _arrivals([(0, 10, 100 * ms), (20, 30, 110 * ms), (10, 20, 300 * ms)])
    assert seen.overtaken == 1
    clock = WireClock.__new__(WireClock)
    clock._late = 0
    reads = array("q", [10, 100 * ms, 30, 110 * ms, 40, 310 * ms])
    connection: Any = SimpleNamespace(reads=reads, trace=SimpleNamespace(anchored=True))
    offsets = np.array([10, 20, 30, 40])
    times, _ = clock._patched(connection, offsets, seen, np.searchsorted(seen.ends, offsets))
    assert (times // ms).tolist() == [100, 300, 300, 310]


def test_a_guessed_time_stays_between_its_neighbours_and_moves_none_of_them() -> None:
    """The read that took event 1 came at 90, after events 2 and 3 had been seen on the wire; event 4's at 25."""
    times = np.array([10, 90, 20, 30, 25, 40])
    guessed = np.array([False, True, False, False, True, False])
    assert between(times, guessed).tolist() == [10, 20, 20, 30, 30, 40]
