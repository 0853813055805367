"""A slice of the ephemeral ports for this process alone, so that each worker's packet ring holds its own packets only.

Without it each of n workers on a machine would be shown the packets of all n. Which slices are taken is settled by
names in the abstract unix socket namespace: like ports they belong to the network namespace, and they vanish with
their owner.
"""

from __future__ import annotations

import _socket
import contextlib
import socket
import struct
from pathlib import Path
from typing import Any

_IP_LOCAL_PORT_RANGE = 51  # linux/in.h, since Linux 6.3
_PORTS = 2048


class PortSlice:
    """Ports `low` to `high`, claimed until `close`."""

    def __init__(self, low: int, high: int, claim: Any) -> None:
        self.low = low
        self.high = high
        self._claim = claim

    @classmethod
    def claim(cls) -> PortSlice | None:
        """A slice nobody else has; None where all are taken, or the system cannot keep a socket within one."""
        try:
            first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        except (OSError, ValueError):
            return None
        for low in range(first, last - _PORTS + 2, _PORTS):
            claim = _socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0tailgate-ports-{low}".encode())
            except OSError:
                claim.close()
                continue
            found = cls(low, low + _PORTS - 1, claim)
            if found._works():
                return found
            found.close()
            break
        return None

    def _works(self) -> bool:
        probe = _socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self.apply(probe)
        except OSError:
            return False
        finally:
            probe.close()
        return True

    def apply(self, sock: Any) -> None:
        """Has `sock`, when it connects, take its port from the slice."""
        sock.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, struct.pack("I", self.low | self.high << 16))

    def close(self) -> None:
        self._claim.close()


def lift(sock: Any) -> None:
    """Lets `sock` take any port again."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, struct.pack("I", 0))
