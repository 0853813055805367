"""This process's part in runs: from the leader's assignment to its last report. A leader alone is its own crew."""

from __future__ import annotations

import gc
import logging
import platform
import socket
import time
from collections.abc import Callable
from pathlib import Path

from gevent.event import Event
from locust.env import Environment

import tailgate
from exporters.facts import Facts
from locustfiles.client.choice import open_clock
from locustfiles.client.stream import StreamingClient
from locustfiles.client.target import Target
from locustfiles.feed import Feed, Share
from locustfiles.messages import Assignment, Decision, Introduction, Proposal, Reply, Report
from locustfiles.recording import Recorder
from locustfiles.rows import Rows
from locustfiles.sending import Sender
from locustfiles.settings import ApiKey, Settings, read_settings, workload_from
from tailgate.exits import BadInput
from workloads import Calibration, make_plan

logger = logging.getLogger(__name__)

HOST = socket.gethostname()


class Crew:
    """Takes part in one run after the other; `on_done` is called when this process has nothing left to do in one."""

    def __init__(self, environment: Environment, key: ApiKey, on_done: Callable[[], None]) -> None:
        self._environment = environment
        self._key = key
        self._on_done = on_done
        self._part: _Part | None = None
        self._assigned = Event()

    @property
    def in_run(self) -> bool:
        """Whether this process has a part in a run that has not ended."""
        return self._part is not None and not self._part.ended.is_set()

    def prepare(self, assignment: Assignment) -> Introduction:
        """Makes ready to send; a fault of the user's comes back as the introduction's `fault`."""
        received_ns = time.time_ns()
        if self.in_run:
            # Whoever led that run is gone, and has come back without a memory of it.
            logger.warning("another run begins: what is in flight of the last one is cancelled")
            self.end(0)
        try:
            part = _Part(self._environment, self._key, assignment, self._on_done)
        except BadInput as error:
            return refusal(assignment.run_id, str(error))
        except Exception as error:
            # The leader waits for an answer, whatever went wrong here.
            logger.exception("%s cannot be prepared", assignment.worker)
            return refusal(assignment.run_id, f"failed inside: {error!r}")
        self._part = part
        self._assigned.set()
        return Introduction(
            run_id=assignment.run_id,
            host=HOST,
            version=tailgate.__version__,
            python=platform.python_version(),
            clock=part.clock_name,
            notes=part.notes,
            asked_ns=assignment.sent_ns,
            received_ns=received_ns,
            sent_ns=time.time_ns(),
        )

    def start(self, run_id: str, start_ns: int, lease_s: float | None = None, ahead_ns: int = 0) -> None:
        """Begins to send; with a lease not longer than that before it is renewed.

        `start_ns` is by the leader's clock, which this machine's is `ahead_ns` ahead of: records are given by the
        leader's, so that those of all workers lie on one line of time.
        """
        part = self._in(run_id)
        if part is not None:
            start_ns += ahead_ns
            part.sender.recorder.ahead_ns = ahead_ns
            if lease_s is not None and part.dealt:
                part.sender.lease(max(start_ns, time.time_ns()) + int(lease_s * 1e9))
            _collect_garbage_rarely()
            part.sender.start(start_ns, part.settings.warmup_s)

    def lease(self, run_id: str, until_ns: int) -> None:
        """The leader has not given this worker up: it may send until then."""
        part = self._in(run_id)
        if part is not None and part.dealt:
            part.sender.lease(until_ns)

    def consider(self, proposal: Proposal) -> Reply | None:
        """Holds back what may become another worker's, if it is not too late; None where this is another run."""
        part = self._in(proposal.run_id)
        if part is None:
            return None
        agreed = part.sender.hold(proposal.from_index)
        part.proposal = proposal if agreed else None
        return Reply(run_id=proposal.run_id, number=proposal.number, agreed=agreed, taken=part.sender.taken)

    def decide(self, decision: Decision) -> None:
        """The proposal holds, or does not."""
        part = self._in(decision.run_id)
        if part is None or part.proposal is None or part.proposal.number != decision.number:
            return
        proposal, part.proposal = part.proposal, None
        if not decision.accepted:
            part.sender.release()
            return
        _, slot, slots = proposal.deals[-1]
        most = part.settings.max_in_flight
        part.sender.release(proposal.deals, _part_of(most, slot, slots) if most else None)

    def change_rate(self, run_id: str, at_s: float, rate: float) -> None:
        """Another rate from `at_s` after the start on."""
        part = self._in(run_id)
        if part is not None:
            part.sender.change_rate(at_s, rate)

    def _in(self, run_id: str) -> _Part | None:
        part = self._part
        return part if part is not None and part.assignment.run_id == run_id else None

    def sender(self) -> Sender:
        """The current run's sender, once it may send; blocks the calling user until then."""
        self._assigned.wait()
        assert self._part is not None, "assigned"
        self._part.sender.started.wait()
        return self._part.sender

    def end(self, drain_s: float | None = None, stop_ns: int | None = None) -> None:
        """Stops sending as of `stop_ns` (epoch ns by the leader's clock; None: now), drains (None: as the run says),
        cancels; who calls while that goes on waits for its end. Calling again with a drain of 0 ends it at once.
        """
        part = self._part
        if part is None:
            return
        if not part.ending:
            part.ending = True
            self._assigned.clear()
            part.sender.started.set()
            if stop_ns is not None:
                stop_ns += part.sender.recorder.ahead_ns
            part.sender.stop(part.settings.drain_s if drain_s is None else drain_s, stop_ns)
            part.ended.set()
        elif drain_s == 0:
            part.sender.hurry()
        part.ended.wait()

    def report(self) -> Report | None:
        """What there is to tell since the last report; None when the last one was final, or there was no run."""
        part = self._part
        return part.report() if part is not None else None


def refusal(run_id: str, fault: str) -> Introduction:
    """The answer of a worker that cannot take part."""
    return Introduction(run_id=run_id, host=HOST, version=tailgate.__version__, fault=fault)


class _Part:
    """One run's things of one process."""

    def __init__(
        self, environment: Environment, key: ApiKey, assignment: Assignment, on_done: Callable[[], None]
    ) -> None:
        source = f"the workload sent to {assignment.worker}"
        settings = read_settings(assignment.options, workload_from(assignment.workload, source))
        plan = make_plan(
            settings.workload,
            seed=assignment.seed,
            model=assignment.model,
            counter=Calibration.from_dict(assignment.calibration),
            trace=settings.trace,
            salt=assignment.salt,
            time_scale=settings.time_scale,
            arrival=settings.arrival,
            extra_body=settings.extra_body,
            stream=settings.stream,
            usage_per_chunk=assignment.usage_per_chunk,
            max_model_len=assignment.longest,
        )
        target = Target.resolve(assignment.url)
        clock, self.clock_note = open_clock(settings.clock, target, settings.ring_packets)
        rows = Rows(environment, assignment.url, settings.itl_events)
        live = Facts({"slo": settings.slo}) if assignment.live else None
        recorder = _recorder(assignment, rows, settings.save_outputs, live)
        self.assignment = assignment
        self.settings: Settings = settings
        self.clock_name = clock.name
        self.notes = (*plan.notes, self.clock_note)
        self.ending = False
        self.ended = Event()
        self.dealt = settings.arrival.open or settings.num_requests is not None
        """Whether requests are dealt anew when workers come or go: where one not sent would be missing."""
        self.proposal: Proposal | None = None
        self._reports = 0
        most = settings.max_in_flight
        for at_s, rate in assignment.rate_changes:
            assert plan.schedule is not None, "only open loops change their rate"
            plan.schedule.change_rate(at_s, rate)
        share = (
            Share.guest(assignment.slot, settings.num_requests, settings.arrival.open)
            if assignment.guest
            else Share(assignment.slot, assignment.slots, settings.num_requests)
        )
        self.sender = Sender(
            plan,
            Feed(plan, share),
            StreamingClient(target, clock, timeouts=settings.timeouts, tls=settings.tls, headers=key.headers()),
            clock,
            recorder,
            retries=settings.retries,
            stream=settings.stream,
            keep_text=settings.save_outputs,
            most_in_flight=_part_of(most, assignment.slot, assignment.slots) if most else None,
            spacing_s=assignment.spacing_s,
            on_done=on_done,
        )

    def report(self) -> Report | None:
        if self._reports < 0:
            return None
        final = self.ended.is_set()
        sender = self.sender
        health = sender.health()
        health.host, health.version = HOST, tailgate.__version__
        lines, counted = sender.recorder.take_fresh()
        report = Report(
            run_id=self.assignment.run_id,
            worker=self.assignment.worker,
            number=self._reports,
            lines=lines,
            counted=counted,
            health=health,
            in_flight=sender.in_flight,
            bodies_sum=f"{sender.recorder.bodies_sum:064x}",
            bodies_count=sender.recorder.bodies_count,
            schedule_sum=f"{sender.recorder.schedule_sum:064x}",
            done=sender.done,
            final=final,
        )
        self._reports += 1
        if final:
            self._reports = -1
            sender.close()
        return report


def _collect_garbage_rarely() -> None:
    """What stands at the start stays, and records have no cycles: looking through them again and again costs a lot."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _recorder(assignment: Assignment, rows: Rows, keep_outputs: bool, live: Facts | None) -> Recorder:
    """With its journal in the leader's run directory, or in one of that name here where this machine lacks it."""
    given = Path(assignment.directory)
    here = Path.cwd() / "results" / given.name
    try:
        return Recorder(assignment.worker, assignment.run_id, given, rows, keep_outputs, live)
    except OSError:
        try:
            return Recorder(assignment.worker, assignment.run_id, here, rows, keep_outputs, live)
        except OSError as error:
            raise BadInput(f"{error.filename or here}: {error.strerror}", "make it writable") from None


def _part_of(total: int, slot: int, slots: int) -> int:
    """`total` dealt out evenly over `slots`, at least one each."""
    return max(1, total // slots + (slot < total % slots))
