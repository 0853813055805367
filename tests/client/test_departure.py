"""Requests that wait for their time on a connection that stands: sent once, by another thread, whatever befalls it."""

from __future__ import annotations

import gc
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest

from locustfiles.client.clock import ReadClock
from locustfiles.client.reading import Asked, ResponseReading
from locustfiles.client.stream import Cancelled, StreamingClient
from locustfiles.client.target import Target
from locustfiles.client.tls import TlsOptions
from locustfiles.pacing import Pacer

_PATH = "/v1/chat/completions"
_BODY = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
_ASKED = Asked(endpoint=_PATH)
_END = b'"}'


class _Server:
    """Answers each request when it is whole, and keeps it; `idle` is done with the first connection once it has carried
    one request and `due` is set, after which nothing is read from it."""

    def __init__(
        self, idle: Callable[[socket.socket], None] | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        self.due = threading.Event()
        self.requests: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self._idle = idle
        self._context = context
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        for number in range(9):
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        if self._context:
            connection = self._context.wrap_socket(connection, server_side=True)
        with connection:
            while True:
                request = b""
                while not request.endswith(_END):
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    request += piece
                self.requests.append(request)
                connection.sendall(_ANSWER)
                if self._idle and number == 0:
                    self.due.wait(5)
                    self._idle(connection)
                    return


@pytest.fixture
def pacer() -> Iterator[Pacer]:
    found = Pacer()
    yield found
    found.close()


@pytest.fixture
def opened() -> Iterator[Callable[..., StreamingClient]]:
    clients: list[StreamingClient] = []

    def open_one(server: _Server, tls: TlsOptions | None = None) -> StreamingClient:
        clock = ReadClock("user", gevent.get_hub().loop)
        address = ("127.0.0.1", server.port)
        target = Target("https" if tls else "http", *address, "", socket.AF_INET, address)
        clients.append(StreamingClient(target, clock, tls=tls))
        return clients[-1]

    yield open_one
    for client in clients:
        client.close()
        client.clock.close()


def _body(text: str) -> bytes:
    return json.dumps({"prompt": text}).encode()


def _say_and_wait(connection: socket.socket) -> None:
    connection.sendall(_TIMEOUT)
    time.sleep(0.5)


@pytest.mark.parametrize("idle", [lambda connection: None, _say_and_wait], ids=["closed", "said 408"])
def test_a_connection_lost_while_its_request_waits_is_replaced(
    opened: Callable[..., StreamingClient], idle: Callable[[socket.socket], None]
) -> None:
    server = _Server(idle)
    client = opened(server)
    departures = 0

    def leave(depart: Callable[[], None]) -> None:
        nonlocal departures
        departures += 1
        server.due.set()
        gevent.sleep(0.2)
        depart()

    first = client.perform(_PATH, _body("first"), _ASKED)
    second = client.perform(_PATH, _body("second"), _ASKED, departure=leave)
    assert (first.error, second.error) == (None, None)
    assert second.replaced_stale
    assert (departures, client.connections_opened) == (2, 2)
    assert [request.partition(b"\r\n\r\n")[2] for request in server.requests] == [_body("first"), _body("second")]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("departure") / "pem"
    certified = file.with_suffix(".crt")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=departure", "-keyout", str(file), "-out", str(certified)]
    subprocess.run(command, check=True, capture_output=True)
    file.write_text(file.read_text() + certified.read_text())
    return file


@pytest.mark.parametrize("with_tls", [False, True])
def test_what_the_kernel_does_not_take_at_once_follows(
    opened: Callable[..., StreamingClient], pacer: Pacer, certificate: Path, with_tls: bool
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = _Server(context=context if with_tls else None)
    client = opened(server, TlsOptions(insecure=True) if with_tls else None)
    bodies = [_body(f"{number} " * 4_000_000) for number in range(2)]
    for body in bodies:
        due_ns = time.time_ns() + 50_000_000

        def leave(depart: Callable[[], None], due_ns: int = due_ns) -> None:
            pacer.call_at(due_ns, depart)

        outcome = client.perform(_PATH, body, _ASKED, departure=leave)
        assert outcome.error is None
        assert outcome.sent_ns >= due_ns
    assert [request.partition(b"\r\n\r\n")[2] for request in server.requests] == bodies


def test_who_is_killed_before_the_time_has_sent_nothing(opened: Callable[..., StreamingClient], pacer: Pacer) -> None:
    server = _Server()
    client = opened(server)
    due_ns = time.time_ns() + 200_000_000

    def ask(text: str) -> None:
        with pytest.raises(Cancelled):
            client.perform(_PATH, _body(text), _ASKED, departure=lambda depart: pacer.call_at(due_ns, depart))

    asking = gevent.spawn(ask, "never")
    gevent.sleep(0.05)
    asking.kill()
    assert asking.successful()
    gevent.sleep(0.3)
    assert client.perform(_PATH, _body("later"), _ASKED).error is None
    assert [request.partition(b"\r\n\r\n")[2] for request in server.requests] == [_body("later")]


def test_a_finished_request_leaves_nothing_to_the_garbage_collector(opened: Callable[..., StreamingClient]) -> None:
    """Collecting a few thousand of them halts the process for as long as ten requests' time."""
    client = opened(_Server())
    gc.collect()
    gc.disable()
    try:
        for number in range(5):
            assert client.perform(_PATH, _body(f"{number}"), _ASKED).error is None
        left = [found for found in gc.get_objects() if type(found) is ResponseReading]
    finally:
        gc.enable()
    assert len(left) <= 1, "the last may be held still"
