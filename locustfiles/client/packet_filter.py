"""The kernel-side filter of the packet ring: which packets of a server's are captured, and how much of each.

Classic BPF (linux/filter.h), run by the kernel on each packet from its IP header on. A filter's verdict is the number
of bytes to keep, and here it says one thing more: a data segment whose last bytes are those of a chunked response's end
(`0 CRLF CRLF`) is kept one byte longer than any other. So a reader of the ring sees in one field which streams have
(very probably) ended, without the payload.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from dataclasses import dataclass
from typing import Any

# linux/bpf_common.h
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30
_LOAD_WORD_AT_X, _LOAD_BYTE_AT_X = 0x40, 0x50
_IF_EQUAL, _IF_BITS, _IF_ABOVE, _IF_AT_LEAST = 0x15, 0x45, 0x25, 0x35
_AND, _SHIFT_RIGHT, _SUBTRACT, _SUBTRACT_X = 0x54, 0x74, 0x14, 0x1C
_A_TO_X, _RETURN = 0x07, 0x06
# Negative offsets that read the packet's metadata instead (linux/filter.h: SKF_AD_OFF + ...).
_PROTOCOL, _PACKET_TYPE = 0xFFFFF000, 0xFFFFF004
_OUTGOING = 4  # linux/if_packet.h
_FIN_SYN_RST = 0x07

ETH_P = {socket.AF_INET: 0x0800, socket.AF_INET6: 0x86DD}


@dataclass(frozen=True, slots=True)
class IpLayout:
    """Offsets, from the IP header on, of what filter and ring read."""

    header: int  # bytes of IP header; packets with options or extension headers are not captured
    length: int  # a 16-bit length field ...
    length_adds: int  # ... and what it leaves out of the packet's length
    protocol: int
    source: int
    destination: int
    address_size: int

    @property
    def kept(self) -> int:
        """Bytes kept of each packet: up to and with TCP's window, less than any segment with data has."""
        return self.header + 16


LAYOUTS = {
    socket.AF_INET: IpLayout(20, 2, 0, 9, 12, 16, 4),
    socket.AF_INET6: IpLayout(40, 4, 40, 6, 8, 24, 16),
}


class _Program:
    """Instructions with named jump targets."""

    def __init__(self) -> None:
        self._code: list[tuple[int, str | None, str | None, int]] = []
        self._labels: dict[str, int] = {}

    def do(self, operation: int, value: int = 0) -> None:
        self._code.append((operation, None, None, value))

    def when(self, test: int, value: int, then: str | None = None, otherwise: str | None = None) -> None:
        self._code.append((test, then, otherwise, value))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def assembled(self) -> list[tuple[int, int, int, int]]:
        def hop(here: int, label: str | None) -> int:
            return self._labels[label] - here - 1 if label else 0

        return [(op, hop(i, then), hop(i, other), value) for i, (op, then, other, value) in enumerate(self._code)]


Ports = tuple[int, int]
ALL_PORTS: Ports = (0, 65535)


def server_filter(
    family: int, address: str, port: int, loopback: bool, ports: Ports = ALL_PORTS
) -> list[tuple[int, int, int, int]]:
    """Instructions (code, jump if true, jump if false, value) that keep, of the TCP traffic with this server:

    from it: segments with data, connection openings and ends, and closed windows; to it: segments with data and closed
    windows. Only connections whose local port lies within `ports`, both ends included. On a loopback device each packet
    passes once and comes "from outside" both ways.
    """
    layout = LAYOUTS[socket.AddressFamily(family)]
    tcp = layout.header
    p = _Program()
    if not loopback:
        p.do(_LOAD_HALF, _PROTOCOL)
        p.when(_IF_EQUAL, ETH_P[socket.AddressFamily(family)], otherwise="drop")
    if family == socket.AF_INET:
        p.do(_LOAD_BYTE, 0)
        p.when(_IF_EQUAL, 0x45, otherwise="drop")
        p.do(_LOAD_HALF, 6)
        p.when(_IF_BITS, 0x1FFF, then="drop")
    p.do(_LOAD_BYTE, layout.protocol)
    p.when(_IF_EQUAL, socket.IPPROTO_TCP, otherwise="drop")
    p.do(_LOAD_HALF, tcp)
    p.when(_IF_EQUAL, port, otherwise="to the server")
    _match_ports(p, tcp + 2, ports)
    _match_address(p, family, address, layout.source)
    if not loopback:
        p.do(_LOAD_HALF, _PACKET_TYPE)
        p.when(_IF_EQUAL, _OUTGOING, then="drop")
    p.do(_LOAD_BYTE, tcp + 13)
    p.when(_IF_BITS, _FIN_SYN_RST, then="keep")
    p.do(_LOAD_HALF, tcp + 14)
    p.when(_IF_EQUAL, 0, then="keep")
    _drop_without_data(p, layout)
    p.do(_LOAD_HALF, layout.length)
    p.do(_SUBTRACT, 5 - layout.length_adds & 0xFFFFFFFF)
    p.do(_A_TO_X)
    p.do(_LOAD_BYTE_AT_X, 0)
    p.when(_IF_EQUAL, ord("0"), otherwise="keep")
    p.do(_LOAD_WORD_AT_X, 1)
    p.when(_IF_EQUAL, int.from_bytes(b"\r\n\r\n", "big"), then="keep marked", otherwise="keep")
    p.label("to the server")
    p.do(_LOAD_HALF, tcp + 2)
    p.when(_IF_EQUAL, port, otherwise="drop")
    _match_ports(p, tcp, ports)
    _match_address(p, family, address, layout.destination)
    if not loopback:
        p.do(_LOAD_HALF, _PACKET_TYPE)
        p.when(_IF_EQUAL, _OUTGOING, otherwise="drop")
    p.do(_LOAD_HALF, tcp + 14)
    p.when(_IF_EQUAL, 0, then="keep")
    _drop_without_data(p, layout)
    p.label("keep")
    p.do(_RETURN, layout.kept)
    p.label("keep marked")
    p.do(_RETURN, layout.kept + 1)
    p.label("drop")
    p.do(_RETURN, 0)
    return p.assembled()


def _match_ports(p: _Program, offset: int, ports: Ports) -> None:
    if ports != ALL_PORTS:
        p.do(_LOAD_HALF, offset)
        p.when(_IF_AT_LEAST, ports[0], otherwise="drop")
        p.when(_IF_ABOVE, ports[1], then="drop")


def _match_address(p: _Program, family: int, address: str, offset: int) -> None:
    packed = socket.inet_pton(socket.AddressFamily(family), address)
    for i in range(0, len(packed), 4):
        p.do(_LOAD_WORD, offset + i)
        p.when(_IF_EQUAL, int.from_bytes(packed[i : i + 4], "big"), otherwise="drop")


def _drop_without_data(p: _Program, layout: IpLayout) -> None:
    p.do(_LOAD_BYTE, layout.header + 12)
    p.do(_AND, 0xF0)
    p.do(_SHIFT_RIGHT, 2)
    p.do(_A_TO_X)
    p.do(_LOAD_HALF, layout.length)
    p.do(_SUBTRACT, layout.header - layout.length_adds & 0xFFFFFFFF)
    p.do(_SUBTRACT_X)
    p.when(_IF_EQUAL, 0, then="drop")


def attach(sock: Any, program: list[tuple[int, int, int, int]]) -> None:
    """Gives `sock` the filter (SO_ATTACH_FILTER). Raises `OSError`."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    sock.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", len(program), ctypes.addressof(code)))
