"""Each clock against a server that knows when it wrote: IPv4, IPv6 and TLS, with a reader that is late on purpose."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import numpy as np
import pytest

from locustfiles.client import choice, wire
from locustfiles.client.choice import open_clock
from locustfiles.client.clock import Clock
from locustfiles.client.connection import Connection
from locustfiles.client.reading import Asked
from locustfiles.client.ring import PacketRing
from locustfiles.client.stream import Outcome, StreamingClient
from locustfiles.client.target import Target
from locustfiles.client.tls import TlsOptions
from locustfiles.client.wire import WireClock
from tailgate.exits import BadInput
from tests.support.require import need
from tests.support.truth_server import TruthServer, self_signed

# An event's write returns when the packet has been through the device, unless a busy kernel leaves that for later. The
# event before or after it is 5 ms away at least.
_WRITE_SLACK_NS = 4_000_000
_PATH = "/v1/chat/completions"


def _can_capture() -> bool:
    if not hasattr(socket, "AF_PACKET"):
        return False
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0).close()
    except PermissionError:
        return False
    return True


@contextmanager
def _client(server: TruthServer, clock_name: str, **options: Any) -> Iterator[tuple[StreamingClient, Clock]]:
    if clock_name == "wire":
        need(_can_capture(), "CAP_NET_RAW for the wire clock")
    target = Target.resolve(server.url)
    clock, _ = open_clock(clock_name, target)
    client = StreamingClient(target, clock, **options)
    try:
        yield client, clock
    finally:
        client.close()
        clock.close()


def _ask(client: StreamingClient, name: str, **asked: Any) -> Outcome:
    return client.perform(_PATH, json.dumps({"name": name, **asked}).encode(), Asked(endpoint=_PATH))


def _errors_ns(server: TruthServer, name: str, outcome: Outcome) -> np.ndarray:
    """By how much each arrival lies outside the time that its write took (0: within)."""
    _, writes = server.truth(name)
    assert len(writes) == len(outcome.arrivals_ns)
    before, after = np.array(writes, np.int64).T
    arrivals = outcome.arrivals_ns
    return np.where(arrivals < before, arrivals - before, np.maximum(0, arrivals - after))


@pytest.fixture(scope="module")
def server() -> Iterator[TruthServer]:
    with TruthServer() as one:
        yield one


@pytest.fixture(autouse=True)
def _no_connections_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wire clock reads as it does among hundreds of streams, of which a test has but a handful."""
    monkeypatch.setattr(wire, "_FEW", 0)


@pytest.mark.parametrize("few", [0, 16])
def test_a_few_connections_are_read_whenever_there_is_something(
    server: TruthServer, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(wire, "_FEW", few)
    reads: list[int] = []
    read = Connection.read
    monkeypatch.setattr(Connection, "read", lambda self: (reads.append(1), read(self))[1])
    with _client(server, "wire") as (client, _):
        for i in range(2):
            reads.clear()
            outcome = _ask(client, f"few-{few}-{i}", events=40, first_ms=10, gap_ms=5)
            errors = _errors_ns(server, f"few-{few}-{i}", outcome)
            assert (errors.min(), outcome.late_events) == (0, 0)
            assert errors.max() <= _WRITE_SLACK_NS
            assert (len(reads) > 35) == bool(few), "one for each event, or a handful for all"


@pytest.mark.parametrize("clock_name", ["wire", "kernel", "user"])
def test_every_event_has_the_time_of_its_write(server: TruthServer, clock_name: str) -> None:
    with _client(server, clock_name) as (client, _):
        for i in range(3):
            name = f"plain-{clock_name}-{i}"
            sent = time.time_ns()
            outcome = _ask(client, name, events=30, first_ms=20, gap_ms=7)
            assert outcome.ok
            assert outcome.clock == clock_name
            errors = _errors_ns(server, name, outcome)
            read_ns, _ = server.truth(name)
            assert sent <= outcome.sent_ns <= read_ns
            assert errors.min() >= 0
            if clock_name != "user":
                # The kernel's first stamps may be missing; a read that held two events is counted as such.
                exact = np.count_nonzero(errors <= _WRITE_SLACK_NS)
                assert exact >= len(errors) - outcome.late_events - (i == 0)
            assert (outcome.connect_ns is None) == (i > 0), "keep-alive"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_wire_clock_is_exact_however_late_the_reader(host: str) -> None:
    need(host != "::1" or socket.has_ipv6, "IPv6")
    with TruthServer(host) as server, _client(server, "wire") as (client, clock):
        blocker = gevent.spawn(_block, 0.05, 12)
        streams = [gevent.spawn(_ask, client, f"late-{i}", events=80, first_ms=10, gap_ms=5) for i in range(4)]
        gevent.joinall([blocker, *streams])
        for i, stream in enumerate(streams):
            outcome: Outcome = stream.value
            assert outcome.ok
            assert outcome.late_events == 0
            errors = _errors_ns(server, f"late-{i}", outcome)
            assert errors.min() >= 0
            assert errors.max() <= _WRITE_SLACK_NS
        health = clock.health()
        assert (health.events, health.late_events, health.ring_drops) == (320, 0, 0)


def test_the_kernel_clock_counts_what_a_late_reader_merged(server: TruthServer) -> None:
    with _client(server, "kernel") as (client, clock):
        blocker = gevent.spawn(_block, 0.05, 12)
        stream = gevent.spawn(_ask, client, "merged", events=80, first_ms=10, gap_ms=5)
        gevent.joinall([blocker, stream])
        outcome: Outcome = stream.value
        errors = _errors_ns(server, "merged", outcome)
        wrong = int(np.count_nonzero(errors > _WRITE_SLACK_NS))
        assert wrong > 40, "the reader was not late: the test proves nothing"
        assert outcome.late_events >= wrong
        assert clock.health().late_events == outcome.late_events


def _block(seconds: float, times: int) -> None:
    """Keeps the loop from turning, as a busy client does."""
    for _ in range(times):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            time.sleep(0.001)
        gevent.sleep(0.002)


@pytest.mark.parametrize("clock_name", ["wire", "kernel"])
def test_tls_records_lead_back_to_their_segments(clock_name: str, tmp_path: Path) -> None:
    need(shutil.which("openssl"), "openssl")
    certificate = self_signed(tmp_path)
    tls = TlsOptions(ca=Path(f"{certificate}.crt"))
    with TruthServer(certificate=certificate) as server, _client(server, clock_name, tls=tls) as (client, _):
        for i, size in enumerate((5, 5, 20_000)):
            outcome = _ask(client, f"tls-{i}", events=20, gap_ms=10, size=size)
            assert outcome.ok, outcome.error_message
            errors = _errors_ns(server, f"tls-{i}", outcome)
            assert errors.min() >= 0
            assert np.count_nonzero(errors > _WRITE_SLACK_NS) <= outcome.late_events + (i == 0)
            assert (outcome.connect_ns is None) == (i > 0)


def test_an_overrun_ring_is_counted_and_falls_back_to_the_kernels_time(server: TruthServer) -> None:
    need(_can_capture(), "CAP_NET_RAW for the wire clock")
    target = Target.resolve(server.url)
    clock = WireClock(PacketRing(target, frames=64), gevent.get_hub().loop)
    client = StreamingClient(target, clock)
    blocker = gevent.spawn(_block, 0.1, 6)
    streams = [gevent.spawn(_ask, client, f"overrun-{i}", events=80, gap_ms=5) for i in range(4)]
    gevent.joinall([blocker, *streams])
    outcomes: list[Outcome] = [stream.value for stream in streams]
    assert all(outcome.ok for outcome in outcomes)
    health = clock.health()
    assert health.ring_drops > 0
    assert health.late_events > 0
    assert health.late_events == sum(outcome.late_events for outcome in outcomes)
    for i, outcome in enumerate(outcomes):
        errors = _errors_ns(server, f"overrun-{i}", outcome)
        assert np.count_nonzero(errors > _WRITE_SLACK_NS) <= outcome.late_events
        assert errors.min() >= 0
    client.close()
    clock.close()


def test_clocks_agree_and_say_so(server: TruthServer) -> None:
    with _client(server, "wire") as (client, clock):
        for i in range(4):
            _ask(client, f"agree-{i}", events=20)
        health = clock.health()
        assert health.compared >= 4
        assert health.difference_p99_s is not None
        assert health.difference_p99_s < 1e-4


def test_without_the_capability_auto_says_how_to_grant_it(server: TruthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(choice, "PacketRing", refuse)
    target = Target.resolve(server.url)
    clock, line = open_clock("auto", target)
    assert clock.name == "kernel"
    assert "CAP_NET_RAW is missing" in line
    assert "setcap" in line
    assert "\n" not in line
    clock.close()
    with pytest.raises(BadInput, match="CAP_NET_RAW"):
        open_clock("wire", target)


def test_a_ring_that_sees_nothing_is_not_trusted(server: TruthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    need(_can_capture(), "CAP_NET_RAW for the wire clock")
    monkeypatch.setattr(PacketRing, "drain", lambda self: None)
    clock, line = open_clock("auto", Target.resolve(server.url))
    assert clock.name == "kernel"
    assert "does not see" in line
    clock.close()


_IN_A_NAMESPACE = """
import json, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
from tests.client.test_clocks import _ask, _client, _errors_ns
from tests.support.truth_server import TruthServer
with TruthServer() as server, _client(server, "wire") as (client, clock):
    outcome = _ask(client, "inside", events=20)
    print(json.dumps([outcome.clock, outcome.late_events, int(abs(_errors_ns(server, "inside", outcome)).max())]))
"""


def test_the_wire_clock_works_inside_a_user_and_network_namespace() -> None:
    unshare = shutil.which("unshare")
    need(unshare and shutil.which("ip"), "unshare and ip")
    assert unshare
    works = subprocess.run([unshare, "-Urn", "true"], capture_output=True).returncode == 0
    need(works, "user and network namespaces")
    done = subprocess.run(
        [unshare, "-Urn", sys.executable, "-c", _IN_A_NAMESPACE],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == 0, done.stderr
    clock, late, error_ns = json.loads(done.stdout)
    assert (clock, late) == ("wire", 0)
    assert error_ns <= _WRITE_SLACK_NS


def test_real_interfaces_show_what_leaves_and_what_comes() -> None:
    """Two namespaces joined by a virtual Ethernet pair: another device than loopback, packets seen once each way."""
    need(os.geteuid() == 0 and shutil.which("ip"), "root and ip")
    name = f"tg{os.getpid() % 100000}"
    ours, theirs = ("10.213.7.1", "10.213.7.2")

    def ip(*arguments: str, inside: bool = False) -> None:
        where = ["-n", name] if inside else []
        subprocess.run(["ip", *where, *arguments], check=True, capture_output=True)

    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError:
        need(False, "network namespaces")
    try:
        ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        ip("addr", "add", f"{ours}/24", "dev", f"{name}a")
        ip("link", "set", f"{name}a", "up")
        ip("addr", "add", f"{theirs}/24", "dev", f"{name}b", inside=True)
        ip("link", "set", f"{name}b", "up", inside=True)
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "tests.support.truth_server", theirs]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            server = TruthServer(theirs)
            assert process.stdout
            server.port = int(process.stdout.readline())
            with _client(server, "wire") as (client, clock):
                for i in range(2):
                    sent = time.time_ns()
                    outcome = _ask(client, f"veth-{i}", events=30)
                    assert outcome.ok
                    assert outcome.late_events == 0
                    assert sent < outcome.sent_ns < server.truth(f"veth-{i}")[0]
                    errors = _errors_ns(server, f"veth-{i}", outcome)
                    assert errors.min() >= 0
                    assert errors.max() <= _WRITE_SLACK_NS
                assert clock.health().zero_windows == 0
        finally:
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"{name}a"], check=False, capture_output=True)


@pytest.mark.parametrize("end", ["chunk", "joined"])
def test_the_end_of_a_stream_is_noticed_soon_though_sockets_are_read_late(server: TruthServer, end: str) -> None:
    with _client(server, "wire") as (client, _):
        noticed: list[float] = []
        for i in range(12):
            outcome = _ask(client, f"end-{end}-{i}", events=10, end=end)
            noticed.append((time.time_ns() - outcome.end_ns) / 1e6)
        assert sorted(noticed)[6] < 15, "ms, the median: the reading of a mid-stream socket may take ten times that"


def test_ends_that_no_sign_announces_are_learnt(tmp_path: Path) -> None:
    """Under TLS a last chunk that shares its record with [DONE] looks like any other."""
    need(shutil.which("openssl"), "openssl")
    tls = TlsOptions(insecure=True)
    with TruthServer(certificate=self_signed(tmp_path)) as server, _client(server, "wire", tls=tls) as (client, _):
        noticed: list[float] = []
        for i in range(16):
            outcome = _ask(client, f"sly-{i}", events=10, gap_ms=10, end="joined")
            noticed.append((time.time_ns() - outcome.end_ns) / 1e6)
        assert sorted(noticed[4:])[6] < 15


def test_closed_windows_are_counted(server: TruthServer) -> None:
    with _client(server, "wire") as (client, clock):
        stream = gevent.spawn(_ask, client, "window", events=12, gap_ms=1, size=2_000_000)
        gevent.sleep(0.02)
        _block(0.4, 1)
        stream.join()
        assert stream.value.ok
        assert clock.health().zero_windows > 0


def test_a_cancelled_stream_keeps_the_times_the_ring_has_of_it(server: TruthServer) -> None:
    with _client(server, "wire") as (client, _):
        stream = gevent.spawn(_ask, client, "cancelled", events=100, gap_ms=10)
        gevent.sleep(0.4)
        stream.kill()
        outcome: Outcome = stream.value.outcome
        _, writes = server.truth("cancelled")
        arrivals = outcome.arrivals_ns
        assert len(arrivals) > 10
        assert outcome.late_events == 0
        for (before, after), arrival in zip(writes, arrivals, strict=False):
            assert before <= arrival <= after + _WRITE_SLACK_NS


def test_two_workers_see_their_own_packets_only(server: TruthServer) -> None:
    with _client(server, "wire") as (one, one_clock), _client(server, "wire") as (other, _):
        assert isinstance(one_clock, WireClock)
        need(one_clock._ring._slice, "port ranges for sockets (Linux 6.3)")
        assert _ask(one, "mine", events=5).late_events == 0
        one_clock._ring.drain()
        outcome = _ask(other, "theirs", events=5)
        assert outcome.ok
        assert outcome.late_events == 0
        assert one_clock._ring.drain() is None


def test_a_slice_of_ports_used_up_is_given_up(server: TruthServer) -> None:
    with _client(server, "wire") as (client, clock):
        assert isinstance(clock, WireClock)
        need(clock._ring._slice, "port ranges for sockets (Linux 6.3)")
        assert clock._ring._slice
        clock._ring._slice.high = clock._ring._slice.low + 1
        streams = [gevent.spawn(_ask, client, f"ports-{i}", events=10, gap_ms=20) for i in range(6)]
        gevent.joinall(streams)
        assert [stream.value.error for stream in streams] == [None] * 6
        assert clock._ring._slice is None
        assert [stream.value.late_events for stream in streams] == [0] * 6
