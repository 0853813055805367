"""`--clock auto|wire|kernel|user`: the best clock that this machine allows, and one line about it."""

from __future__ import annotations

import errno
import socket
import time

import gevent
import gevent.socket

from locustfiles.client.clock import CLOCKS, Clock, ReadClock, has_receive_stamps
from locustfiles.client.ring import FRAMES, PacketRing
from locustfiles.client.target import Target
from locustfiles.client.wire import WireClock
from tailgate.exits import BadInput

_HOW_TO_GRANT = (
    "run as root, add the capability to the container (docker --cap-add NET_RAW), "
    "or: setcap cap_net_raw+ep on the Python binary"
)
_PROBE_TIMEOUT_S = 2.0
_RING_SLACK_S = 0.25


class _NoRing(Exception):
    """Why there is no packet ring, and how to get one."""

    def __init__(self, problem: str, mend: str) -> None:
        self.problem = problem
        self.mend = mend
        super().__init__(problem)


def open_clock(name: str, target: Target, ring_packets: int | None = None) -> tuple[Clock, str]:
    """The clock called `name` (one of `CLOCKS`) for connections to `target`, and the line a user should read about it.

    `auto` takes the best there is; `ring_packets` is what a packet ring holds (None: its own default). Raises
    `BadInput` where a clock asked for by name cannot be had.
    """
    if name not in CLOCKS:
        raise BadInput(f"--clock: unknown clock '{name}'", f"known: {', '.join(CLOCKS)}")
    loop = gevent.get_hub().loop
    why = ""
    if name in ("auto", "wire"):
        try:
            return WireClock(_ring(target, ring_packets or FRAMES), loop), "clock: wire (packet ring)"
        except _NoRing as missing:
            if name == "wire":
                raise BadInput(f"--clock wire: {missing.problem}", missing.mend) from None
            why = f"; no wire clock: {missing.problem} ({missing.mend})"
    stamps = has_receive_stamps()
    if name == "kernel" and not stamps:
        raise BadInput("--clock kernel: this system does not stamp what it receives", "use --clock user, or Linux")
    if name == "user" or not stamps:
        return ReadClock("user", loop), f"clock: user (time of reading, late whenever this process is busy){why}"
    return ReadClock("kernel", loop), f"clock: kernel (receive times){why}"


def _ring(target: Target, packets: int) -> PacketRing:
    if not hasattr(socket, "AF_PACKET"):
        raise _NoRing("this system has no packet rings", "they need Linux")
    try:
        ring = PacketRing(target, packets)
    except PermissionError:
        raise _NoRing("CAP_NET_RAW is missing", _HOW_TO_GRANT) from None
    except OSError as error:
        raise _NoRing(f"the packet ring cannot be set up: {error.strerror}", "use --clock kernel") from None
    if _is_blind(ring, target):
        ring.close()
        raise _NoRing(
            "the packet ring does not see this server's packets",
            "its address is translated on this machine, as a service's can be: give the server's own address",
        )
    return ring


def _is_blind(ring: PacketRing, target: Target) -> bool:
    """Whether a connection that succeeds leaves no trace in the ring. A server that is down proves nothing."""
    with gevent.socket.socket(target.family, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        ring.prepare(probe)
        if probe.connect_ex(target.address) not in (0, errno.EISCONN):
            return False
        # Over a real device the packet is in the ring before the connection stands, bar a moment.
        end = time.monotonic() + _RING_SLACK_S
        while time.monotonic() < end:
            if ring.drain() is not None:
                return False
            gevent.sleep(0.01)
    return True
