"""The least HTTP/1.1 server the engine needs: keep-alive, chunked replies, and writes that leave when they are asked
to.

Sockets are written directly, one `send` a write with Nagle's algorithm off, so that whoever writes knows when a token
left; an event loop's own transports queue. Only what a slow reader does not take waits for the loop.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus

import httptools

LAST_CHUNK = b"0\r\n\r\n"
_LARGEST_BODY = 64 << 20
_READ = 1 << 18


@dataclass(slots=True)
class HttpRequest:
    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    keep_alive: bool = True
    received: float = 0.0


class Connection:
    """One client. Calls `handle(request, connection)` for one request at a time; the handler answers with `reply` or
    with `start_stream`, `send_event`s and `end_stream`, now or later. `on_close` is called if the client leaves
    before."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[HttpRequest, Connection], None],
        closed: Callable[[Connection], None],
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._loop = loop
        self._handle = handle
        self._closed = closed
        self._parser = httptools.HttpRequestParser(self)
        self._reading = HttpRequest()
        self._body: list[bytes] = []
        self._body_size = 0
        self._backlog = bytearray()
        self._queue: deque[HttpRequest] = deque()
        self._current: HttpRequest | None = None
        self._close_after = False
        self.open = True
        self.on_close: Callable[[], None] | None = None
        self.extra_headers = b""
        loop.add_reader(sock, self._readable)

    # -- what the parser finds --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._reading = HttpRequest(received=time.monotonic())
        self._body = []
        self._body_size = 0

    def on_url(self, url: bytes) -> None:
        self._reading.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reading.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._reading.headers.get("expect", "").lower() == "100-continue":
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._body_size > _LARGEST_BODY:
            raise httptools.HttpParserError("body too large")
        self._body.append(body)

    def on_message_complete(self) -> None:
        request = self._reading
        request.method = self._parser.get_method().decode("latin-1")
        request.keep_alive = self._parser.should_keep_alive()
        request.body = b"".join(self._body)
        request.path = request.path.split("?", 1)[0]
        self._queue.append(request)

    # -- reading ----------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._write(_head(400, (b"content-type: text/plain; charset=utf-8", b"connection: close")) + b"\r\n")
            self._write(b"Invalid HTTP request received.")
            self.close()
            return
        self._next()

    def _next(self) -> None:
        if self._current is None and self._queue and self.open:
            self._current = self._queue.popleft()
            self._close_after = not self._current.keep_alive
            self._handle(self._current, self)

    # -- answering --------------------------------------------------------------------------------------------------

    def reply(self, status: int, body: bytes, content_type: bytes = b"application/json", extra: bytes = b"") -> None:
        """The whole answer to the current request."""
        fields = [b"content-length: %d" % len(body)]
        if body or content_type != b"application/json":
            fields.append(b"content-type: " + content_type)
        self._write(_head(status, (*fields, *self._common(extra))) + b"\r\n" + body)
        self._finish()

    def start_stream(self) -> bytes:
        """The head of a streamed answer, for the caller to send together with the first event."""
        fields = (b"content-type: text/event-stream; charset=utf-8", *self._common(b""), b"transfer-encoding: chunked")
        return _head(200, fields) + b"\r\n"

    def send(self, data: bytes) -> None:
        """Hands bytes to the kernel at once."""
        self._write(data)

    def end_stream(self) -> None:
        """The current answer is complete (its `LAST_CHUNK` was sent)."""
        self._finish()

    def _common(self, extra: bytes) -> list[bytes]:
        fields = [b"vary: Origin", b"x-tailgate-simulated: true"]
        if self.extra_headers:
            fields.append(self.extra_headers)
        if extra:
            fields.append(extra)
        if self._close_after:
            fields.append(b"connection: close")
        return fields

    def _finish(self) -> None:
        self._current = None
        self.on_close = None
        self.extra_headers = b""
        if self._close_after:
            self.close_when_written()
        elif self._queue:
            self._loop.call_soon(self._next)

    def _write(self, data: bytes) -> None:
        if not self.open:
            return
        if self._backlog:
            self._backlog += data
            return
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()
            return
        if sent < len(data):
            self._backlog += data[sent:]
            self._loop.add_writer(self._sock, self._writable)

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._backlog)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        del self._backlog[:sent]
        if not self._backlog:
            self._loop.remove_writer(self._sock)
            if self._close_after and self._current is None:
                self.close()

    def close_when_written(self) -> None:
        self._close_after = True
        if not self._backlog:
            self.close()

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._sock)
        if self._backlog:
            self._loop.remove_writer(self._sock)
            self._backlog.clear()
        self._sock.close()
        self._closed(self)
        if self.on_close is not None:
            gone, self.on_close = self.on_close, None
            gone()


def chunk(data: bytes) -> bytes:
    """`data` as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


_date = (0, b"")


def _head(status: int, fields: tuple[bytes, ...]) -> bytes:
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = (now, formatdate(now, usegmt=True).encode())
    start = b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
    lines = (b"date: " + _date[1], b"server: tailgate-simulated", *fields)
    return start + b"\r\n".join(lines) + b"\r\n"
