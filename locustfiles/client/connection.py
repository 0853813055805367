"""One TCP connection to the target: opened, written to, read with a time for every read, closed.

Sockets are plain non-blocking ones that gevent's hub watches; nothing here depends on monkey-patching.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import math
import os
import socket
import ssl
import struct
import sys
import time
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import gevent
from gevent.hub import Waiter

from locustfiles.client.errors import TIMEOUT_CONNECT, Failure, from_exception
from locustfiles.client.hub import wait_writable
from locustfiles.client.target import Target
from locustfiles.client.tls import Codec, PlainCodec, TlsCodec

if TYPE_CHECKING:
    from locustfiles.client.clock import Clock

LARGEST_READ = 256 * 1024
_STAMP = struct.Struct("qq")  # struct timespec, as SCM_TIMESTAMPNS carries it
_ROOM_FOR_STAMP = _socket.CMSG_SPACE(_STAMP.size) if hasattr(_socket, "CMSG_SPACE") else 0
_ACKNOWLEDGED = struct.Struct("120xQ")  # tcpi_bytes_acked in struct tcp_info (linux/tcp.h; RFC 4898 names the count)
_TCP_INFO = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_SAMPLED = 31  # one read in 32, chosen by the last bits of its time, is compared with the time of reading
# One buffer for all reads: the hub reads one socket at a time, and what was read is copied out at its own size.
_buffer = bytearray(LARGEST_READ)
_view = memoryview(_buffer)
_buffers = [_buffer]


class Receiver(Protocol):
    """Who gets what a connection reads."""

    def received(self, raw: bytes) -> None: ...

    def closed(self, failure: Failure | None) -> None:
        """The other end closed the connection: in order (None), or with an error."""
        ...


class CannotConnect(Exception):
    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)


class Connection:
    """A connected socket. `taken` counts the raw bytes read so far; `reads` holds, flat, (`taken`, time in ns) for each
    read of the current response, the time being the kernel's receive time where the clock asked for it. `given` counts
    the bytes handed to the kernel, `acknowledged_at_end` is `acknowledged` when the other end had closed. `trace` is
    what the clock keeps of it."""

    __slots__ = (
        "_recvmsg_into",
        "_writing",
        "acknowledged_at_end",
        "clock",
        "codec",
        "fd",
        "given",
        "open",
        "reads",
        "receiver",
        "sock",
        "taken",
        "trace",
    )

    def __init__(self, sock: Any, clock: Clock, codec: Codec) -> None:
        self.sock = sock
        self.fd: int = sock.fileno()
        self.clock = clock
        self.codec = codec
        self.receiver: Receiver | None = None
        self.reads = array("q")
        self.taken = self.given = 0
        self.acknowledged_at_end: int | None = None
        self.open = True
        self.trace: Any = None
        self._writing = False
        self._recvmsg_into = sock.recvmsg_into

    def begin(self, receiver: Receiver) -> None:
        """Everything read from now on belongs to one response, `receiver`'s."""
        self.receiver = receiver
        self.codec.mark()
        del self.reads[:]

    def read(self) -> None:
        """Reads what the kernel holds, in one go, and hands it to the receiver."""
        if not self.open:
            return
        try:
            length, ancillary, _, _ = self._recvmsg_into(_buffers, _ROOM_FOR_STAMP)
        except BlockingIOError:
            return
        except OSError as error:
            self._ended(from_exception(error, connecting=False))
            return
        if not length:
            self._ended(None)
            return
        if ancillary:
            seconds, nanoseconds = _STAMP.unpack_from(ancillary[0][2])
            stamp = seconds * 1_000_000_000 + nanoseconds
            if not stamp & _SAMPLED:
                self.clock.lateness.add((time.time_ns() - stamp,))
        else:
            stamp = time.time_ns()
            self.clock.unstamped += 1
        self.taken += length
        self.reads.append(self.taken)
        self.reads.append(stamp)
        raw = bytes(_view[:length])
        if self.receiver:
            self.receiver.received(raw)
        else:
            self.take_unasked(raw)

    def take_unasked(self, raw: bytes) -> None:
        """What came while no request is under way: more than TLS's own housekeeping answers none of ours."""
        try:
            answers = self.codec.decode(raw)
        except ssl.SSLError:
            answers = raw
        if answers:
            self.close()

    def acknowledged(self) -> int | None:
        """How many bytes the other end's kernel has confirmed since the connection began; None where nobody tells."""
        if _TCP_INFO is None:
            return None
        info = self.sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _ACKNOWLEDGED.size)
        return int(_ACKNOWLEDGED.unpack(info)[0]) if len(info) == _ACKNOWLEDGED.size else None

    def _ended(self, failure: Failure | None) -> None:
        receiver = self.receiver
        if receiver:
            self.acknowledged_at_end = self.acknowledged()
        self.close()
        if receiver:
            receiver.closed(failure)

    def send(self, raw: bytes, timeout_s: float | None = None) -> None:
        """Hands all of `raw` to the kernel, blocking the calling greenlet while its buffer is full.

        Raises `OSError`; `TimeoutError` where the server takes longer than `timeout_s` to make room.
        """
        sent = self.send_some(raw)
        end = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self.kept():
            while sent < len(raw):
                if not wait_writable(gevent.get_hub(), self.fd, end - time.monotonic()):
                    raise TimeoutError("the request could not be sent in time")
                sent += self.send_some(memoryview(raw)[sent:])

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """The file descriptor stays ours meanwhile, even where the connection is closed: somebody is about to use it,
        in another thread perhaps, and must not find another's there."""
        self._writing = True
        try:
            yield
        finally:
            self._writing = False
            if not self.open:
                self.sock.close()

    def send_some(self, raw: bytes | memoryview) -> int:
        """Hands to the kernel what it takes at once; returns how many bytes. Raises `OSError`."""
        if not self.open:
            raise BrokenPipeError(errno.EPIPE, "closed while sending")
        try:
            taken = int(self.sock.send(raw))
        except BlockingIOError:
            return 0
        self.given += taken
        return taken

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        self.receiver = None
        self.clock.closing(self)
        if self._writing:
            # Somebody waits for this very file descriptor: wake it, and leave the closing to it.
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
        else:
            self.sock.close()


def connect(
    target: Target, clock: Clock, context: ssl.SSLContext | None, timeout_s: float | None
) -> tuple[Connection, int]:
    """A new connection, TLS agreed on where `context` is given, and the ns it took. Blocks only the calling greenlet.

    Raises `CannotConnect`.
    """
    start = time.monotonic_ns()
    sock = _socket.socket(target.family, socket.SOCK_STREAM)
    connection: Connection | None = None
    try:
        with gevent.Timeout(timeout_s, _ConnectTimeout):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            clock.prepare(sock)
            status = sock.connect_ex(target.address)
            if status == errno.EADDRNOTAVAIL and clock.out_of_ports(sock):
                status = sock.connect_ex(target.address)
            codec = TlsCodec(context, target.host) if context else PlainCodec()
            connection = Connection(sock, clock, codec)
            clock.connecting(connection)
            if status:
                _finish(sock, status)
            clock.watch(connection)
            if isinstance(codec, TlsCodec):
                _shake_hands(connection, codec)
    except BaseException as error:
        if connection:
            connection.close()
        else:
            sock.close()
        if isinstance(error, _ConnectTimeout):
            raise CannotConnect(Failure(TIMEOUT_CONNECT, "no connection in time")) from None
        if isinstance(error, OSError):
            raise CannotConnect(from_exception(error, connecting=True)) from None
        raise
    return connection, time.monotonic_ns() - start


class _ConnectTimeout(Exception):
    pass


_CONNECTING = {errno.EINPROGRESS, errno.EAGAIN, errno.EWOULDBLOCK}


def _finish(sock: Any, status: int) -> None:
    """Waits for a connect under way."""
    if status not in _CONNECTING:
        raise OSError(status, os.strerror(status))
    wait_writable(gevent.get_hub(), sock.fileno())
    if status := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(status, os.strerror(status))


class _Handshaker:
    """Receives a connection's first bytes on behalf of the greenlet that shakes hands."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._over = False
        self._waiter: Waiter | None = None

    def received(self, raw: bytes) -> None:
        self._pending.append(raw)
        self._notify()

    def closed(self, failure: Failure | None) -> None:
        self._over = True
        self._notify()

    def _notify(self) -> None:
        if self._waiter:
            self._waiter.switch(None)

    def next(self) -> bytes:
        while not self._pending:
            if self._over:
                raise ConnectionResetError("closed during the TLS handshake")
            self._waiter = Waiter()
            try:
                self._waiter.get()
            finally:
                self._waiter = None
        raw = b"".join(self._pending)
        self._pending.clear()
        return raw


def _shake_hands(connection: Connection, codec: TlsCodec) -> None:
    shaker = _Handshaker()
    connection.receiver = shaker
    reply, done = codec.shake_hands(b"")
    connection.send(reply)
    while not done:
        try:
            reply, done = codec.shake_hands(shaker.next())
        except ssl.SSLError:
            # The alert that tells the server why.
            connection.send(codec.farewell())
            raise
        if reply:
            connection.send(reply)
    connection.receiver = None
