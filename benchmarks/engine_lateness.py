"""How late the embedded engine writes: scheduled against written, at 20,000 token events a second from one process.

Steps are scaled so that the wanted number of events falls due each second; a reader in a process of its own takes the
bytes and looks at none. All tokens of a step fall due at once, so the last of n streams waits for n sends.
"""

from __future__ import annotations

import json
import re
import select
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass

from vllm_launch.simulated.settings import EngineSettings

EVENTS_PER_S = 20_000
STREAMS = (100, 300, 1000)
WARM_UP_S = 3.0
MEASURE_S = 8.0
_PROMPT_TOKENS, _OUTPUT_TOKENS = 32, 16_000
_NAME = "tailgate_simulated_lateness_seconds"


@dataclass(frozen=True, slots=True)
class Lateness:
    """Quantiles are upper bounds of the buckets they fall into, in seconds."""

    streams: int
    events_per_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    p999_s: float
    mean_s: float
    behind_steps: int
    cpu_share: float


def measure(streams: int, events_per_s: float = EVENTS_PER_S, seconds: float = MEASURE_S) -> Lateness:
    """Runs the engine and a reader as processes and gives what the engine says of itself between two scrapes."""
    settings, _ = EngineSettings.from_flags("meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", {})
    generated = events_per_s / streams * (WARM_UP_S + seconds / 2)  # by each stream, in the middle of the measurement
    context = int(streams * (_PROMPT_TOKENS + generated))
    slowdown = streams / events_per_s / settings.step_times().step_s(streams, context, [])
    command = [sys.executable, "-m", "vllm_launch.simulated", "--port", "0", "--slowdown", f"{slowdown:.6f}"]
    engine = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    reader = None
    try:
        assert engine.stdout is not None
        ready = next((line for line in engine.stdout if line.startswith("Ready")), "")
        port = int(ready.rsplit(":", 1)[1])
        reader = subprocess.Popen([sys.executable, "-m", "benchmarks.engine_lateness", str(port), str(streams)])
        time.sleep(WARM_UP_S)
        before, started = _scrape(port), time.monotonic()
        time.sleep(seconds)
        after, took = _scrape(port), time.monotonic() - started
    finally:
        for process in (reader, engine):
            if process is not None:
                process.kill()
                process.wait()
    return _between(before, after, streams, took)


def _scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {m[1]: float(m[2]) for m in re.finditer(r"^([^#\s]+) (\S+)$", text, re.MULTILINE)}


def _between(before: dict[str, float], after: dict[str, float], streams: int, took: float) -> Lateness:
    change = {name: value - before.get(name, 0.0) for name, value in after.items()}
    buckets = []
    for name, count in change.items():
        if name.startswith(f"{_NAME}_bucket"):
            le = re.search(r'le="([^"]+)"', name)
            assert le is not None
            buckets.append((float(le[1].replace("+Inf", "inf")), count))
    total = buckets[-1][1]
    if total < 1:
        raise RuntimeError("the engine wrote nothing while it was measured")

    def quantile(q: float) -> float:
        return next(bound for bound, count in buckets if count >= q * total)

    one = {name.split("{")[0]: value for name, value in change.items() if "_bucket" not in name}
    return Lateness(
        streams,
        total / took,
        quantile(0.5),
        quantile(0.9),
        quantile(0.99),
        quantile(0.999),
        one[f"{_NAME}_sum"] / total,
        int(one["tailgate_simulated_behind_steps_total"]),
        one["process_cpu_seconds_total"] / took,
    )


def _read_and_forget(port: int, streams: int) -> None:
    """The reader: opens the streams and drains them in bulk, every five milliseconds at the most."""
    poll = select.epoll()
    sockets = {}
    for i in range(streams):
        body = json.dumps(
            {
                "messages": [{"role": "user", "content": f"{i} " + "word " * (_PROMPT_TOKENS - 12)}],
                "max_tokens": _OUTPUT_TOKENS,
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()
        sock = socket.create_connection(("127.0.0.1", port))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: %d\r\n\r\n" % len(body)
        sock.sendall(head + body)
        poll.register(sock, select.EPOLLIN)
        sockets[sock.fileno()] = sock
    buffer = bytearray(1 << 16)
    while True:
        for descriptor, _ in poll.poll():
            if not sockets[descriptor].recv_into(buffer):
                return
        time.sleep(0.005)


def main(quick: bool = False) -> None:
    print(f"embedded engine, lateness of its writes at {EVENTS_PER_S} events/s (simulated GPU scaled to that rate)")
    print("streams   events/s       p50       p90       p99     p99.9      mean   steps behind   CPU")
    for streams in STREAMS[1:2] if quick else STREAMS:
        late = measure(streams, seconds=3.0 if quick else MEASURE_S)
        times = "".join(
            f"{1e3 * value:>7.2f} ms" for value in (late.p50_s, late.p90_s, late.p99_s, late.p999_s, late.mean_s)
        )
        print(f"{streams:>7}{late.events_per_s:>11.0f}{times}{late.behind_steps:>15}{100 * late.cpu_share:>5.0f}%")
    print("quantiles are upper bounds of histogram buckets; behind: handled more than 20 ms after its end")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _read_and_forget(int(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
