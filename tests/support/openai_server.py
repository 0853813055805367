"""A small OpenAI-compatible server in a process of its own, for tests of who sends: paced streams, and what was sent.

It knows nothing of scheduling or of faults in streams; other helpers do that. `GET /seen` tells what arrived.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """Answers in `ttft_s`, then a token each `itl_s`; `key` is the API key wanted; a prompt with FAIL gets 500."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.seen: list[dict[str, Any]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.answered = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, _ = head.split(" ", 2)
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self.answer(method, path, headers, body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        options = self.options
        if path == "/seen":
            return self.reply(writer, 200, {"seen": self.seen, "most_in_flight": self.most_in_flight})
        if options.key and headers.get("authorization") != f"Bearer {options.key}":
            return self.reply(writer, 401, {"error": {"message": "bad key", "type": "auth", "code": 401}})
        if path == "/v1/models":
            return self.reply(writer, 200, {"object": "list", "data": [{"id": name} for name in options.models]})
        if path == "/version":
            return self.reply(writer, 200, {"version": "0.32.0", "simulated": True, "engine": "test-engine"})
        if path == "/tokenize":
            asked = json.loads(body)
            text = asked.get("prompt") or " ".join(message["content"] for message in asked["messages"])
            return self.reply(writer, 200, {"count": len(text.split()) + ("messages" in asked) * 5})
        if path in ("/v1/chat/completions", "/v1/completions"):
            return await self.complete(path, json.loads(body), headers, writer)
        return self.reply(writer, 404, {"detail": "Not Found"})

    async def complete(self, path: str, asked: dict[str, Any], headers: dict[str, str], writer: Any) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        prompt = asked.get("prompt") or asked["messages"][-1]["content"]
        self.seen.append(
            {
                "path": path,
                "at": time.time(),
                "prompt": prompt,
                "asked": {k: v for k, v in asked.items() if k != "messages"},
            }
        )
        self.answered += 1
        text = "w "
        if self.options.hostile:
            tag, key = "<img src=x onerror=alert(1)>", headers.get("authorization", "")
            if self.answered % 3 == 0:
                message = f"Incorrect API key provided: {key}. {tag} {prompt[:40]}"
                self.in_flight -= 1
                return self.reply(writer, 400, {"error": {"message": message, "type": tag, "code": 400}})
            text = f"{tag}{key} "
        try:
            if self.options.fail_every and self.answered % self.options.fail_every == 0:
                return self.reply(writer, 503, {"error": {"message": "overloaded", "type": "overloaded", "code": 503}})
            tokens = asked["max_tokens"]
            usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": tokens}
            if not asked.get("stream"):
                await asyncio.sleep(self.options.ttft + self.options.itl * (tokens - 1))
                choice = {
                    "index": 0,
                    "finish_reason": "length",
                    "text": text * tokens,
                    "message": {"content": text * tokens},
                }
                return self.reply(writer, 200, {"choices": [choice], "usage": usage})
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for number in range(tokens):
                await asyncio.sleep(self.options.itl if number else self.options.ttft)
                piece = {"text": text} if "prompt" in asked else {"delta": {"content": text}}
                choice = {"index": 0, **piece, "finish_reason": "length" if number == tokens - 1 else None}
                self.event(writer, {"choices": [choice]})
                if number % 16 == 15:
                    await writer.drain()
            self.event(writer, {"choices": [], "usage": usage})
            self.event(writer, None)
            writer.write(b"0\r\n\r\n")
        finally:
            self.in_flight -= 1

    def event(self, writer: asyncio.StreamWriter, chunk: dict[str, Any] | None) -> None:
        data = f"data: {json.dumps(chunk) if chunk is not None else '[DONE]'}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    def reply(self, writer: asyncio.StreamWriter, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        writer.write(
            b"HTTP/1.1 %d Status\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (status, len(body), body)
        )


class Running:
    """A server process and its address."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def seen(self) -> dict[str, Any]:
        """`seen`: every completion asked for, in order of arrival; `most_in_flight` at once."""
        with urllib.request.urlopen(f"{self.url}/seen", timeout=10) as response:
            return dict(json.load(response))


@contextmanager
def serve(*flags: str) -> Iterator[Running]:
    """The server with these flags, on a free port; ended afterwards."""
    command = [sys.executable, "-m", "tests.support.openai_server", *flags]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield Running(process, f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttft", type=float, default=0.02)
    parser.add_argument("--itl", type=float, default=0.002)
    parser.add_argument("--models", nargs="+", default=["tiny"])
    parser.add_argument("--key")
    parser.add_argument("--fail-every", type=int, default=0)
    parser.add_argument("--hostile", action="store_true", help="errors and answers echo the key, and are HTML")
    server = Server(parser.parse_args())
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, limit=2**24)
    print(listening.sockets[0].getsockname()[1], flush=True)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
