"""The queue of waiting generations, by order of arrival or by priority."""

from __future__ import annotations

import contextlib
import heapq
from collections import deque
from collections.abc import Iterator

from vllm_launch.simulated.generation import Generation


class FifoWaiting:
    """Waiting sequences in order of arrival; preempted ones return to the front."""

    def __init__(self) -> None:
        self._queue: deque[Generation] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._queue)

    def first(self) -> Generation:
        return self._queue[0]

    def add(self, sequence: Generation) -> None:
        self._queue.append(sequence)

    def put_back(self, sequence: Generation) -> None:
        self._queue.appendleft(sequence)

    def remove(self, sequence: Generation) -> None:
        """Takes it out; one that is still being received is not in yet, which is as well."""
        if self._queue and self._queue[0] is sequence:
            self._queue.popleft()
        else:
            with contextlib.suppress(ValueError):
                self._queue.remove(sequence)


class PriorityWaiting:
    """Waiting sequences by priority (lower first), then arrival; removal marks an entry dead and skips it later."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Generation]] = []
        self._members: set[Generation] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._members)

    def first(self) -> Generation:
        while self._heap[0][3] not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][3]

    def add(self, sequence: Generation) -> None:
        heapq.heappush(self._heap, (sequence.priority, sequence.arrived, sequence.number, sequence))
        self._members.add(sequence)

    put_back = add

    def remove(self, sequence: Generation) -> None:
        self._members.discard(sequence)
        if self._heap and self._heap[0][3] is sequence:
            heapq.heappop(self._heap)


Waiting = FifoWaiting | PriorityWaiting
