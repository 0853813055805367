"""Segments stay with their connections, in order, however many come at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gevent
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from locustfiles.client.wire import WireClock

CONNECTIONS = 70  # more than the columns hold at first


class _NoRing:
    dropped = 0

    def drain(self) -> None:
        return None

    def close(self) -> None:
        pass


def _clock() -> tuple[WireClock, list[Any]]:
    ring: Any = _NoRing()
    clock = WireClock(ring, gevent.get_hub().loop)
    made: list[Any] = []
    for port in range(CONNECTIONS):
        sock = SimpleNamespace(getsockname=lambda port=port: ("", 1000 + port))
        made.append(SimpleNamespace(sock=sock, taken=0, fd=-1))
        clock.connecting(made[-1])
    return clock, made


ticks = st.lists(
    st.lists(st.tuples(st.integers(0, CONNECTIONS - 1), st.sampled_from([1, 1, 1, 3, 95, 96, 97, 300])), min_size=1),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(ticks, st.randoms(use_true_random=False))
def test_every_segment_is_found_with_its_connection(batches: list[list[tuple[int, int]]], chance: Any) -> None:
    clock, made = _clock()
    expected: dict[int, list[int]] = {}
    number = 0
    for batch in batches:
        slots = [slot for slot, count in batch for _ in range(count)]
        chance.shuffle(slots)
        numbers = np.arange(number, number + len(slots))
        number += len(slots)
        for slot, one in zip(slots, numbers.tolist(), strict=True):
            expected.setdefault(slot, []).append(one)
        clock._store(np.array(slots, np.int64), numbers, numbers + 1, numbers + 2)
    for connection in made:
        clock._spill(connection.trace.slot)
        rows = np.array(connection.trace.segments).reshape(-1, 3)
        mine = np.array(expected.get(connection.trace.slot, []), np.int64)
        assert (rows == np.stack((mine, mine + 1, mine + 2), axis=1)).all()
        assert len(rows) == len(mine)
    clock.close()
