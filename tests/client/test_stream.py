"""One request's life: keep-alive, connections gone stale, time limits, cancellation, many streams ending at once."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import gevent
import pytest

from locustfiles.client.choice import open_clock
from locustfiles.client.exchange import Timeouts
from locustfiles.client.hub import WorkQueue
from locustfiles.client.reading import Asked, ResponseReading
from locustfiles.client.stream import Cancelled, Outcome, StreamingClient
from locustfiles.client.target import Target
from tailgate.exits import BadInput
from tests.support.truth_server import TruthServer

_PATH = "/v1/chat/completions"
Opened = Callable[..., StreamingClient]


@pytest.fixture(scope="module")
def server() -> Iterator[TruthServer]:
    with TruthServer() as one:
        yield one


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens clients (auto clock) that are closed at the test's end."""
    clients: list[StreamingClient] = []

    def open_one(url: str, timeouts: Timeouts | None = None) -> StreamingClient:
        target = Target.resolve(url)
        clients.append(StreamingClient(target, open_clock("auto", target)[0], timeouts=timeouts))
        return clients[-1]

    yield open_one
    for client in clients:
        client.close()
        client.clock.close()


def _ask(client: StreamingClient, name: str, **asked: object) -> Outcome:
    return client.perform(_PATH, json.dumps({"name": name, **asked}).encode(), Asked(endpoint=_PATH))


def test_connections_are_reused_and_serve_one_request_at_a_time(server: TruthServer, opened: Opened) -> None:
    client = opened(server.url)
    for wave in range(3):
        streams = [gevent.spawn(_ask, client, f"wave-{wave}-{i}") for i in range(5)]
        gevent.joinall(streams)
        assert all(stream.value.ok for stream in streams)
        assert client.connections_opened == 5
    assert client.in_flight == 0


def test_a_connection_closed_after_each_answer_is_replaced_without_failing(server: TruthServer, opened: Opened) -> None:
    client = opened(server.url)
    outcomes = []
    for number in range(4):
        outcomes.append(_ask(client, f"close-{number}", events=2, end="close"))
        # A request that reaches the server before it closes is dropped, which is a failure; not what is tested here.
        while any(connection.open for connection in client._idle):
            gevent.sleep(0.01)
    assert [outcome.error for outcome in outcomes] == [None] * 4
    assert all(outcome.connect_ns for outcome in outcomes)
    assert client.connections_opened == 4


def _scripted(handle: Callable[[socket.socket, int], None]) -> tuple[str, socket.socket]:
    """A server that gives each connection, with its number, to `handle` in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        number = 0
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            # The clock's and the resolver's probes connect too and ask nothing.
            threading.Thread(target=_handle, args=(connection, number), daemon=True).start()
            number += 1

    def _handle(connection: socket.socket, number: int) -> None:
        with connection:
            if connection.recv(65536):
                handle(connection, number)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}", listener


def _whole_answer() -> bytes:
    body = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head + body


def test_a_connection_lost_after_bytes_of_the_answer_is_a_failure_not_retried(opened: Opened) -> None:
    asked: list[int] = []

    def half_an_answer(connection: socket.socket, number: int) -> None:
        connection.sendall(_whole_answer())
        if connection.recv(65536):
            asked.append(number)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Le")

    url, listener = _scripted(half_an_answer)
    client = opened(url)
    assert _ask(client, "a").ok
    assert _ask(client, "b").error == "truncated"
    assert len(asked) == 1
    listener.close()


def test_a_fresh_connection_that_closes_without_answer_is_a_failure(opened: Opened) -> None:
    url, listener = _scripted(lambda connection, number: None)
    outcome = _ask(opened(url), "a")
    assert outcome.error in ("empty", "reset")
    assert not outcome.replaced_stale
    listener.close()


def test_cut_and_reset_streams_keep_their_token_times(server: TruthServer, opened: Opened) -> None:
    client = opened(server.url)
    for end, kinds in (("cut", {"truncated"}), ("reset", {"reset"})):
        outcome = _ask(client, end, events=6, end=end)
        assert outcome.error in kinds
        assert len(outcome.arrivals_ns) == 6
        assert outcome.end_ns >= outcome.arrivals_ns[-1]


@pytest.mark.parametrize(
    ("limits", "asked", "kind", "tokens"),
    [
        (Timeouts(first=0.15), {"first_ms": 5000}, "timeout_first", 0),
        (Timeouts(idle=0.5), {"events": 3, "end": "stall"}, "timeout_idle", 3),
        (Timeouts(total=1.0), {"events": 1000, "gap_ms": 10, "first_ms": 5}, "timeout_total", None),
        (Timeouts(total=0.2, first=5.0), {"first_ms": 5000}, "timeout_total", 0),
        (Timeouts(idle=0.6, first=20.0), {"first_ms": 1500, "events": 3}, None, 3),
    ],
)
def test_each_limit_has_its_own_kind(
    server: TruthServer,
    opened: Opened,
    limits: Timeouts,
    asked: dict[str, object],
    kind: str | None,
    tokens: int | None,
) -> None:
    outcome = _ask(opened(server.url, limits), "limit", **asked)
    assert outcome.error == kind
    if tokens is None:
        # Ten seconds of answer: it was cut, and what came is kept.
        assert 1 <= len(outcome.arrivals_ns) < 1000
    else:
        assert len(outcome.arrivals_ns) == tokens


def test_a_limit_does_not_blame_the_server_for_a_loop_that_slept(server: TruthServer, opened: Opened) -> None:
    client = opened(server.url, Timeouts(first=0.2, idle=0.2))
    stream = gevent.spawn(_ask, client, "asleep", events=40, first_ms=50, gap_ms=10)
    gevent.sleep(0.02)
    time.sleep(0.6)
    stream.join()
    assert stream.value.error is None


def test_a_server_that_does_not_accept_times_out_as_connect(opened: Opened) -> None:
    # A listener whose backlog is full answers no SYN.
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    address = listener.getsockname()
    target = Target("http", "127.0.0.1", address[1], "", socket.AF_INET, address)
    client = StreamingClient(target, open_clock("kernel", target)[0], timeouts=Timeouts(connect=0.2))
    fillers = [socket.socket() for _ in range(2)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(address)
    outcome = _ask(client, "never")
    assert outcome.error == "timeout_connect"
    assert outcome.connect_ns is None
    for one in (*fillers, listener):
        one.close()
    client.clock.close()


def test_nobody_listening_is_a_connect_failure(opened: Opened) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    outcome = _ask(opened(f"http://127.0.0.1:{port}"), "nobody")
    assert outcome.error == "connect"
    assert outcome.reading is None


def test_a_killed_greenlet_tells_how_far_it_got(server: TruthServer, opened: Opened) -> None:
    client = opened(server.url)
    told: list[Outcome] = []

    def user() -> None:
        try:
            _ask(client, "killed", events=1000, gap_ms=10)
        except Cancelled as cancelled:
            told.append(cancelled.outcome)
            raise

    greenlet = gevent.spawn(user)
    gevent.sleep(0.3)
    greenlet.kill()
    assert isinstance(greenlet.value, gevent.GreenletExit)
    assert told[0].cancelled
    assert told[0].error is None
    assert 5 < len(told[0].arrivals_ns) < 40
    assert client.in_flight == 0
    # Its connection is not used again: the rest of that answer is on it.
    assert _ask(client, "after").ok
    assert client.connections_opened == 2


def test_a_greenlet_killed_while_connecting_is_cancelled_too(opened: Opened) -> None:
    target = Target("http", "192.0.2.1", 80, "", socket.AF_INET, ("192.0.2.1", 80))
    client = StreamingClient(target, open_clock("user", target)[0])
    told: list[Outcome] = []

    def user() -> None:
        try:
            told.append(_ask(client, "nowhere"))
        except Cancelled as cancelled:
            told.append(cancelled.outcome)

    greenlet = gevent.spawn(user)
    gevent.sleep(0.05)
    greenlet.kill()
    assert told[0].cancelled or told[0].error == "connect"  # a machine without a route refuses at once
    client.clock.close()


def test_many_streams_that_end_together_are_read_whole(server: TruthServer, opened: Opened) -> None:
    client = opened(server.url)
    at_ns = time.time_ns() + 900_000_000
    many = [
        gevent.spawn(_ask, client, f"together-{i}", events=60, gap_ms=10, first_ms=5, at_ns=at_ns) for i in range(60)
    ]
    gevent.joinall(many)
    assert [(stream.value.error, len(stream.value.arrivals_ns)) for stream in many] == [(None, 60)] * 60


def test_parsing_lets_the_loop_turn_after_each_slice() -> None:
    """Counted in turns of the loop, because how long a turn takes is the machine's affair."""

    class Work:
        def __init__(self) -> None:
            self.left = 3

        def step(self) -> bool:
            steps.append(turns[0])
            until = time.perf_counter() + 0.001
            while time.perf_counter() < until:
                pass
            self.left -= 1
            return self.left > 0

    loop = gevent.get_hub().loop
    turns, steps = [0], list[int]()
    counter = loop.prepare()
    counter.start(lambda: turns.__setitem__(0, turns[0] + 1))
    queue = WorkQueue(loop)
    for _ in range(20):
        queue.add(Work())
    while len(steps) < 60:
        gevent.sleep(0.001)
    counter.stop()
    counter.close()
    queue.close()
    # Each step is longer than a slice: no turn of the loop may have had two.
    assert len(set(steps)) == len(steps) == 60


def test_an_answer_that_comes_at_once_is_read_in_pieces(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    feed = ResponseReading.feed

    def noted(self: ResponseReading, raw: bytes) -> None:
        pieces.append(len(raw))
        feed(self, raw)

    monkeypatch.setattr(ResponseReading, "feed", noted)
    events = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n' * 10_000 + b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(events)
    url, listener = _scripted(lambda connection, number: connection.sendall(head + events))
    outcome = _ask(opened(url), "at once")
    listener.close()
    assert (outcome.error, len(outcome.arrivals_ns)) == (None, 10_000)
    assert sum(pieces) == len(head + events)
    assert max(pieces) <= 16 * 1024


def test_a_large_request_leaves_whole_while_the_server_reads_slowly(opened: Opened) -> None:
    got: list[int] = []

    def read_slowly(connection: socket.socket, number: int) -> None:
        total = 0
        connection.settimeout(1.0)
        while total < 8_000_000:
            total += len(connection.recv(400_000))
            time.sleep(0.002)
        got.append(total)
        connection.sendall(_whole_answer())

    url, listener = _scripted(read_slowly)
    body = b'{"prompt": "%s"}' % (b"x" * 8_100_000)
    outcome = opened(url).perform(_PATH, body, Asked(endpoint=_PATH))
    assert outcome.ok, outcome.error_message
    assert got
    listener.close()


def test_a_refusal_in_the_middle_of_the_request_is_what_the_server_said(opened: Opened) -> None:
    def refuse(connection: socket.socket, number: int) -> None:
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        time.sleep(0.2)

    url, listener = _scripted(refuse)
    outcome = opened(url).perform(_PATH, b"x" * 30_000_000, Asked(endpoint=_PATH))
    assert outcome.error == "http_413"
    listener.close()


def test_headers_with_line_breaks_are_refused_without_showing_the_value(server: TruthServer) -> None:
    target = Target.resolve(server.url)
    clock, _ = open_clock("user", target)
    with pytest.raises(BadInput) as refused:
        StreamingClient(target, clock, headers={"Authorization": "Bearer secret\r\nX: y"})
    assert "secret" not in str(refused.value)
    clock.close()


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://", "http://127.0.0.1:port"])
def test_urls_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(BadInput):
        Target.resolve(url)


def test_proxies_in_the_environment_are_ignored(
    server: TruthServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://192.0.2.1:3128")
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:3128")
    assert _ask(opened(server.url), "no proxy").ok


_PATCHED = """
import gevent.monkey; gevent.monkey.patch_all()
import sys, gevent
from tests.client.test_stream import _ask
from locustfiles.client.choice import open_clock
from locustfiles.client.stream import StreamingClient
from locustfiles.client.target import Target
target = Target.resolve(sys.argv[1])
for name in ("user", "kernel", "auto"):
    clock, _ = open_clock(name, target)
    client = StreamingClient(target, clock)
    streams = [gevent.spawn(_ask, client, f"patched-{i}") for i in range(3)]
    gevent.joinall(streams)
    print([stream.value.error for stream in streams])
    client.close(); clock.close()
"""


def test_it_works_in_a_monkey_patched_process(server: TruthServer) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PATCHED, server.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["[None, None, None]"] * 3, done.stderr
