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
import sys
from dataclasses import dataclass
from typing import Any

import gevent.socket
import numpy as np
import numpy.typing as npt
import psutil

from locustfiles.client import packet_filter, ports
from locustfiles.client.packet_filter import ETH_P, LAYOUTS
from locustfiles.client.ports import PortSlice
from locustfiles.client.target import Target

_SOL_PACKET, _RX_RING, _STATISTICS, _VERSION, _TPACKET_V2 = 263, 5, 6, 10, 1  # linux/if_packet.h
_ETH_P_ALL = 3
_IP_AT = 80  # where a frame's packet begins: tpacket2_hdr and sockaddr_ll, aligned to 16, and 16 more
_PAGE = 4096
_LOOK_AHEAD = 64
_LITTLE_ENDIAN = sys.byteorder == "little"
FRAMES = 1 << 16

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Packets:
    """Columns, one entry a packet, in the order of capture."""

    local_port: npt.NDArray[np.uint32]
    incoming: npt.NDArray[np.bool_]
    sequence: Int64s
    data: Int64s  # bytes of TCP payload
    flags: npt.NDArray[Any]
    window: npt.NDArray[Any]
    ends_response: npt.NDArray[np.bool_]  # the filter's mark
    time_ns: Int64s


class _FrameWords:
    """A ring's frame as 32-bit words: which of them hold what. Words of the packet are in network order."""

    STATUS, KEPT, SECONDS, NANOSECONDS = 0, 2, 4, 5  # struct tpacket2_hdr

    def __init__(self, family: int) -> None:
        ip = LAYOUTS[socket.AddressFamily(family)]
        self.count = math.ceil((_IP_AT + ip.kept + 1) / 16) * 4
        self.ip = _IP_AT // 4
        self.length = ip.length // 4
        self.length_shift = 16 if ip.length % 4 == 0 else 0
        self.tcp = ip.header // 4
        self.end = self.ip + self.tcp + 4


class PacketRing:
    """The ring of one server's traffic. Raises `PermissionError` without CAP_NET_RAW, `OSError` where there is no ring.

    It holds packets of connections within a slice of the local ports (see `prepare`), if one could be had. `dropped`
    counts packets that found the ring full.
    """

    def __init__(self, target: Target, frames: int = FRAMES) -> None:
        family = socket.AddressFamily(target.family)
        self._ip = LAYOUTS[family]
        self._port = target.port
        self._next = 0
        self._dropped = 0
        self._words = words = _FrameWords(family)
        frame = 4 * words.count
        block = math.lcm(frame, _PAGE)
        self._frames = frames = math.ceil(frames * frame / block) * block // frame
        interface = interface_to(target)
        self._target = target
        self._loopback = interface == _loopback()
        self._slice = PortSlice.claim()
        # No protocol: nothing is captured before the filter stands and `bind` names one.
        self._socket = _socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        try:
            self._socket.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V2)
            request = struct.pack("IIII", block, frames * frame // block, frame, frames)
            self._socket.setsockopt(_SOL_PACKET, _RX_RING, request)
            self._filter()
            self._memory = mmap.mmap(self._socket.fileno(), frames * frame)
            # Only a socket for all protocols is shown what leaves; over loopback all that leaves comes in again.
            self._socket.bind((interface, ETH_P[family] if self._loopback else _ETH_P_ALL))
        except BaseException:
            self._socket.close()
            if self._slice:
                self._slice.close()
            raise
        self._ring = np.frombuffer(self._memory, np.uint32).reshape(frames, words.count)
        self._status = self._ring[:, words.STATUS]

    def _filter(self) -> None:
        watched = (self._slice.low, self._slice.high) if self._slice else packet_filter.ALL_PORTS
        address = self._target.address[0].partition("%")[0]
        program = packet_filter.server_filter(self._target.family, address, self._port, self._loopback, watched)
        packet_filter.attach(self._socket, program)

    def prepare(self, sock: Any) -> None:
        """Has `sock`, which is about to connect, take a port that the ring watches."""
        if self._slice:
            self._slice.apply(sock)

    def widen(self, sock: Any) -> bool:
        """The slice is used up: watches all ports from now on and frees `sock` of it. False where it was so already."""
        if not self._slice:
            return False
        self._slice.close()
        self._slice = None
        self._filter()
        ports.lift(sock)
        return True

    def drain(self) -> Packets | None:
        """All packets captured since the last call; None where there are none."""
        parts = []
        while True:
            start = self._next
            ready = self._ready()
            if ready:
                parts.append(self._columns(self._ring[start : start + ready]))
                self._status[start : start + ready] = 0
                self._next = (start + ready) % self._frames
            # Only at the ring's end is there more to see at once.
            if self._next or not ready:
                break
        if len(parts) < 2:
            return parts[0] if parts else None
        return Packets(*(np.concatenate([getattr(part, name) for part in parts]) for name in Packets.__slots__))

    def _ready(self) -> int:
        """How many frames are filled from the next one on, up to the ring's end."""
        start = at = self._next
        # Frames not yet filled are the kernel's: it writes them on another core while we look, so look not too far.
        ahead = _LOOK_AHEAD
        while at < self._frames:
            filled = self._status[at : at + ahead] & 1
            count = int(filled.argmin())
            if not filled[count]:
                return at + count - start
            at += len(filled)
            ahead *= 2
        return at - start

    def _columns(self, frames: npt.NDArray[np.uint32]) -> Packets:
        words = self._words
        packet = (
            frames[:, words.ip : words.end].byteswap() if _LITTLE_ENDIAN else frames[:, words.ip : words.end].copy()
        )
        ports, sequence, last = packet[:, words.tcp], packet[:, words.tcp + 1], packet[:, words.tcp + 3]
        source = ports >> 16
        incoming = source == self._port
        data = (packet[:, words.length] >> words.length_shift & 0xFFFF).astype(np.int64)
        data -= last >> 28 << 2
        data += self._ip.length_adds - self._ip.header
        time_ns = frames[:, words.SECONDS].astype(np.int64)
        time_ns *= 1_000_000_000
        time_ns += frames[:, words.NANOSECONDS]
        return Packets(
            local_port=np.where(incoming, ports & 0xFFFF, source),
            incoming=incoming,
            sequence=sequence.astype(np.int64),
            data=data,
            flags=last >> 16 & 0xFF,
            window=last & 0xFFFF,
            ends_response=frames[:, words.KEPT] > self._ip.kept,
            time_ns=time_ns,
        )

    @property
    def dropped(self) -> int:
        # Reading the kernel's counters sets them to zero.
        self._dropped += struct.unpack("II", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8))[1]
        return self._dropped

    def close(self) -> None:
        if self._slice:
            self._slice.close()
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
