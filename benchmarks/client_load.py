"""A process of its own that keeps STREAMS users on our client busy for SECONDS, then prints what it measured as JSON.

    python -m benchmarks.client_load URL STREAMS SECONDS CLOCK

It is the client alone, without Locust: what it costs and how true it is, nothing else in the way.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from dataclasses import asdict

import gevent
import numpy as np

from benchmarks.bench import QUANTILES, TOKENS
from locustfiles.client.choice import open_clock
from locustfiles.client.reading import Asked
from locustfiles.client.stream import Outcome, StreamingClient
from locustfiles.client.target import Target
from locustfiles.client.tls import TlsOptions

_PATH = "/v1/chat/completions"
_SPREAD_S = 1.0  # over which the users begin: all at once would measure the burst


def body(tokens: int = TOKENS) -> bytes:
    asked = {"model": "truth", "stream": True, "max_tokens": tokens, "stream_options": {"include_usage": True}}
    return json.dumps({**asked, "messages": [{"role": "user", "content": "hi"}]}).encode()


def main() -> None:
    url, streams, seconds, clock_name = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    tokens = int(sys.argv[5]) if len(sys.argv) > 5 else TOKENS
    target = Target.resolve(url)
    clock, _ = open_clock(clock_name, target)
    client = StreamingClient(target, clock, tls=TlsOptions(insecure=True))
    request, asked = body(tokens), Asked(endpoint=_PATH)
    ttft_ns: list[int] = []
    itl_ns: list[np.ndarray] = []
    turnaround_ns: list[int] = []
    failed = 0

    def user() -> None:
        nonlocal failed
        ended_ns: int | None = None
        while time.monotonic() < end:
            outcome: Outcome = client.perform(_PATH, request, asked)
            if not outcome.ok:
                failed += 1
                gevent.sleep(0.1)
                continue
            if ended_ns is not None:
                turnaround_ns.append(outcome.sent_ns - ended_ns)
            ended_ns = outcome.end_ns
            ttft_ns.append(int(outcome.arrivals_ns[0]) - outcome.sent_ns)
            itl_ns.append(outcome.gaps_ns)

    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    end = time.monotonic() + seconds
    gevent.joinall([gevent.spawn_later(_SPREAD_S * i / streams, user) for i in range(streams)])
    print(
        json.dumps(
            {
                "ttft_ms": _quantiles(np.array(ttft_ns)),
                "itl_ms": _quantiles(np.concatenate(itl_ns) if itl_ns else np.empty(0)),
                "turnaround_ms": _quantiles(np.array(turnaround_ns)),
                "failed": failed,
                "health": asdict(clock.health()),
            }
        )
    )


def _quantiles(values_ns: np.ndarray) -> dict[str, float]:
    if not len(values_ns):
        return dict.fromkeys(QUANTILES, float("nan"))
    return dict(zip(QUANTILES, (np.percentile(values_ns, (50, 95, 99, 100)) / 1e6).tolist(), strict=True))


if __name__ == "__main__":
    main()
