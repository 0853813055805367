"""The seam between reading sockets and telling time: when did byte number n of a connection arrive?

A clock watches connections, decides when their sockets are read, and afterwards maps raw byte offsets to arrival times.
All times are CLOCK_REALTIME in ns, the clock of the kernel's packet stamps. Three clocks, best first:

- wire (`wire.py`): a packet ring sees every segment; exact however late sockets are read;
- kernel: the kernel stamps what it receives; exact while each read holds one event, because of merged segments it keeps
  the last one's time only;
- user: the time at which the socket was read.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from locustfiles.client.hub import readiness
from locustfiles.client.spread import Spread

if TYPE_CHECKING:
    from locustfiles.client.connection import Connection

Nanoseconds = npt.NDArray[np.int64]
_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; the socket module has no name for it
CLOCKS = ("auto", "wire", "kernel", "user")


@dataclass(frozen=True, slots=True)
class ClockHealth:
    """What a clock knows of its own truth and of the network, counted over its whole life.

    `late_events` of all token `events` had to be given a time later than their arrival. `difference_…` is between two
    clocks over `compared` reads (wire: the kernel's stamp against the ring's; kernel: the time of reading against the
    stamp, that is how late this program reads), in seconds, None where nothing was compared. `ring_drops` are packets
    that found the ring full, `unstamped_reads` reads that came without the kernel's stamp. Of the network: segments
    that came ahead of an earlier one (reordering, or the other was lost); segments that came again though they had
    arrived (their acknowledgement was late or lost; reading sockets late delays it, and the server's tail loss probe
    then repeats one); closed windows, either side's: one could not take what the other had to send.
    """

    clock: str
    events: int
    late_events: int
    unstamped_reads: int = 0
    ring_drops: int = 0
    repeated_segments: int = 0
    overtaking_segments: int = 0
    zero_windows: int = 0
    compared: int = 0
    difference_p50_s: float | None = None
    difference_p99_s: float | None = None


class Clock(ABC):
    """What `Connection` and `StreamingClient` ask of a clock, in the order in which they ask it."""

    name: str

    def __init__(self) -> None:
        self.unstamped = 0
        self.lateness = Spread()

    @abstractmethod
    def prepare(self, sock: Any) -> None:
        """`sock` is about to be connected."""

    @abstractmethod
    def out_of_ports(self, sock: Any) -> bool:
        """No local port is left for `sock`; whether it is worth trying again."""

    @abstractmethod
    def connecting(self, connection: Connection) -> None:
        """The connection has a local port; it may not be established yet."""

    @abstractmethod
    def watch(self, connection: Connection) -> None:
        """The connection is established: read it when there is something to read, until `closing`."""

    @abstractmethod
    def sending(self, connection: Connection, whole_at_once: bool) -> None:
        """A request is about to be sent on it. `whole_at_once`: nothing is known of the answer before its end."""

    @abstractmethod
    def departure(self, connection: Connection, sent_ns: int) -> int:
        """When the request handed to the kernel at `sent_ns` left."""

    @abstractmethod
    def arrivals(self, connection: Connection, offsets: Nanoseconds) -> tuple[Nanoseconds, int]:
        """When the byte completing each of these counts of raw bytes arrived, and how many are given later than that,
        because a read held several or the time was lost. `offsets` ascend; the last is the response's end, and is no
        event: it is not in that number."""

    @abstractmethod
    def closing(self, connection: Connection) -> None:
        """The socket is about to be closed. Called once, also for connections that were never established."""

    @abstractmethod
    def health(self) -> ClockHealth: ...

    @abstractmethod
    def close(self) -> None:
        """Ends all watching."""


class ReadClock(Clock):
    """Sockets are read as soon as the loop turns; what a read held arrived when the read says."""

    def __init__(self, name: str, loop: Any) -> None:
        super().__init__()
        self.name = name
        self._readiness = readiness(loop)
        self._stamped = name == "kernel"
        self._events = self._late = 0

    def prepare(self, sock: Any) -> None:
        if self._stamped:
            stamp_receives(sock)

    def out_of_ports(self, sock: Any) -> bool:
        return False

    def connecting(self, connection: Connection) -> None:
        pass

    def watch(self, connection: Connection) -> None:
        self._readiness.add(connection.fd, connection.read)

    def sending(self, connection: Connection, whole_at_once: bool) -> None:
        pass

    def departure(self, connection: Connection, sent_ns: int) -> int:
        return sent_ns

    def arrivals(self, connection: Connection, offsets: Nanoseconds) -> tuple[Nanoseconds, int]:
        ends, times = read_times(connection)
        read = np.searchsorted(ends, offsets)
        # All but the last event of a read came earlier than its stamp, by an unknown time.
        shared = int(np.count_nonzero(read[1:-1] == read[:-2]))
        self._events += len(offsets) - 1
        self._late += shared
        return times[read], shared

    def health(self) -> ClockHealth:
        return ClockHealth(
            clock=self.name,
            events=self._events,
            late_events=self._late,
            unstamped_reads=self.unstamped if self._stamped else 0,
            compared=self.lateness.count,
            difference_p50_s=self.lateness.quantile_s(0.5),
            difference_p99_s=self.lateness.quantile_s(0.99),
        )

    def closing(self, connection: Connection) -> None:
        self._readiness.remove(connection.fd)

    def close(self) -> None:
        self._readiness.close()


def read_times(connection: Connection) -> tuple[Nanoseconds, Nanoseconds]:
    """The reads of the current response as sorted arrays: raw bytes taken up to each read's end, and its time in ns."""
    reads = np.array(connection.reads, np.int64).reshape(-1, 2)
    # A read that came without a stamp has the later time of its reading: it cannot have arrived after what followed it.
    return reads[:, 0], np.minimum.accumulate(reads[::-1, 1])[::-1]


def stamp_receives(sock: Any) -> None:
    """Has the kernel stamp what `sock` receives. Raises `OSError` where it cannot (Linux can)."""
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def has_receive_stamps() -> bool:
    """Whether this system stamps TCP data on arrival."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            stamp_receives(probe)
        except OSError:
            return False
        return hasattr(probe, "recvmsg_into")
