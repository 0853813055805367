"""The engine's own figures beside the client's."""

from __future__ import annotations

from typing import Any

import pytest

from exporters.engine_own import engine_own
from exporters.facts import Window
from exporters.tables import engine_text

WINDOW = Window(10 * 10**9, 20 * 10**9)
CLIENT = {"ttft_s": {"count": 100, "mean": 0.060}}


def sample(at_s: float, count: float, total: float, fast: float) -> dict[str, Any]:
    buckets = {"0.04": fast, "0.08": count, "+Inf": count}
    return {"time_ns": round(at_s * 1e9), "ttft_s_count": count, "ttft_s_sum": total, "ttft_s_buckets": buckets}


SAMPLES = [sample(9, 0, 0, 0), sample(10.5, 20, 9.0, 0), sample(15, 60, 10.0, 20), sample(19.5, 120, 14.0, 50)]


def test_only_what_the_engine_did_inside_the_window_counts() -> None:
    own = engine_own(
        [*SAMPLES, {"time_ns": 16 * 10**9, "error": "503"}, sample(25, 900, 900, 0)], WINDOW, CLIENT, 0.0004
    )
    assert own is not None
    assert own["ttft_s"]["count"] == 100
    assert own["ttft_s"]["mean"] == pytest.approx(0.05)
    assert own["ttft_s"]["p50"] == pytest.approx(0.04)
    assert own["ttft_s"]["p95"] == pytest.approx(0.076)
    assert own["ttft_outside_s"] == pytest.approx(0.010)
    assert own["scrapes_failed"] == 1
    assert engine_text(own, CLIENT) == [
        (
            "TTFT by the engine's own count: 50 ms on average, 60 ms here: 10 ms lie between, of which a "
            "round trip on the network takes 0.4 ms, the rest gateway and API server (HTTP, tokenizing)"
        ),
        "the engine's metrics could not be read 1 times",
    ]


def test_an_engine_that_serves_others_too_is_told_for_it() -> None:
    few = {**CLIENT, "ttft_s": {"count": 10, "mean": 0.06}}
    own = engine_own(SAMPLES, WINDOW, few)
    assert own is not None
    assert "it served others too" in engine_text(own, few)[0]


def test_silence_is_silence() -> None:
    assert engine_own([], WINDOW, CLIENT) is None
    assert engine_own(SAMPLES[:2], WINDOW, CLIENT) is None, "a glimpse is not the window"
    assert engine_own([sample(11, 5, 1, 1), sample(19, 5, 1, 1)], WINDOW, CLIENT) is None
    assert engine_own([sample(11, 50, 9, 1), sample(19, 5, 1, 1)], WINDOW, CLIENT) is None, "it was restarted"
    assert engine_text(None, CLIENT) == []
