"""What one writes without thinking of it: HttpUser, sseclient-py, a clock read an event. For comparison only.

Prints its quantiles as one JSON line when Locust quits.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import sseclient
from locust import HttpUser, constant, events, task

_BODY = {
    "model": "truth",
    "stream": True,
    "max_tokens": 100,
    "stream_options": {"include_usage": True},
    "messages": [{"role": "user", "content": "hi"}],
}
_ttft_ms: list[float] = []
_itl_ms: list[float] = []


class NaiveUser(HttpUser):
    wait_time = constant(0)

    @task
    def ask(self) -> None:
        start = last = time.perf_counter()
        first = True
        with self.client.post("/v1/chat/completions", json=_BODY, stream=True, catch_response=True) as response:
            for event in sseclient.SSEClient(response).events():
                if event.data == "[DONE]":
                    break
                choices = json.loads(event.data)["choices"]
                if choices and choices[0]["delta"].get("content"):
                    now = time.perf_counter()
                    (_ttft_ms if first else _itl_ms).append((now - (start if first else last)) * 1e3)
                    first, last = False, now


@events.quitting.add_listener
def _tell(**_: Any) -> None:
    names = ("p50", "p95", "p99", "max")
    told = {
        name: dict(zip(names, np.percentile(values or [0.0], (50, 95, 99, 100)).tolist(), strict=True))
        for name, values in (("ttft_ms", _ttft_ms), ("itl_ms", _itl_ms))
    }
    print("\n" + json.dumps(told), flush=True)
