"""Whom the requests go to: a URL, resolved once, so that no name server stands in any measured time."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import gevent.socket

from tailgate.exits import BadInput

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PROBE_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Target:
    """A server, by the one address that all connections of a run use.

    `address` is the socket address for `family` (AF_INET or AF_INET6). Proxies named in the environment are ignored:
    a proxy would be measured along with the server.
    """

    scheme: str
    host: str
    port: int
    base_path: str
    family: int
    address: tuple[Any, ...]

    @classmethod
    def resolve(cls, url: str) -> Target:
        """The server at `url` (http or https). Raises `BadInput` for a URL that is none and for an unknown name.

        Of a name's several addresses the first that accepts a connection is taken (a `localhost` that means ::1 to the
        resolver and 127.0.0.1 to the server is common); where none does, the first, so that requests fail as `connect`.
        """
        scheme, host, port, path = _parts(url)
        try:
            found = gevent.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise BadInput(f"the host '{host}' cannot be resolved ({error})", "check -H/--host") from None
        candidates = [(family, address) for family, _, _, _, address in found]
        family, address = candidates[0] if len(candidates) == 1 else _first_that_accepts(candidates)
        return cls(scheme, host, port, path, family, address)

    @property
    def authority(self) -> str:
        """The value of the Host header: the port is left out where it is the scheme's own (RFC 9110, 7.2)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def _parts(url: str) -> tuple[str, str, int, str]:
    mend = "write it like http://127.0.0.1:8000"
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise BadInput(f"the server's URL '{url}' cannot be read ({error})", mend) from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise BadInput(f"the server's URL '{url}' is not http or https", mend)
    return parts.scheme, parts.hostname, port or _DEFAULT_PORTS[parts.scheme], parts.path.rstrip("/")


def _first_that_accepts(candidates: list[tuple[int, Any]]) -> tuple[int, Any]:
    for family, address in candidates:
        with gevent.socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(_PROBE_TIMEOUT_S)
            try:
                probe.connect(address)
            except OSError:
                continue
            return family, address
    return candidates[0]
