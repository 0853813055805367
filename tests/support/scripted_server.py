"""A server that does what the request says: raw bytes on a timeline, with its own write times as the truth.

A process of its own (`ScriptedServer` starts and asks it), so that nothing in the test's process can delay it. A POST
names its script by the body's `reply`; without one, scripts are dealt from `--mix`. `GET /truth` tells what was served
by name, the last body that each path got, and for each body's `tag` when each write was made (CLOCK_REALTIME ns).
`GET /v1/models` names one model.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.catalogue import REPLIES
from tests.support.replies import UNIQUE, Close, Endless, Hold, Reset, Send, Steps, Wait, head

MODEL = "scripted"
_ROOT = Path(__file__).parents[2]


class _Server:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.served: Counter[str] = Counter()
        self.open = 0
        self.connections = 0
        self.refused = 0
        self.writes: dict[str, list[int]] = {}
        self.bodies: dict[str, Any] = {}
        self.deal = _dealt(options.mix, options.seed)
        self.context: ssl.SSLContext | None = None
        if options.certificate:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(options.certificate, options.key)

    def run(self) -> None:
        listener = socket.create_server((self.options.host, self.options.port), backlog=1024)
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        with self.lock:
            self.connections += 1
            self.open += 1
            refuse = bool(self.options.max_connections) and self.open > self.options.max_connections
            self.refused += refuse
        try:
            if not refuse:
                connection.settimeout(60)
                if self.context:
                    connection = self.context.wrap_socket(connection, server_side=True)
                self._serve(connection)
        except OSError:
            pass
        finally:
            with self.lock:
                self.open -= 1
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        buffered = b""
        while True:
            connection.settimeout(self.options.idle_close or 60)
            request = _read_request(connection, buffered)
            if request is None:
                return
            came_at = time.monotonic()
            line, body, buffered = request
            connection.settimeout(60)
            method, path, _ = line.split(" ", 2)
            if method != "POST" or not path.startswith("/v1/"):
                connection.sendall(self._page(path))
                continue
            try:
                fields = json.loads(body)
            except ValueError:
                fields = {}
            self.bodies[path] = fields
            name = fields.get("reply") or next(self.deal)
            tag = fields.get("tag", "")
            if not self._play(connection, REPLIES[name].steps, came_at, name, tag) or self.options.close_each:
                return

    def _play(self, connection: socket.socket, steps: Steps, due: float, name: str, tag: str) -> bool:
        """Plays the script; returns whether the connection stays."""
        writes: list[int] = []
        # Counted before the first byte: a client that has its answer must find it counted.
        with self.lock:
            self.served[name] += 1
            if tag:
                self.writes[tag] = writes
        for step in steps:
            if isinstance(step, Wait):
                due += step.seconds
                time.sleep(max(0.0, due - time.monotonic()))
            elif isinstance(step, Send):
                writes.append(time.time_ns())
                connection.sendall(step.data.replace(UNIQUE, uuid.uuid4().hex.encode()))
            elif isinstance(step, Close):
                return False
            elif isinstance(step, Reset):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            elif isinstance(step, Hold):
                connection.recv(1)
                return False
            elif isinstance(step, Endless):
                while True:
                    writes.append(time.time_ns())
                    connection.sendall(step.data)
                    time.sleep(step.every_s)
        return True

    def _page(self, path: str) -> bytes:
        if path == "/truth":
            with self.lock:
                page: Any = {
                    "served": self.served,
                    "connections": self.connections,
                    "refused": self.refused,
                    "open": self.open - 1,
                    "writes": self.writes,
                    "bodies": self.bodies,
                }
                body = json.dumps(page).encode()
        elif path == "/v1/models":
            body = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
        elif path == "/health":
            body = b""
        else:
            return head("404 Not Found", content_length="0")
        return head(content_type="application/json", content_length=str(len(body))) + body


def _dealt(mix: str, seed: int) -> Iterator[str]:
    """Names in the mix's proportions ("plain:9,reset_mid:1"), in an order of chance that the seed fixes."""
    hand = [name for part in mix.split(",") for name, _, share in [part.partition(":")] for _ in range(int(share or 1))]
    chance = random.Random(seed)
    for _ in itertools.count():
        chance.shuffle(hand)
        yield from list(hand)


def _read_request(connection: socket.socket, buffered: bytes) -> tuple[str, bytes, bytes] | None:
    """(request line, body, bytes beyond); None where the client has left or waited too long."""
    data = buffered
    try:
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return None
            data += piece
        top, _, rest = data.partition(b"\r\n\r\n")
        lines = top.decode("latin-1").split("\r\n")
        length = next((int(x.partition(":")[2]) for x in lines if x.lower().startswith("content-length:")), 0)
        while len(rest) < length:
            rest += connection.recv(65536)
    except OSError:
        return None
    return lines[0], rest[:length], rest[length:]


class ScriptedServer:
    """The server's process, for `with`. `restart` comes back on the same port with empty counts."""

    def __init__(self, *options: str, tls: bool = False) -> None:
        self._options = options
        self._scheme = "https" if tls or "--certificate" in options else "http"
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ScriptedServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.scripted_server", "--port", str(self.port), *self._options]
        self._process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """Ends the process at once; the kernel resets or closes its connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def truth(self) -> dict[str, Any]:
        context = ssl._create_unverified_context() if self._scheme == "https" else None
        with urllib.request.urlopen(self.url + "/truth", timeout=10, context=context) as page:
            found: dict[str, Any] = json.load(page)
        return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--mix", default="plain", help="replies to deal where the request names none: plain:9,abort:1")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--certificate")
    options.add_argument("--key")
    options.add_argument("--idle-close", type=float, help="seconds after which a silent connection is closed")
    options.add_argument("--close-each", action="store_true", help="close after each answer, without saying so")
    options.add_argument("--max-connections", type=int, help="further ones are closed at once")
    _Server(options.parse_args()).run()


if __name__ == "__main__":
    main()
