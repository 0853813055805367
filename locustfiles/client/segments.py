"""From captured TCP segments to the times at which a stream's bytes had arrived. Pure.

An in-order byte has arrived when all bytes before it have: a segment that overtook another arrived, as far as a reader
is concerned, with the one that closed the gap; a retransmission of what was there already arrived never.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
_SEQUENCES = 1 << 32


@dataclass(frozen=True, slots=True)
class Arrivals:
    """All bytes up to `ends[i]` had arrived at `times_ns[i]`; both ascend.

    Where `lost[i]`, the bytes after `ends[i-1]` were never seen by the capture and have no time (`lost` is None where
    there are none). `repeated` and `overtaken` count segments that held nothing new, and that came ahead of an earlier
    one.
    """

    ends: Int64s
    times_ns: Int64s
    lost: npt.NDArray[np.bool_] | None = None
    repeated: int = 0
    overtaken: int = 0


def unwrap(sequence: Int64s, first: Int64s, near: Int64s) -> Int64s:
    """Stream offsets of 32-bit TCP sequence numbers, `first` being offset 0's: of all offsets with that number (they
    recur each 4 GiB) the one nearest to `near`."""
    half = _SEQUENCES // 2
    return near + ((sequence - first - near + half) & (_SEQUENCES - 1)) - half


def in_order(starts: Int64s, ends: Int64s, times_ns: Int64s, base: int) -> Arrivals:
    """Arrivals of the bytes past offset `base`, from the segments [start, end) in the order of their capture."""
    if len(starts) and starts[0] == base and bool((starts[1:] == ends[:-1]).all()):
        return Arrivals(ends, times_ns)
    edge = np.maximum.accumulate(np.concatenate([[base], ends]))[:-1]
    new = ends > edge
    if (starts[new] > edge[new]).any():
        return _reordered(starts, ends, times_ns, base)
    # What ends at or before `base` belongs to an earlier response, which has counted it.
    return Arrivals(ends[new], times_ns[new], repeated=int(np.count_nonzero(~new & (ends > base))))


def between(times: Int64s, guessed: npt.NDArray[np.bool_]) -> Int64s:
    """Nothing arrives before what precedes it, nor after what follows: guesses are kept between the known times."""
    earliest = np.maximum.accumulate(np.where(guessed, 0, times))
    latest = np.minimum.accumulate(np.where(guessed, np.iinfo(np.int64).max, times)[::-1])[::-1]
    return np.where(guessed, np.clip(times, earliest, latest), times)


def _reordered(starts: Int64s, ends: Int64s, times_ns: Int64s, base: int) -> Arrivals:
    edge, repeated, overtaken = base, 0, 0
    ahead: list[tuple[int, int, int]] = []
    found: list[tuple[int, int, bool]] = []
    for start, end, time_ns in zip(starts.tolist(), ends.tolist(), times_ns.tolist(), strict=True):
        if end <= edge:
            repeated += end > base
        elif start > edge:
            heapq.heappush(ahead, (start, end, time_ns))
        else:
            edge = end
            while ahead and ahead[0][0] <= edge:
                overtaken += 1
                edge = max(edge, heapq.heappop(ahead)[1])
            found.append((edge, time_ns, False))
    latest = found[-1][1] if found else 0
    while ahead:
        # The bytes before this segment reached the reader, yet the capture has not seen them: it was overrun.
        start, end, time_ns = heapq.heappop(ahead)
        if start > edge:
            found.append((start, latest, True))
        if end > edge:
            edge, latest = end, max(latest, time_ns)
            found.append((edge, latest, False))
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    return Arrivals(
        np.array(columns[0], np.int64),
        np.array(columns[1], np.int64),
        np.array(columns[2], bool) if any(columns[2]) else None,
        repeated,
        overtaken,
    )
