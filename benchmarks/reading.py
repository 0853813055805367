"""What reading a stream costs: µs an event for vLLM's chunks, fed an event a call, four, and in bulk."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

import sseclient

from locustfiles.client.reading import Asked, ResponseReading

EVENTS = 400
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNK = (
    b'data: {"id":"chatcmpl-9bdd364a535d625a","object":"chat.completion.chunk","created":1795961954,"model":"tiny",'
    b'"choices":[{"index":0,"delta":{"content":" word%d"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
    b"%s}\n\n"
)
_USAGE = b',"usage":{"prompt_tokens":17,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}'


def _events(usage: bool) -> list[bytes]:
    return [_CHUNK % (i, _USAGE % (18 + i, 1 + i) if usage else b"") for i in range(EVENTS)]


def _read(pieces: list[bytes]) -> Callable[[], int]:
    def run() -> int:
        reading = ResponseReading(Asked())
        reading.feed(_HEAD)
        for piece in pieces:
            reading.feed(piece)
        return reading.result().events

    return run


def _sseclient(pieces: list[bytes]) -> Callable[[], int]:
    return lambda: sum(1 for _ in sseclient.SSEClient(iter(pieces)).events())


def _join(pieces: list[bytes], by: int) -> Iterator[bytes]:
    for i in range(0, len(pieces), by):
        yield b"".join(pieces[i : i + by])


def _us_an_event(run: Callable[[], int], seconds: float = 0.4) -> float:
    """The quickest of as many runs as fit: the rest of the machine only ever adds."""
    assert run() == EVENTS
    best, until = float("inf"), time.perf_counter() + seconds
    gc.disable()
    while time.perf_counter() < until:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    gc.enable()
    return best / EVENTS * 1e6


def main() -> None:
    """Prints the table."""
    print("Reading a stream, µs an event           1 a call   4 a call    in bulk")
    for name, usage in (("vLLM chunks", False), ("vLLM chunks with usage on each", True)):
        events = _events(usage)
        chunks = [b"%x\r\n%s\r\n" % (len(event), event) for event in events]
        costs = [_us_an_event(_read(list(_join(chunks, by)))) for by in (1, 4, EVENTS)]
        print(f"{name:36}" + "".join(f"{cost:11.2f}" for cost in costs))
    events = _events(False)
    costs = [_us_an_event(_sseclient(list(_join(events, by)))) for by in (1, 4, EVENTS)]
    print(f"{'sseclient-py, events alone, no JSON':36}" + "".join(f"{cost:11.2f}" for cost in costs))


if __name__ == "__main__":
    main()
