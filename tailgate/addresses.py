"""Where a server listens: a name, an IPv4 or an IPv6 address, all alike."""

from __future__ import annotations

import socket


def family_of(host: str) -> socket.AddressFamily:
    """That of the host's first address. Raises `OSError` where it has none."""
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]


def url_of(host: str, port: int) -> str:
    """`http://HOST:PORT`, as a client writes it."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
