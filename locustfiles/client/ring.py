"""A packet ring: what passes between here and a server, headers and times only, in memory shared with the kernel.

AF_PACKET with a memory-mapped receive ring (Linux, Documentation/networking/packet_mmap). TPACKET_V2, whose frames all
have one size, so that numpy reads a field of thousands of packets as one array. It needs CAP_NET_RAW and sees its own
network namespace only, which is that of this process's sockets too.
"""

from __future__ import annotations

import _socket
import math
import mmap
import socket
import struct
from dataclasses import dataclass

import gevent.socket
import numpy as np
import numpy.typing as npt
import psutil

from locustfiles.client import packet_filter
from locustfiles.client.packet_filter import ETH_P, LAYOUTS
from locustfiles.client.target import Target

_SOL_PACKET, _RX_RING, _STATISTICS, _VERSION, _TPACKET_V2 = 263, 5, 6, 10, 1  # linux/if_packet.h
_ETH_P_ALL = 3
_IP_AT = 80  # where a frame's packet begins: tpacket2_hdr and sockaddr_ll, aligned to 16, and 16 more
_PAGE = 4096
_LOOK_AHEAD = 512
FRAMES = 1 << 16

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Packets:
    """Columns, one entry a packet, in the order of capture."""

    local_port: Int64s
    incoming: npt.NDArray[np.bool_]
    sequence: Int64s
    data: Int64s  # bytes of TCP payload
    flags: npt.NDArray[np.uint8]
    window: Int64s
    ends_response: npt.NDArray[np.bool_]  # the filter's mark
    time_ns: Int64s

    def where(self, chosen: npt.NDArray[np.bool_]) -> Packets:
        """These packets only."""
        return Packets(*(getattr(self, name)[chosen] for name in Packets.__slots__))


def _frame_layout(family: int) -> np.dtype[np.void]:
    ip = LAYOUTS[socket.AddressFamily(family)]
    tcp = _IP_AT + ip.header
    fields: dict[str, tuple[str, int]] = {
        "status": ("u4", 0),
        "kept": ("u4", 8),
        "seconds": ("u4", 16),
        "nanoseconds": ("u4", 20),
        "length": (">u2", _IP_AT + ip.length),
        "source": (">u2", tcp),
        "destination": (">u2", tcp + 2),
        "sequence": (">u4", tcp + 4),
        "tcp_header": ("u1", tcp + 12),
        "flags": ("u1", tcp + 13),
        "window": (">u2", tcp + 14),
    }
    size = math.ceil((_IP_AT + ip.kept + 1) / 16) * 16
    return np.dtype(
        {
            "names": list(fields),
            "formats": [form for form, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": size,
        }
    )


class PacketRing:
    """The ring of one server's traffic. Raises `PermissionError` without CAP_NET_RAW, `OSError` where there is no ring.

    `dropped` counts packets that found the ring full.
    """

    def __init__(self, target: Target, frames: int = FRAMES) -> None:
        family = socket.AddressFamily(target.family)
        self._ip = LAYOUTS[family]
        self._port = target.port
        self._next = 0
        self._dropped = 0
        layout = _frame_layout(family)
        block = math.lcm(layout.itemsize, _PAGE)
        self._frames = frames = math.ceil(frames * layout.itemsize / block) * block // layout.itemsize
        interface = interface_to(target)
        loopback = interface == _loopback()
        # No protocol: nothing is captured before the filter stands and `bind` names one.
        self._socket = _socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        try:
            self._socket.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V2)
            request = struct.pack("IIII", block, frames * layout.itemsize // block, layout.itemsize, frames)
            self._socket.setsockopt(_SOL_PACKET, _RX_RING, request)
            program = packet_filter.server_filter(family, target.address[0].partition("%")[0], target.port, loopback)
            packet_filter.attach(self._socket, program)
            self._memory = mmap.mmap(self._socket.fileno(), frames * layout.itemsize)
            # Only a socket for all protocols is shown what leaves; over loopback all that leaves comes in again.
            self._socket.bind((interface, ETH_P[family] if loopback else _ETH_P_ALL))
        except BaseException:
            self._socket.close()
            raise
        self._ring = np.frombuffer(self._memory, layout, frames)
        self._status = self._ring["status"]

    def drain(self) -> Packets | None:
        """All packets captured since the last call; None where there are none."""
        if not self._status[self._next] & 1:
            return None
        parts = []
        while ready := self._ready():
            frames = self._ring[self._next : self._next + ready]
            parts.append(self._columns(frames))
            self._status[self._next : self._next + ready] = 0
            self._next = (self._next + ready) % self._frames
        if len(parts) == 1:
            return parts[0]
        return Packets(*(np.concatenate([getattr(part, name) for part in parts]) for name in Packets.__slots__))

    def _ready(self) -> int:
        """How many frames from the next one on are filled, without looking past the ring's end or far ahead at once."""
        start = at = self._next
        while at < self._frames:
            status = self._status[at : at + _LOOK_AHEAD] & 1
            if status.all():
                at += len(status)
            else:
                return at + int(status.argmin()) - start
        return at - start

    def _columns(self, frames: npt.NDArray[np.void]) -> Packets:
        source = frames["source"].astype(np.int64)
        incoming = source == self._port
        length = frames["length"].astype(np.int64) + self._ip.length_adds
        return Packets(
            local_port=np.where(incoming, frames["destination"], source),
            incoming=incoming,
            sequence=frames["sequence"].astype(np.int64),
            data=length - self._ip.header - (frames["tcp_header"] >> 4).astype(np.int64) * 4,
            flags=frames["flags"].copy(),
            window=frames["window"].astype(np.int64),
            ends_response=frames["kept"] > self._ip.kept,
            time_ns=frames["seconds"].astype(np.int64) * 1_000_000_000 + frames["nanoseconds"],
        )

    @property
    def dropped(self) -> int:
        # Reading the kernel's counters sets them to zero.
        self._dropped += struct.unpack("II", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8))[1]
        return self._dropped

    def close(self) -> None:
        del self._ring, self._status
        self._socket.close()
        self._memory.close()


def interface_to(target: Target) -> str:
    """The device through which packets to `target` leave; empty (all devices) where that cannot be told."""
    with gevent.socket.socket(target.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(target.address)
        except OSError:
            return ""
        local = probe.getsockname()[0].partition("%")[0]
    if local == target.address[0].partition("%")[0]:
        # A machine reaches all its own addresses over loopback.
        return _loopback()
    named = [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.address.partition("%")[0] == local for address in addresses)
    ]
    return named[0] if len(named) == 1 else ""


def _loopback() -> str:
    return next((name for name, stats in psutil.net_if_stats().items() if "loopback" in stats.flags.split(",")), "lo")
