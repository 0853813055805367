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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from locustfiles.client.hub import readiness

if TYPE_CHECKING:
    from locustfiles.client.connection import Connection

Nanoseconds = npt.NDArray[np.int64]
_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; the socket module has no name for it
CLOCKS = ("auto", "wire", "kernel", "user")


class Clock(ABC):
    """What `Connection` and `StreamingClient` ask of a clock, in the order in which they ask it."""

    name: str

    def __init__(self) -> None:
        self.unstamped = 0

    @abstractmethod
    def prepare(self, sock: Any) -> None:
        """`sock` is about to be connected."""

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
        """When the byte completing each of these counts of raw bytes (ascending) arrived; how many are later than that
        because a read held several of them or the time was lost."""

    @abstractmethod
    def closing(self, connection: Connection) -> None:
        """The socket is about to be closed. Called once, also for connections that were never established."""

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

    def prepare(self, sock: Any) -> None:
        if self._stamped:
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

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
        shared = int(np.count_nonzero(read[1:] == read[:-1]))
        return times[read], shared

    def closing(self, connection: Connection) -> None:
        self._readiness.remove(connection.fd)

    def close(self) -> None:
        self._readiness.close()


def read_times(connection: Connection) -> tuple[Nanoseconds, Nanoseconds]:
    """The reads of the current response as sorted arrays: raw bytes taken up to each read's end, and its time in ns."""
    reads = np.array(connection.reads, np.int64).reshape(-1, 2)
    # A read that came without a stamp has the later time of its reading: it cannot have arrived after what followed it.
    return reads[:, 0], np.minimum.accumulate(reads[::-1, 1])[::-1]


def has_receive_stamps() -> bool:
    """Whether this system stamps TCP data on arrival (Linux does)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except OSError:
            return False
        return hasattr(probe, "recvmsg_into")
