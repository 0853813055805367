"""Callbacks come in order, never early, and from the loop only."""

from __future__ import annotations

import asyncio
import time

import uvloop

from vllm_launch.simulated.alarm import Alarm


def test_callbacks_come_in_order_and_never_early() -> None:
    called: list[tuple[str, float]] = []

    async def run() -> float:
        alarm = Alarm(asyncio.get_running_loop())
        start = time.monotonic()
        done = asyncio.Event()

        def note(name: str) -> None:
            called.append((name, time.monotonic() - start))
            if name == "first":
                alarm.at(start + 0.02, lambda: note("nested"))
            if name == "last":
                done.set()

        for name, after in (("last", 0.06), ("first", 0.01), ("past", -1.0), ("second", 0.03)):
            alarm.at(start + after, lambda name=name: note(name))  # type: ignore[misc]
        assert called == []
        await asyncio.wait_for(done.wait(), 10)
        alarm.close()
        return start

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert [name for name, _ in called] == ["past", "first", "nested", "second", "last"]
    due = {"past": -1.0, "first": 0.01, "nested": 0.02, "second": 0.03, "last": 0.06}
    assert all(at >= due[name] for name, at in called)
