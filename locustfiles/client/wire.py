"""The wire clock: arrivals from the packet ring, so that sockets can be read late and in bulk without moving a figure.

Every few milliseconds the ring is drained, as numpy columns, and its segments are put with those of their connections.
A socket is read when the ring shows that it is worth it: its stream seems to have ended, its answer has just begun (an
error is short), much has piled up (if it piles up fast, at once from then on, so as not to throttle the server); and
otherwise a few times a second, so that parsing keeps pace and little is left to do at the end, when a user waits.
If ends turn out to come without the signs that announce them, all sockets are read often instead. A few connections are
read whenever there is something: that costs little then, and their users' next requests leave at once.
"""

from __future__ import annotations

import time
from array import array
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from locustfiles.client.clock import Clock, ClockHealth, Nanoseconds, read_times, stamp_receives
from locustfiles.client.connection import Connection
from locustfiles.client.hub import BatchedReadiness
from locustfiles.client.ring import PacketRing, Packets
from locustfiles.client.segments import Arrivals, between, in_order, unwrap
from locustfiles.client.spread import Spread

Int64s = npt.NDArray[np.int64]

_TICK_S = 0.007
_EAGER_TURNS = 1  # ticks between two reads of a stream whose end may come unannounced
_LAZY_TURNS = 64  # the same where ends are announced
_SURPRISES_BORNE = 0.02  # share of unannounced ends up to which sockets are read lazily
_SURPRISES_REMEMBERED = 0.05  # weight of the latest end in that share
_NOTICED_LATE_NS = 12_000_000  # a user's next request should leave within 10 ms of a stream's end
_SAFETY_TURNS = 143  # ticks between two looks at all sockets, whatever the ring says
_FIRST_BYTES = 256
_PILE = 24 * 1024  # bytes unread that are worth a read
_FLOOD = 40 * 1024  # bytes unread that show that a tick is too long to wait
_SMALL = 64  # bytes; no event with a token in it is so small, the end of a stream (also under TLS) is
_FEW = 16  # connections that can all be read at once, whenever there is something, at no great cost
_COMPARED = 7  # one connection in eight
_ROOM = 96  # segments kept in a slot's row
_CLOCKS_DIFFER_NS = 100_000
_FIN, _SYN, _RST = 1, 2, 4
_NEVER = np.iinfo(np.int64).max


class _Trace:
    """What the ring has seen of one connection: (start, end, time) of its segments, flat, by stream offset."""

    __slots__ = ("anchored", "announced", "base", "departed_ns", "drops_before", "port", "segments", "slot")

    def __init__(self, port: int, slot: int) -> None:
        self.port = port
        self.slot = slot
        self.segments = array("q")
        self.base = 0
        self.departed_ns = 0
        self.drops_before = 0
        self.anchored = False
        self.announced = False


class WireClock(Clock):
    """One for the connections of a process to one target."""

    name = "wire"

    def __init__(self, ring: PacketRing, loop: Any) -> None:
        super().__init__()
        self._ring = ring
        self._prompt = BatchedReadiness(loop)
        self._sockets = BatchedReadiness(None)
        self._tick = loop.timer(_TICK_S, _TICK_S, ref=False)
        self._turn = 0
        self._turns_between_reads = _LAZY_TURNS
        self._surprises = 0.0
        self._traces: list[tuple[_Trace, Connection] | None] = []
        self._free: list[int] = []
        self._worth_reading: set[int] = set()
        self._slot_of_port = np.full(1 << 16, -1, np.int64)
        # By slot; one more, the last, is nobody's. Offsets count from the first byte of the connection's stream.
        self._first = np.zeros(1, np.int64)  # sequence number of offset 0, -1 while unknown
        self._seen = np.zeros(1, np.int64)  # end of the furthest segment seen
        self._taken = np.zeros(1, np.int64)  # bytes read from the socket
        self._eager_until = np.zeros(1, np.int64)  # offset below which each segment is read at once
        self._sent_ns = np.zeros(1, np.int64)
        self._departed_ns = np.zeros(1, np.int64)
        self._stored = np.empty((1, _ROOM, 3), np.int64)  # start, end, time of the latest segments
        self._held = np.zeros(1, np.int64)  # how many of them there are
        self._difference = Spread()
        self._events = self._late = 0
        self._repeated = self._overtaken = self._zero_windows = 0

    # The connection's life.

    def prepare(self, sock: Any) -> None:
        stamp_receives(sock)
        self._ring.prepare(sock)
        # The port about to be given may have belonged to a connection just closed: its last packets go first.
        self._drain()

    def out_of_ports(self, sock: Any) -> bool:
        return self._ring.widen(sock)

    def connecting(self, connection: Connection) -> None:
        slot = self._free.pop() if self._free else self._new_slot()
        trace = _Trace(connection.sock.getsockname()[1], slot)
        connection.trace = trace
        self._traces[slot] = (trace, connection)
        self._slot_of_port[trace.port] = slot
        self._first[slot] = -1
        self._seen[slot] = self._taken[slot] = self._departed_ns[slot] = 0
        self._sent_ns[slot] = _NEVER
        self._eager_until[slot] = _NEVER

    def watch(self, connection: Connection) -> None:
        self._prompt.add(connection.fd, partial(self._read, connection.trace.slot, True))
        if not self._tick.active:
            self._tick.start(self._on_tick)

    def sending(self, connection: Connection, whole_at_once: bool) -> None:
        trace: _Trace = connection.trace
        slot = trace.slot
        if len(self._traces) - len(self._free) <= _FEW:
            if self._sockets.remove(connection.fd):
                self._prompt.add(connection.fd, partial(self._read, slot, True))
        elif self._prompt.remove(connection.fd):
            self._sockets.add(connection.fd, connection.read)
        trace.base = connection.taken
        trace.drops_before = self._ring.dropped
        del trace.segments[:]
        self._taken[slot] = connection.taken
        self._eager_until[slot] = _NEVER if whole_at_once else connection.taken + _FIRST_BYTES
        self._departed_ns[slot] = 0
        self._sent_ns[slot] = time.time_ns()

    def departure(self, connection: Connection, sent_ns: int) -> int:
        trace: _Trace = connection.trace
        if trace.slot >= 0:
            if not self._departed_ns[trace.slot]:
                self._drain()
            trace.departed_ns = int(self._departed_ns[trace.slot])
        return trace.departed_ns or sent_ns

    def closing(self, connection: Connection) -> None:
        self._prompt.remove(connection.fd)
        self._sockets.remove(connection.fd)
        trace: _Trace | None = connection.trace
        if trace is None:
            return
        self._drain()
        slot = trace.slot
        self._spill(slot)
        trace.departed_ns = int(self._departed_ns[slot])
        trace.anchored = bool(self._first[slot] >= 0)
        self._slot_of_port[trace.port] = -1
        self._traces[slot] = None
        self._worth_reading.discard(slot)
        self._free.append(slot)
        trace.slot = -1
        if len(self._free) == len(self._traces):
            self._tick.stop()

    def arrivals(self, connection: Connection, offsets: Nanoseconds) -> tuple[Nanoseconds, int]:
        trace: _Trace = connection.trace
        if trace.slot >= 0:
            if self._seen[trace.slot] < offsets[-1]:
                self._drain()
            self._spill(trace.slot)
            trace.anchored = bool(self._first[trace.slot] >= 0)
        rows = np.array(trace.segments, np.int64).reshape(-1, 3)
        seen = in_order(rows[:, 0], rows[:, 1], rows[:, 2], trace.base)
        self._repeated += seen.repeated
        self._overtaken += seen.overtaken
        self._events += len(offsets) - 1
        segment = np.searchsorted(seen.ends, offsets)
        overrun = self._ring.dropped > trace.drops_before
        if not overrun and seen.lost is None and trace.anchored and segment[-1] < len(seen.ends):
            times, late = seen.times_ns[segment], 0
        else:
            times, late = self._patched(connection, offsets, seen, segment)
        self._learn(surprised=not trace.announced and time.time_ns() - times[-1] > _NOTICED_LATE_NS)
        if not trace.slot & _COMPARED:
            self._compare(connection, seen)
        return times, late

    def _patched(
        self, connection: Connection, offsets: Nanoseconds, seen: Arrivals, segment: Int64s
    ) -> tuple[Nanoseconds, int]:
        """Arrivals where the ring has not seen everything: what it missed has the kernel's time of its read."""
        read_ends, read_ns = read_times(connection)
        fallback = read_ns[np.searchsorted(read_ends, offsets)]
        if not connection.trace.anchored or not len(seen.ends):
            self._late += len(offsets) - 1
            return fallback, len(offsets) - 1
        missing = segment == len(seen.ends)
        segment = np.where(missing, 0, segment)
        if seen.lost is not None:
            missing |= seen.lost[segment]
        if not seen.overtaken:
            # No byte arrived after the stamp of the read that took it: what the ring shows then is a repeated segment,
            # the first having found the ring full. (Where segments overtook each other such a stamp is that of the one
            # that came first, and says nothing of the bytes that it had to wait for.)
            missing |= seen.times_ns[segment] > fallback + _CLOCKS_DIFFER_NS
        late = int(np.count_nonzero(missing[:-1]))
        self._late += late
        return between(np.where(missing, fallback, seen.times_ns[segment]), missing), late

    def health(self) -> ClockHealth:
        return ClockHealth(
            clock=self.name,
            events=self._events,
            late_events=self._late,
            unstamped_reads=self.unstamped,
            ring_drops=self._ring.dropped,
            repeated_segments=self._repeated,
            overtaking_segments=self._overtaken,
            zero_windows=self._zero_windows,
            compared=self._difference.count,
            difference_p50_s=self._difference.quantile_s(0.5),
            difference_p99_s=self._difference.quantile_s(0.99),
        )

    def close(self) -> None:
        self._tick.stop()
        self._tick.close()
        self._prompt.close()
        self._sockets.close()
        self._ring.close()

    # The ring.

    def _on_tick(self) -> None:
        self._turn += 1
        self._drain()
        announced, self._worth_reading = self._worth_reading, set()
        for slot in announced:
            self._read(slot, announced=True)
        between = self._turns_between_reads
        part = slice(self._turn % between, None, between)
        for slot in (self._seen[:-1][part] > self._taken[:-1][part]).nonzero()[0].tolist():
            self._read(slot * between + part.start, announced=False)
        if self._turn % _SAFETY_TURNS == 0:
            self._sockets.poll()

    def _drain(self) -> None:
        packets = self._ring.drain()
        if packets is None:
            return
        slot = self._slot_of_port[packets.local_port]
        flags, data = packets.flags, packets.data
        if not packets.window.all():
            self._zero_windows += int(np.count_nonzero((packets.window == 0) & (flags & _RST == 0) & (slot >= 0)))
        special = flags & (_FIN | _SYN | _RST)
        if special.any():
            opening = np.flatnonzero((special & _SYN > 0) & (slot >= 0))
            self._first[slot[opening]] = (packets.sequence[opening] + 1) % (1 << 32)
        first, seen = self._first[slot], self._seen[slot]
        start = unwrap(packets.sequence, first, seen)
        end = start + data
        ours = slot >= 0
        filled = packets.incoming & (data > 0) & ours
        known = filled & (first >= 0) & (start >= 0)
        if not filled.all():
            self._note_departures(packets, slot, (ours & ~packets.incoming & (data > 0)).nonzero()[0])
        if known.all():
            self._store(slot, start, end, packets.time_ns)
            np.maximum.at(self._seen, slot, end)
        elif known.any():
            self._store(slot[known], start[known], end[known], packets.time_ns[known])
            np.maximum.at(self._seen, slot[known], end[known])
        worth_reading = (data <= _SMALL) | (start < self._eager_until[slot]) | (end > self._taken[slot] + _PILE)
        worth_reading |= packets.ends_response
        worth_reading &= known
        worth_reading |= filled ^ known
        if special.any():
            worth_reading |= special & (_FIN | _RST) > 0
        # Only the tick reads: this may be called from a user's greenlet, and reading wakes others.
        self._worth_reading.update(slot[worth_reading].tolist())

    def _note_departures(self, packets: Packets, slot: Int64s, leaving: Int64s) -> None:
        slot, time_ns = slot[leaving], packets.time_ns[leaving]
        first = (self._departed_ns[slot] == 0) & (time_ns >= self._sent_ns[slot])
        # Backwards, so that of several segments of one request the first is written last.
        self._departed_ns[slot[first][::-1]] = time_ns[first][::-1]

    def _read(self, slot: int, announced: bool) -> None:
        entry = self._traces[slot] if slot >= 0 else None
        if entry is None:
            return
        trace, connection = entry
        trace.announced = announced
        if self._seen[slot] > connection.taken + _FLOOD and self._sockets.remove(connection.fd):
            # So much at once would fill the window before the next tick, and hold up the server.
            self._prompt.add(connection.fd, partial(self._read, slot, True))
        connection.read()
        if trace.slot == slot:
            self._taken[slot] = connection.taken
            # The ring is filled a moment before the socket is.
            if announced and connection.taken < self._seen[slot]:
                self._worth_reading.add(slot)

    def _learn(self, surprised: bool) -> None:
        self._surprises += _SURPRISES_REMEMBERED * (surprised - self._surprises)
        self._turns_between_reads = _EAGER_TURNS if self._surprises > _SURPRISES_BORNE else _LAZY_TURNS

    def _compare(self, connection: Connection, seen: Arrivals) -> None:
        """The kernel's time of each read against the ring's of the same byte: the two clocks must agree."""
        if not len(seen.ends) or not connection.trace.anchored:
            return
        read_ends, read_ns = read_times(connection)
        at = np.minimum(np.searchsorted(seen.ends, read_ends), len(seen.ends) - 1)
        self._difference.add((read_ns - seen.times_ns[at])[seen.ends[at] == read_ends].tolist())

    # What the ring saw, by slot, until it is asked for.

    def _store(self, slot: Int64s, start: Int64s, end: Int64s, time_ns: Int64s) -> None:
        """Keeps each segment in its slot's row, in order of capture."""
        count = len(slot)
        order = slot.argsort(kind="stable")
        slot = slot[order]
        rows = np.empty((count, 3), np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2] = start[order], end[order], time_ns[order]
        begins = np.ones(count, bool)
        np.not_equal(slot[1:], slot[:-1], out=begins[1:])
        first = begins.nonzero()[0]
        owners = slot[first]
        counts = np.empty_like(first)
        counts[:-1] = first[1:] - first[:-1]
        counts[-1] = count - first[-1]
        held = self._held[owners]
        full = held + counts > _ROOM
        if full.any():
            for owner in owners[full].tolist():
                self._spill(owner)
            held = self._held[owners]
            if counts.max() > _ROOM:
                self._store_with_care(owners, first, counts, rows)
                return
        self._held[owners] = held + counts
        group = begins.cumsum() - 1
        place = (held - first)[group] + np.arange(count)
        self._stored.reshape(-1, 3)[slot * _ROOM + place] = rows

    def _store_with_care(self, owners: Int64s, first: Int64s, counts: Int64s, rows: Int64s) -> None:
        """The same where some slot's row has no room for all of it, spilled though it is."""
        for slot, begin, count in zip(owners.tolist(), first.tolist(), counts.tolist(), strict=True):
            self._spill(slot)
            self._append(slot, rows[begin : begin + count])

    def _spill(self, slot: int) -> None:
        """Moves a slot's segments to its connection's trace."""
        self._append(slot, self._stored[slot, : self._held[slot]])
        self._held[slot] = 0

    def _append(self, slot: int, rows: Int64s) -> None:
        entry = self._traces[slot]
        if entry:
            entry[0].segments.frombytes(rows.tobytes())

    def _new_slot(self) -> int:
        slot = len(self._traces)
        self._traces.append(None)
        if slot == len(self._first) - 1:
            more = max(64, slot)
            for name in ("_first", "_seen", "_taken", "_eager_until", "_sent_ns", "_departed_ns", "_held", "_stored"):
                old = getattr(self, name)[:-1]
                setattr(self, name, np.concatenate([old, np.zeros((more + 1, *old.shape[1:]), np.int64)]))
        return slot
