"""A kept connection that ends without an answer: whose fault it was, told by what the server's kernel confirmed."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import gevent
import pytest

from locustfiles.client.clock import ReadClock
from locustfiles.client.exchange import Timeouts
from locustfiles.client.reading import Asked
from locustfiles.client.stream import Outcome, StreamingClient
from locustfiles.client.target import Target
from locustfiles.client.tls import TlsOptions

_PATH = "/v1/chat/completions"
_BODY = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
_REQUEST = b'{"prompt": "hello"}'
Ends = Callable[[socket.socket], None]


class _Server:
    """Answers the first request of its first connection, then does `then` with it; answers all others' requests."""

    def __init__(self, then: Ends, context: ssl.SSLContext | None = None) -> None:
        self.first_is_over = threading.Event()
        self.asked = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.listener.getsockname()[1]}"
        self._then = then
        self._context = context
        self._number = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection, self._number), daemon=True).start()
            self._number += 1

    def _serve(self, connection: socket.socket, number: int) -> None:
        if self._context:
            connection = self._context.wrap_socket(connection, server_side=True)
        with connection:
            while self.read(connection):
                connection.sendall(_ANSWER)
                if number == 0:
                    self._then(connection)
                    self.first_is_over.set()
                    return

    def read(self, connection: socket.socket) -> bool:
        """One whole request."""
        data = b""
        while not data.endswith(_REQUEST):
            piece = connection.recv(65536)
            if not piece:
                return False
            data += piece
        self.asked += 1
        return True


@contextmanager
def _client(server: _Server, tls: TlsOptions | None = None) -> Iterator[StreamingClient]:
    clock = ReadClock("user", gevent.get_hub().loop)
    # Named, not resolved: resolving would connect to see who listens.
    port = server.listener.getsockname()[1]
    target = Target("https" if tls else "http", "127.0.0.1", port, "", socket.AF_INET, ("127.0.0.1", port))
    client = StreamingClient(target, clock, timeouts=Timeouts(connect=5.0, total=10.0), tls=tls)
    yield client
    client.close()
    clock.close()
    server.listener.close()


def _ask(client: StreamingClient) -> Outcome:
    return client.perform(_PATH, _REQUEST, Asked(endpoint=_PATH))


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_connection_closed_before_the_request_reached_it_is_replaced() -> None:
    server = _Server(lambda connection: None)
    with _client(server) as client:
        first = _ask(client)
        # A request that crosses the server's FIN on its way: the client has not looked at the socket since.
        server.first_is_over.wait(5)
        time.sleep(0.05)
        client._take_idle = client._idle.pop  # type: ignore[method-assign]
        before_ns = time.time_ns()
        second = _ask(client)
    assert (first.error, second.error) == (None, None)
    assert second.replaced_stale
    assert client.stale_replaced == 1
    assert (server.asked, client.connections_opened) == (2, 2)
    # What it cost is told as connecting; TTFT and E2E begin with the sending that was answered.
    assert second.connect_ns is not None
    assert before_ns + second.connect_ns <= second.sent_ns <= second.arrivals_ns[0]


def test_a_server_that_closed_while_nobody_asked_costs_no_second_sending() -> None:
    server = _Server(lambda connection: None)
    with _client(server) as client:
        first = _ask(client)
        server.first_is_over.wait(5)
        gevent.sleep(0.05)
        second = _ask(client)
    assert (first.error, second.error, second.replaced_stale) == (None, None, False)
    assert second.connect_ns is not None
    assert server.asked == 2


@pytest.mark.parametrize("wait_s", [0.0, 0.03])
def test_a_request_that_was_read_and_dropped_has_failed(wait_s: float) -> None:
    def read_and_close(connection: socket.socket) -> None:
        server.read(connection)
        time.sleep(wait_s)

    server = _Server(read_and_close)
    with _client(server) as client:
        first, second, third = _ask(client), _ask(client), _ask(client)
    assert [outcome.error for outcome in (first, second, third)] == [None, "empty", None]
    assert second.error_message == "connection closed before a reply"
    assert second.connect_ns is None
    assert client.stale_replaced == 0
    assert server.asked == 3


@pytest.mark.parametrize("wait_s", [0.0, 0.03])
def test_a_request_that_was_read_and_answered_by_a_reset_has_failed(wait_s: float) -> None:
    def read_and_reset(connection: socket.socket) -> None:
        server.read(connection)
        time.sleep(wait_s)
        _reset(connection)

    server = _Server(read_and_reset)
    with _client(server) as client:
        first, second, third = _ask(client), _ask(client), _ask(client)
    assert [outcome.error for outcome in (first, second, third)] == [None, "reset", None]
    assert client.stale_replaced == 0
    assert server.asked == 3


def test_a_request_that_reached_the_server_unread_has_failed() -> None:
    asked_again = threading.Event()

    def close_over_it(connection: socket.socket) -> None:
        asked_again.wait(5)
        time.sleep(0.05)

    server = _Server(close_over_it)
    with _client(server) as client:
        first = _ask(client)
        asked_again.set()
        second = _ask(client)
    assert (first.error, second.error) == (None, "reset")
    assert client.stale_replaced == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stale")
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ),
            *("-keyout", str(folder / "key"), "-out", str(folder / "pem"), "-subj", "/CN=stale"),
        ],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.mark.parametrize("with_notice", [True, False])
def test_under_tls_a_request_that_was_read_and_dropped_has_failed(certificate: Path, with_notice: bool) -> None:
    def read_and_close(connection: socket.socket) -> None:
        server.read(connection)
        if with_notice:
            connection.settimeout(0.2)
            assert isinstance(connection, ssl.SSLSocket)
            with suppress(OSError):
                connection.unwrap()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "pem", certificate / "key")
    server = _Server(read_and_close, context)
    with _client(server, TlsOptions(insecure=True)) as client:
        first, second, third = _ask(client), _ask(client), _ask(client)
    assert [outcome.error for outcome in (first, second, third)] == [None, "empty", None]
    assert client.stale_replaced == 0


def test_under_tls_a_connection_that_never_answers_is_read_right(certificate: Path) -> None:
    """Its session tickets are bytes, but none of an answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "pem", certificate / "key")
    server = _Server(lambda connection: None, context)
    server._serve = lambda connection, number: context.wrap_socket(connection, server_side=True).close()  # type: ignore[method-assign]
    with _client(server, TlsOptions(insecure=True)) as client:
        outcome = _ask(client)
    assert outcome.error in ("empty", "reset")
    assert len(outcome.arrivals_ns) == 0
