"""A server that streams on a schedule and knows when it handed each event to the kernel, so that clocks can be judged.

A request's JSON body says what to do: `events`, `first_ms`, `gap_ms`, `size` (bytes of content an event), and `end`:
"chunk" (the last chunk on its own), "joined" (in one write with [DONE]), "cut" (closed in mid-stream), "reset", "stall"
(nothing more), "close" (whole, then the connection is closed). `at_ns` sets a wall-clock time for the last event, not
`gap_ms`, so that many streams end together. GET /truth answers {name: {"read": ns, "writes": [[before, after], …]}}.
"""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

Writes = list[tuple[int, int]]


def event(content: str, finish: str | None = None) -> bytes:
    delta = {"content": content} if content else {}
    return (
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"
    )


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


class _Server:
    def __init__(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        self._listener = listener
        self._context = context
        self._truth: dict[str, dict[str, Any]] = {}

    def run(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            threading.Thread(target=self._attend, args=(sock,), daemon=True).start()

    def _attend(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if self._context:
                sock = self._context.wrap_socket(sock, server_side=True)
            buffered = b""
            while True:
                while b"\r\n\r\n" not in buffered:
                    buffered += _receive(sock)
                head, _, buffered = buffered.partition(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    page = json.dumps(self._truth).encode()
                    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page))
                    continue
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                while len(buffered) < length:
                    buffered += _receive(sock)
                read_ns = time.time_ns()
                body, buffered = buffered[:length], buffered[length:]
                if not self._answer(sock, json.loads(body), read_ns):
                    break
        except (OSError, ConnectionError):
            pass
        finally:
            sock.close()

    def _answer(self, sock: socket.socket, asked: dict[str, Any], read_ns: int) -> bool:
        """Plays one answer; whether the connection may carry another."""
        writes: list[tuple[int, int]] = []
        self._truth[asked["name"]] = {"read": read_ns, "writes": writes}
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        count, end = asked.get("events", 10), asked.get("end", "chunk")
        due = time.monotonic() + asked.get("first_ms", 5) / 1e3
        for i in range(count):
            if i == count - 1 and "at_ns" in asked:
                due = time.monotonic() + (asked["at_ns"] - time.time_ns()) / 1e9
            time.sleep(max(0.0, due - time.monotonic()))
            due += asked.get("gap_ms", 5) / 1e3
            data = chunk(event("x" * asked.get("size", 5)))
            before = time.time_ns()
            sock.sendall(data)
            writes.append((before, time.time_ns()))
        if end == "stall":
            time.sleep(30)
        if end == "cut":
            return False
        if end == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        done = chunk(event("", "stop") + b"data: [DONE]\n\n")
        if end == "joined":
            sock.sendall(done + b"0\r\n\r\n")
        else:
            sock.sendall(done)
            sock.sendall(b"0\r\n\r\n")
        return bool(end != "close")


def _receive(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise ConnectionError
    return data


class TruthServer:
    """The server in a process of its own, as a context manager."""

    def __init__(self, host: str = "127.0.0.1", certificate: Path | None = None) -> None:
        self._host = host
        self._certificate = certificate

    def __enter__(self) -> TruthServer:
        command = [sys.executable, "-m", "tests.support.truth_server", self._host]
        if self._certificate:
            command.append(str(self._certificate))
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent.parent
        )
        assert self.process.stdout
        self.port = int(self.process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._certificate else 'http'}://{host}:{self.port}"

    def truth(self, name: str) -> tuple[int, Writes]:
        """When the request called `name` had been read, and (before, after) of the write of each of its events."""
        context = ssl._create_unverified_context() if self._certificate else None
        with urllib.request.urlopen(f"{self.url}/truth", context=context) as page:
            told = json.load(page)[name]
        return told["read"], [(before, after) for before, after in told["writes"]]


def self_signed(folder: Path, address: str = "127.0.0.1") -> Path:
    """A certificate for `address` and its key, in one PEM file."""
    path = folder / "server.pem"
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{path}.key")
    name = ("-subj", "/CN=truth", "-addext", f"subjectAltName=IP:{address}")
    subprocess.run(
        ["openssl", "req", "-x509", *key, "-days", "2", "-out", f"{path}.crt", *name], check=True, capture_output=True
    )
    path.write_text(Path(f"{path}.crt").read_text() + Path(f"{path}.key").read_text())
    return path


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("host")
    arguments.add_argument("certificate", nargs="?")
    options = arguments.parse_args()
    context = None
    if options.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.certificate)
    listener = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((options.host, 0))
    listener.listen(1024)
    print(listener.getsockname()[1], flush=True)
    _Server(listener, context).run()


if __name__ == "__main__":
    main()
