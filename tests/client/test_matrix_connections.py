"""Connections that are refused, limited, closed or restarted, and certificates: each failure counted once, by kind."""

from __future__ import annotations

import json
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gevent
import gevent.event
import pytest

from locustfiles.client.clock import ReadClock
from locustfiles.client.exchange import Timeouts
from locustfiles.client.stream import Outcome, StreamingClient
from locustfiles.client.target import Target
from locustfiles.client.tls import TlsOptions
from tailgate.exits import BadInput
from tests.support.catalogue import REPLIES
from tests.support.scripted_server import ScriptedServer

LIMITS = Timeouts(connect=5.0, first=2.0, idle=2.0, total=10.0)


@contextmanager
def client_of(url: str, limits: Timeouts = LIMITS, tls: TlsOptions | None = None) -> Iterator[StreamingClient]:
    clock = ReadClock("user", gevent.get_hub().loop)
    client = StreamingClient(Target.resolve(url), clock, timeouts=limits, tls=tls)
    yield client
    client.close()
    clock.close()


def ask(client: StreamingClient, name: str = "plain") -> Outcome:
    asked = REPLIES[name].asked
    return client.perform(asked.endpoint, json.dumps({"reply": name}).encode(), asked)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def test_refused_connection() -> None:
    with client_of(f"http://127.0.0.1:{free_port()}") as client:
        outcomes = [ask(client) for _ in range(2)]
    assert [(o.error, o.error_message, o.reading) for o in outcomes] == [("connect", "Connection refused", None)] * 2


def test_unknown_host_is_said_before_anything_is_sent() -> None:
    with pytest.raises(BadInput, match="no-such-host"):
        Target.resolve("http://no-such-host.invalid:8000")


def test_listener_that_never_answers_the_handshake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with client_of(url, Timeouts(connect=0.3)) as client:
            assert ask(client).error == "timeout_connect"


# -- certificates ----------------------------------------------------------------------------------------------------


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-signed: good.pem for 127.0.0.1, other.pem for another name, expired.pem (valid for a day in 2020)."""
    folder = tmp_path_factory.mktemp("certificates")
    for name, alternative, days in (("good", "IP:127.0.0.1", 2), ("other", "DNS:elsewhere.test", 2)):
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", str(days)),
            *("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem"),
            *("-subj", "/CN=scripted", "-addext", f"subjectAltName={alternative}"),
        )
    (folder / "index.txt").touch()
    (folder / "ca.conf").write_text(
        f"[ca]\ndefault_ca=d\n[d]\ndatabase={folder}/index.txt\nnew_certs_dir={folder}\nrand_serial=yes\n"
        "default_md=sha256\npolicy=p\nx509_extensions=x\n[p]\ncommonName=supplied\n[x]\nsubjectAltName=IP:127.0.0.1\n"
    )
    _openssl("req", "-new", "-key", f"{folder}/good.key", "-out", f"{folder}/expired.csr", "-subj", "/CN=scripted")
    _openssl(
        *("ca", "-batch", "-selfsign", "-config", f"{folder}/ca.conf", "-keyfile", f"{folder}/good.key"),
        *("-startdate", "20200101000000Z", "-enddate", "20200102000000Z"),
        *("-in", f"{folder}/expired.csr", "-out", f"{folder}/expired.pem", "-notext"),
    )
    (folder / "expired.key").write_bytes((folder / "good.key").read_bytes())
    return folder


@pytest.mark.parametrize(
    ("certificate", "trusted", "message"),
    [
        ("good", "good", None),
        ("good", "insecure", None),
        ("other", "insecure", None),
        ("expired", "insecure", None),
        ("good", "", "certificate refused: self-signed certificate"),
        ("other", "other", "certificate refused: IP address mismatch"),
        ("expired", "expired", "certificate refused: certificate has expired"),
    ],
)
def test_certificates(certificates: Path, certificate: str, trusted: str, message: str | None) -> None:
    ca = certificates / f"{trusted}.pem" if trusted not in ("", "insecure") else None
    options = TlsOptions(ca=ca, insecure=trusted == "insecure")
    files = ("--certificate", f"{certificates}/{certificate}.pem", "--key", f"{certificates}/{certificate}.key")
    with ScriptedServer(*files) as server, client_of(server.url, tls=options) as client:
        first, second = ask(client), ask(client)
        again = client.perform("/v1/chat/completions", b'{"reply": "reset_mid"}', REPLIES["reset_mid"].asked)
    if message is None:
        assert first.reading is not None
        REPLIES["plain"].check(first.reading)
        assert (first.ok, second.ok, second.connect_ns) == (True, True, None)
        assert again.error == "reset"
    else:
        assert (first.error, second.error) == ("tls", "tls")
        assert (first.error_message or "").startswith(message)


def test_plain_http_where_tls_was_expected() -> None:
    with ScriptedServer() as server, client_of(server.url.replace("http:", "https:"), Timeouts(connect=1.0)) as client:
        assert ask(client).error in ("tls", "timeout_connect")


# -- the life of connections -------------------------------------------------------------------------------------------


def test_idle_connection_closed_between_requests_costs_no_failure() -> None:
    with ScriptedServer("--idle-close", "0.1") as server, client_of(server.url) as client:
        first = ask(client)
        second = ask(client)
        gevent.sleep(0.4)
        third = ask(client)
    assert (first.ok, second.ok, third.ok) == (True, True, True)
    assert second.connect_ns is None
    assert third.connect_ns is not None
    # Connecting is told apart: the time to the first token is the script's, as on a kept connection.
    assert all(o.first_ns is not None and 0.04 < (o.first_ns - o.sent_ns) / 1e9 < 0.2 for o in (first, second, third))


def test_server_that_closes_after_each_answer() -> None:
    with ScriptedServer("--close-each") as server, client_of(server.url) as client:
        outcomes = []
        for _ in range(4):
            outcomes.append(ask(client))
            # A request that reaches the server before it closes is dropped, and a failure: not what is tested here.
            while server.truth()["open"]:
                gevent.sleep(0.01)
        truth = server.truth()
    assert [o.error for o in outcomes] == [None] * 4
    assert truth["served"] == {"plain": 4}


def test_server_that_limits_connections() -> None:
    with ScriptedServer("--max-connections", "3") as server, client_of(server.url) as client:
        outcomes = gevent.joinall([gevent.spawn(ask, client) for _ in range(8)], timeout=20)
        kinds = Counter(greenlet.value.error for greenlet in outcomes)
        gevent.sleep(0.1)
        client.close()
        gevent.sleep(0.2)
        truth = server.truth()
    assert kinds[None] == truth["served"]["plain"] == 3
    assert kinds["empty"] + kinds["reset"] == truth["refused"] == 5


def test_restart_in_mid_run_fails_some_and_wedges_nobody() -> None:
    users, done = 20, Counter[str | None]()
    late: Counter[int] = Counter()
    back = gevent.event.Event()
    stop = gevent.event.Event()

    def use(client: StreamingClient, user: int) -> None:
        while not stop.is_set():
            came_back = back.is_set()
            outcome = ask(client)
            done[outcome.error] += 1
            late[user] += came_back and outcome.ok
            if not outcome.ok:
                gevent.sleep(0.02)

    with ScriptedServer() as server, client_of(server.url) as client:
        greenlets = [gevent.spawn(use, client, user) for user in range(users)]
        gevent.sleep(0.5)
        served = server.truth()["served"]["plain"]
        server.kill()
        gevent.sleep(0.3)
        server.start()
        back.set()
        gevent.sleep(1.0)
        stop.set()
        gevent.joinall(greenlets, timeout=5)
        assert all(greenlet.successful() for greenlet in greenlets)
        served_after = server.truth()["served"]["plain"]
    assert set(done) <= {None, "connect", "reset", "truncated", "empty"}
    assert done["connect"] > 0
    assert done["truncated"] + done["reset"] + done["empty"] > 0
    assert all(late[user] >= 2 for user in range(users))
    assert served <= done[None] + users * 2
    assert sum(late.values()) <= served_after <= done[None]
