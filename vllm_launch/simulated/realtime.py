"""The engine at the pace of the wall clock: every token leaves at the time its step ends on the simulated GPU.

Step times follow each other without a gap however late this process is: a step starts when the one before it ended on
the simulated GPU, not when this process noticed. While a step runs, the bytes it will yield are made ready, so that at
its end they only need to be sent. How late they are is measured, and said.
"""

from __future__ import annotations

import logging
import time

from vllm_launch.simulated.alarm import Alarm
from vllm_launch.simulated.engine import Engine
from vllm_launch.simulated.generation import Phase, Step
from vllm_launch.simulated.live import Choice, LiveRequest
from vllm_launch.simulated.metrics_page import EngineMetrics

_log = logging.getLogger("tailgate.simulated")

# A step that is handled this much after its end is behind: well above what a busy host costs in passing.
BEHIND_S = 0.020
_SAY_EVERY_S = 10.0


class Pacer:
    """Runs an `Engine` in real time for `LiveRequest`s."""

    def __init__(self, engine: Engine, alarm: Alarm, metrics: EngineMetrics) -> None:
        self.engine = engine
        self.live: dict[LiveRequest, None] = {}
        self._alarm = alarm
        self._metrics = metrics
        self._step: Step | None = None
        self._ends = 0.0
        self._outbox: list[tuple[Choice, bytes]] = []
        self._said = 0.0

    @property
    def idle(self) -> bool:
        return self._step is None

    def submit(self, request: LiveRequest) -> None:
        """Takes a request on; it enters the queue once the time for receiving and tokenising it has passed."""
        self.live[request] = None
        request.connection.on_close = lambda: self.abandon(request)
        when = request.received + self.engine.times.overhead.per_request_s
        self._alarm.at(when, lambda: self._enqueue(request, when))

    def _enqueue(self, request: LiveRequest, when: float) -> None:
        if request not in self.live:
            return
        for choice in request.choices:
            choice.last_s = when
            self.engine.scheduler.add(choice.generation)
        if self._step is None:
            self._begin(when)

    def abandon(self, request: LiveRequest) -> None:
        """The client has left: its generations end at once and count for nothing."""
        if self.live.pop(request, 0) == 0:
            return
        for choice in request.choices:
            self.engine.scheduler.abort(choice.generation)
            self._metrics.forget(choice.generation)
        request.let_go()

    def shut_down(self) -> None:
        """Ends all that runs with the finish reason `abort`, as vLLM does on SIGTERM."""
        ready = dict(self._outbox)
        for request in list(self.live):
            request.connection.on_close = None
            data = b""
            for choice in request.choices:
                data += ready.get(choice, b"") + (b"" if choice.finish else choice.abort())
            for choice in request.choices:
                self.engine.scheduler.abort(choice.generation)
            self._answer(request, data)

    # -- steps ------------------------------------------------------------------------------------------------------

    def _begin(self, start: float) -> None:
        begun = self.engine.begin()
        if begun is None:
            self._step = None
            return
        step, duration = begun
        self._step, self._ends = step, start + duration
        for generation in step.admitted:
            self._metrics.admitted(generation, start)
        outbox = []
        for generation in self.engine.scheduler.decoding():
            choice = generation.owner
            if isinstance(choice, Choice) and generation not in step.starved:
                outbox.append((choice, choice.advance()))
        for generation, tokens in step.prefills.items():
            choice = generation.owner
            if isinstance(choice, Choice) and generation.computed + tokens >= generation.known_tokens:
                outbox.append((choice, choice.advance()))
        self._outbox = outbox
        self._alarm.at(self._ends, self._end)

    def _end(self) -> None:
        step, ends = self._step, self._ends
        if step is None:
            return
        self._watch(ends)
        now = time.monotonic
        lateness = []
        for choice, data in self._outbox:
            if data and choice.generation.phase is not Phase.DONE:
                choice.request.connection.send(data)
                lateness.append(now() - ends)
        self.engine.scheduler.complete(step)
        told = [choice for choice, _ in self._outbox if choice.request in self.live]
        self._metrics.step_ended(step, ends, told, lateness)
        for choice in told:
            if choice.finish is not None:
                self._finish(choice, ends)
        self._begin(ends)

    def _finish(self, choice: Choice, ends: float) -> None:
        if choice.generation.phase is not Phase.DONE:
            self.engine.scheduler.abort(choice.generation)  # a stop string, which the scheduler knows nothing of
        self._metrics.finished(choice, ends)
        request = choice.request
        request.unfinished -= 1
        if not request.unfinished:
            self._answer(request, b"")

    def _answer(self, request: LiveRequest, data: bytes) -> None:
        del self.live[request]
        if request.writer is None:
            request.connection.reply(200, request.whole_answer())
        else:
            if data:
                request.connection.send(data)
            request.connection.end_stream()
        if request.on_answered is not None:
            request.on_answered()
        request.let_go()

    def _watch(self, ends: float) -> None:
        now = time.monotonic()
        if now - ends < BEHIND_S:
            return
        self._metrics.behind_steps += 1
        if now - self._said > _SAY_EVERY_S:
            self._said = now
            _log.warning(
                "behind real time by %.0f ms: this host is too slow or too busy for %d streams; latencies of this run "
                "are not those of the simulated GPU (see tailgate_simulated_lateness_seconds)",
                (now - ends) * 1e3,
                len(self.live),
            )
