"""How a leader reaches those who send: over Locust's messages to its workers, or by a plain call in one process.

Reports ride on Locust's own worker reports, so that a run's records and Locust's rows arrive together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from locustfiles.crew import Crew
from locustfiles.messages import Assignment, Introduction, Report, Start, Stop, pack, unpack
from tailgate.exits import BadInput

logger = logging.getLogger(__name__)

ASSIGN, READY, START, STOP = "tailgate-assign", "tailgate-ready", "tailgate-start", "tailgate-stop"
REPORT_KEY = "tailgate"

REPORT_INTERVAL_S = 1.0
_PREPARING_S = 120.0
# Above the drain: cancelling, a last report and its way here.
_GRACE_S = 12.0

MakeAssignment = Callable[[int, int, bool], Assignment]
TakeReport = Callable[[Report], None]


class Fleet(Protocol):
    """Those who send, seen from the leader."""

    @property
    def lost(self) -> dict[str, str]:
        """Workers that left without a last report, by name, and why one thinks so."""

    def enlist(self, make: MakeAssignment) -> dict[str, Introduction]:
        """Gives everyone a part (slot, slots, guest) and waits until all are ready. Raises `BadInput` if one is not."""

    def start(self, run_id: str, start_ns: int) -> None:
        """Lets everyone send."""

    def stop(self, run_id: str, drain_s: float) -> None:
        """Has everyone end, and waits for the last reports; a worker that is gone is not waited for."""

    def hurry(self, run_id: str) -> None:
        """Has everyone give up what is still in flight."""

    def all_done(self) -> bool:
        """Whether nobody who is still there has anything left to send."""

    def dismiss(self) -> None:
        """Tells the workers to leave: there will be no run."""


class Alone:
    """Leader and crew in one process."""

    def __init__(self, crew: Crew, take: TakeReport) -> None:
        self._crew = crew
        self._take = take
        self._done = False

    @property
    def lost(self) -> dict[str, str]:
        return {}

    def enlist(self, make: MakeAssignment) -> dict[str, Introduction]:
        self._done = False
        assignment = make(0, 1, False)
        introduction = self._crew.prepare(assignment)
        if introduction.fault:
            raise BadInput(introduction.fault)
        return {assignment.worker: introduction}

    def start(self, run_id: str, start_ns: int) -> None:
        self._crew.start(run_id, start_ns)
        gevent.spawn(self._report_regularly)

    def stop(self, run_id: str, drain_s: float) -> None:
        self._crew.end(drain_s)
        self._pass_on()

    def hurry(self, run_id: str) -> None:
        self._crew.end(0)

    def all_done(self) -> bool:
        return self._done

    def dismiss(self) -> None:
        pass

    def crew_is_done(self) -> None:
        """The crew's share is used up."""
        gevent.spawn(self._pass_on)

    def _report_regularly(self) -> None:
        while self._crew.in_run:
            gevent.sleep(REPORT_INTERVAL_S)
            self._pass_on()

    def _pass_on(self) -> None:
        report = self._crew.report()
        if report is not None:
            self._done = report.done
            self._take(report)


class _Member:
    """One worker of the current run, as the leader knows it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.introduction: Introduction | None = None
        self.done = False
        self.final = False
        self.expected = 0
        self.skipped: set[int] = set()

    def is_new(self, number: int) -> bool:
        """Whether this report was not seen before; one that others overtook still counts, once."""
        if number >= self.expected:
            self.skipped.update(range(self.expected, number))
            self.expected = number + 1
            return True
        if number in self.skipped:
            self.skipped.remove(number)
            return True
        return False


class Distributed:
    """Locust's master and its workers."""

    def __init__(self, environment: Environment, runner: MasterRunner, take: TakeReport) -> None:
        self._runner = runner
        self._take = take
        self._members: dict[str, _Member] = {}
        self._make: MakeAssignment | None = None
        self._slots = 0
        self._run_id = ""
        self._start_ns: int | None = None
        self._changed = Event()
        runner.register_message(READY, self._on_ready)
        environment.events.worker_report.add_listener(self._on_report)
        environment.events.worker_connect.add_listener(self._on_connect)
        # Locust's own listener adds a report's rows to the table; ours must be able to take them out before.
        handlers = environment.events.worker_report._handlers
        handlers.insert(0, handlers.pop())

    @property
    def lost(self) -> dict[str, str]:
        return {
            member.name: "went silent" if client_id in self._runner.clients else "left early"
            for client_id, member in self._members.items()
            if not member.final and not self._present(client_id)
        } | {
            member.name: f"{len(member.skipped)} of its reports never arrived"
            for member in self._members.values()
            if member.final and member.skipped
        }

    def enlist(self, make: MakeAssignment) -> dict[str, Introduction]:
        clients = sorted(
            (client.id for client in self._runner.clients.values() if client.state != STATE_MISSING),
            key=self._runner.get_worker_index,
        )
        self._members, self._start_ns = {}, None
        self._make, self._slots = make, len(clients)
        for slot, client_id in enumerate(clients):
            self._assign(client_id, make(slot, self._slots, False))
        deadline = time.monotonic() + _PREPARING_S
        while waiting := [key for key, member in self._members.items() if member.introduction is None]:
            if gone := [key for key in waiting if not self._present(key)]:
                raise BadInput(f"the worker {gone[0]} went away while it prepared", "look at its output")
            if time.monotonic() > deadline:
                raise BadInput(f"the worker {waiting[0]} is not ready after {_PREPARING_S:g} s", "look at its output")
            self._changed.wait(0.2)
            self._changed.clear()
        ready: dict[str, Introduction] = {}
        for member in self._members.values():
            assert member.introduction is not None, "waited for above"
            if member.introduction.fault:
                raise BadInput(f"{member.name} on {member.introduction.host}: {member.introduction.fault}")
            ready[member.name] = member.introduction
        return ready

    def start(self, run_id: str, start_ns: int) -> None:
        self._start_ns = start_ns
        for client_id in self._members:
            self._send(START, Start(run_id=run_id, start_ns=start_ns), client_id)

    def stop(self, run_id: str, drain_s: float) -> None:
        self._make = None
        self._tell_to_stop(run_id, drain_s)
        deadline = time.monotonic() + drain_s + _GRACE_S
        while time.monotonic() < deadline:
            if all(member.final or not self._present(key) for key, member in self._members.items()):
                return
            self._changed.wait(0.2)
            self._changed.clear()

    def hurry(self, run_id: str) -> None:
        self._tell_to_stop(run_id, 0.0)

    def all_done(self) -> bool:
        here = [member for key, member in self._members.items() if self._present(key) or member.final]
        return bool(here) and all(member.done or member.final for member in here)

    def dismiss(self) -> None:
        for client_id in list(self._runner.clients):
            self._runner.send_message("quit", client_id=client_id)
        gevent.sleep(0.3)

    def _tell_to_stop(self, run_id: str, drain_s: float) -> None:
        for client_id in self._members:
            self._send(STOP, Stop(run_id=run_id, drain_s=drain_s), client_id)

    def _assign(self, client_id: str, assignment: Assignment) -> None:
        self._run_id = assignment.run_id
        self._members[client_id] = _Member(assignment.worker)
        self._send(ASSIGN, assignment, client_id)

    def _present(self, client_id: str) -> bool:
        client = self._runner.clients.get(client_id)
        return client is not None and client.state != STATE_MISSING

    def _send(self, kind: str, message: Assignment | Start | Stop, client_id: str) -> None:
        self._runner.send_message(kind, {"message": pack(message)}, client_id)

    def _on_ready(self, environment: Environment, msg: Any, **_: Any) -> None:
        introduction = unpack(msg.data["message"], Introduction)
        member = self._members.get(msg.node_id)
        if member is None or introduction.run_id != self._run_id:
            return
        member.introduction = introduction
        self._changed.set()
        if self._start_ns is not None:
            # It came in the middle of the run.
            self._send(START, Start(run_id=self._run_id, start_ns=self._start_ns), msg.node_id)

    def _on_connect(self, client_id: str, **_: Any) -> None:
        """A worker that comes during a run is given requests of its own, which are in nobody's share."""
        if self._make is not None and self._start_ns is not None and client_id not in self._members:
            guest = self._make(len(self._members), self._slots, True)
            logger.warning("%s joins in the middle of the run", guest.worker)
            self._assign(client_id, guest)

    def _on_report(self, client_id: str, data: dict[str, Any], **_: Any) -> None:
        packed = data.pop(REPORT_KEY, None)
        member = self._members.get(client_id)
        if packed is None:
            return
        report = unpack(packed, Report)
        if member is None or report.run_id != self._run_id or not member.is_new(report.number):
            # Late or twice: what it says is in the run, or belongs to another one.
            data["stats"], data["errors"] = [], {}
            data["stats_total"] = self._runner.stats.total.__class__(
                self._runner.stats, "Aggregated", ""
            ).serialize() | {"start_time": self._runner.stats.total.start_time}
            return
        member.done, member.final = report.done, report.final
        self._take(report)
        self._changed.set()


class Enlisted:
    """A worker's end of `Distributed`: does what the master says and reports to it."""

    def __init__(self, environment: Environment, runner: WorkerRunner, crew: Crew) -> None:
        self._environment = environment
        self._runner = runner
        self._crew = crew
        runner.register_message(ASSIGN, self._on_assign, concurrent=True)
        runner.register_message(START, self._on_start)
        runner.register_message(STOP, self._on_stop, concurrent=True)
        environment.events.report_to_master.add_listener(self._on_report)

    def report_now(self) -> None:
        """Sends a report out of turn, Locust's rows with it."""
        data: dict[str, Any] = {}
        self._environment.events.report_to_master.fire(client_id=self._runner.client_id, data=data)
        self._runner.send_message("stats", data)

    def _on_assign(self, environment: Environment, msg: Any, **_: Any) -> None:
        assignment = unpack(msg.data["message"], Assignment)
        self._runner.send_message(READY, {"message": pack(self._crew.prepare(assignment))})

    def _on_start(self, environment: Environment, msg: Any, **_: Any) -> None:
        start = unpack(msg.data["message"], Start)
        self._crew.start(start.run_id, start.start_ns)

    def _on_stop(self, environment: Environment, msg: Any, **_: Any) -> None:
        self._crew.end(unpack(msg.data["message"], Stop).drain_s)
        # All has ended: Locust need not wait for anyone when it stops the users, nor afterwards.
        self._environment.stop_timeout = 0.0
        self.report_now()

    def _on_report(self, client_id: str, data: dict[str, Any], **_: Any) -> None:
        report = self._crew.report()
        if report is not None:
            data[REPORT_KEY] = pack(report)
