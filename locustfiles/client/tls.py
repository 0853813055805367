"""TLS over a socket of our own, and the map from plaintext back to the ciphertext the clocks know.

A clock knows when byte number n of the socket's stream arrived; a response is read as plaintext. OpenSSL takes one
record at a time from its input buffer, so what is left in that buffer after each read says where the record ended that
held the plaintext just returned.
"""

from __future__ import annotations

import ssl
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from tailgate.exits import BadInput

Offsets = npt.NDArray[np.int64]

_LARGEST_RECORD = 16384  # bytes of plaintext (RFC 8446, 5.1)


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Whom to trust: the system's authorities, those in the PEM file `ca` instead, or (`insecure`) anyone."""

    ca: Path | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """A client context that offers HTTP/1.1 only. Raises `BadInput` where `ca` cannot be used."""
        try:
            context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(
                f"--tls-ca {self.ca}: {error.strerror or error}", "give a PEM file of certificates"
            ) from None
        context.set_alpn_protocols(["http/1.1"])
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class Codec(Protocol):
    """What stands between a socket's bytes and the HTTP in them."""

    def encode(self, plain: bytes) -> bytes:
        """`plain` as it goes on the wire."""
        ...

    def decode(self, raw: bytes) -> bytes:
        """The plaintext that `raw`, the socket's next bytes, completed. Raises `ssl.SSLError`."""
        ...

    def mark(self) -> None:
        """Counts the plaintext of `raw_offsets` from here on."""
        ...

    def raw_offsets(self, offsets: Offsets) -> Offsets:
        """How many bytes of the socket's stream had to arrive for each of these counts of plaintext."""
        ...


class PlainCodec:
    """No TLS: the socket's bytes are the HTTP."""

    __slots__ = ("_base", "_decoded")

    def __init__(self) -> None:
        self._base = self._decoded = 0

    def encode(self, plain: bytes) -> bytes:
        return plain

    def decode(self, raw: bytes) -> bytes:
        self._decoded += len(raw)
        return raw

    def mark(self) -> None:
        self._base = self._decoded

    def raw_offsets(self, offsets: Offsets) -> Offsets:
        return offsets + self._base


class TlsCodec:
    """One TLS connection, without its socket."""

    __slots__ = ("_base", "_buffer", "_incoming", "_outgoing", "_plain", "_plain_ends", "_raw_ends", "_ssl", "_written")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._buffer = bytearray(_LARGEST_RECORD)
        self._written = self._plain = self._base = 0
        self._plain_ends, self._raw_ends = array("q"), array("q")

    def shake_hands(self, raw: bytes) -> tuple[bytes, bool]:
        """Takes the server's next handshake bytes (none at first); returns the reply to send and whether all is agreed.

        Raises `ssl.SSLError` (a certificate refused, among others).
        """
        self._written += len(raw)
        self._incoming.write(raw)
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return self._outgoing.read(), False
        return self._outgoing.read(), True

    def farewell(self) -> bytes:
        """What is left to send when the handshake failed: the alert that tells the server why."""
        return self._outgoing.read()

    def encode(self, plain: bytes) -> bytes:
        self._ssl.write(plain)
        return self._outgoing.read()

    def decode(self, raw: bytes) -> bytes:
        self._written += len(raw)
        self._incoming.write(raw)
        pieces: list[bytes] = []
        buffer = self._buffer
        while self._incoming.pending:
            try:
                # Given a buffer, it returns the count; the stubs know of the other form only.
                length = cast(int, self._ssl.read(_LARGEST_RECORD, buffer))
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                break
            pieces.append(bytes(memoryview(buffer)[:length]))
            self._plain += length
            self._plain_ends.append(self._plain)
            self._raw_ends.append(self._written - self._incoming.pending)
        return b"".join(pieces)

    def mark(self) -> None:
        self._base = self._plain
        del self._plain_ends[:], self._raw_ends[:]

    def raw_offsets(self, offsets: Offsets) -> Offsets:
        record = np.searchsorted(np.array(self._plain_ends, np.int64), offsets + self._base)
        raw_ends = np.array(self._raw_ends, np.int64)
        return raw_ends[np.minimum(record, len(raw_ends) - 1)]
