"""A worker's end of `fleet.Distributed`: does what the master says and reports to it."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from locust import runners
from locust.env import Environment
from locust.runners import WorkerRunner

from locustfiles.crew import Crew, refusal
from locustfiles.fleet import ASSIGN, DECISION, PACE, PROPOSAL, READY, REPLY, REPORT_KEY, RHYTHM, SEEN, START, STOP
from locustfiles.messages import Assignment, Decision, Pace, Proposal, Rhythm, Seen, Start, Stop, pack, unpack
from locustfiles.sending import LEASE_S

_UNCONFIRMED = 30  # reports remembered until the leader has confirmed them; older ones could renew no lease any more


class Enlisted:
    """Joins one process's crew to Locust's messages."""

    def __init__(self, environment: Environment, runner: WorkerRunner, crew: Crew) -> None:
        self._environment = environment
        self._runner = runner
        self._crew = crew
        runner.register_message(ASSIGN, self._on_assign, concurrent=True)
        runner.register_message(START, self._on_start)
        runner.register_message(STOP, self._on_stop, concurrent=True)
        runner.register_message(PROPOSAL, self._on_proposal)
        runner.register_message(DECISION, self._on_decision)
        runner.register_message(PACE, self._on_pace)
        runner.register_message(RHYTHM, self._on_rhythm)
        runner.register_message(SEEN, self._on_seen)
        self._asked = ("", "")
        self._reported_ns: dict[tuple[str, int], int] = {}
        environment.events.report_to_master.add_listener(self._on_report)

    def report_now(self) -> None:
        """Sends a report out of turn, Locust's rows with it."""
        data: dict[str, Any] = {}
        self._environment.events.report_to_master.fire(client_id=self._runner.client_id, data=data)
        self._runner.send_message("stats", data)

    def _on_assign(self, environment: Environment, msg: Any, **_: Any) -> None:
        try:
            assignment = unpack(msg.data["message"], Assignment)
            if (assignment.run_id, assignment.worker) == self._asked:
                # Asked once more before the answer was heard, which is on its way or still being made.
                return
            self._asked = (assignment.run_id, assignment.worker)
            introduction = self._crew.prepare(assignment)
        except msgspec.DecodeError as error:
            # A master of another version; it knows this worker's answer all the same, and says so to the user.
            run_id = str(msgspec.msgpack.decode(msg.data["message"]).get("run_id", ""))
            introduction = refusal(run_id, f"cannot read what the master says ({error})")
        self._runner.send_message(READY, {"message": pack(introduction)})

    def _on_start(self, environment: Environment, msg: Any, **_: Any) -> None:
        start = unpack(msg.data["message"], Start)
        runners.WORKER_REPORT_INTERVAL = start.report_s
        self._crew.start(start.run_id, start.start_ns, LEASE_S, start.ahead_ns)

    def _on_proposal(self, environment: Environment, msg: Any, **_: Any) -> None:
        reply = self._crew.consider(unpack(msg.data["message"], Proposal))
        if reply is not None:
            self._runner.send_message(REPLY, {"message": pack(reply)})

    def _on_decision(self, environment: Environment, msg: Any, **_: Any) -> None:
        self._crew.decide(unpack(msg.data["message"], Decision))

    def _on_pace(self, environment: Environment, msg: Any, **_: Any) -> None:
        pace = unpack(msg.data["message"], Pace)
        self._crew.change_rate(pace.run_id, pace.at_s, pace.rate)

    def _on_rhythm(self, environment: Environment, msg: Any, **_: Any) -> None:
        # Locust reads it before each pause between two reports.
        runners.WORKER_REPORT_INTERVAL = unpack(msg.data["message"], Rhythm).report_s

    def _on_seen(self, environment: Environment, msg: Any, **_: Any) -> None:
        """The lease counts from when the report left, however long its confirmation lay here unread."""
        seen = unpack(msg.data["message"], Seen)
        sent_ns = self._reported_ns.pop((seen.run_id, seen.number), None)
        if sent_ns is not None:
            self._crew.lease(seen.run_id, sent_ns + int(LEASE_S * 1e9))

    def _on_stop(self, environment: Environment, msg: Any, **_: Any) -> None:
        # Locust waits for the end of this when it stops the users, and need not wait for anyone afterwards.
        self._environment.stop_timeout = 0.0
        stop = unpack(msg.data["message"], Stop)
        self._crew.end(stop.drain_s, stop.stop_ns)
        self.report_now()

    def _on_report(self, client_id: str, data: dict[str, Any], **_: Any) -> None:
        report = self._crew.report()
        if report is not None:
            if not report.number:
                self._reported_ns.clear()
            self._reported_ns[report.run_id, report.number] = time.time_ns()
            if len(self._reported_ns) > _UNCONFIRMED:
                del self._reported_ns[next(iter(self._reported_ns))]
            data[REPORT_KEY] = pack(report)
