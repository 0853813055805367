"""How a leader reaches those who send: over Locust's messages to its workers. (In one process: `locustfiles.alone`.)

Reports ride on Locust's own worker reports, so that a run's records and Locust's rows arrive together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import gevent
import msgspec
from gevent.event import Event
from locust.env import Environment
from locust.runners import STATE_MISSING, MasterRunner

from locustfiles.dealing import Cut, Dealer
from locustfiles.messages import (
    Assignment,
    Decision,
    Introduction,
    Message,
    Pace,
    Proposal,
    Reply,
    Report,
    Rhythm,
    Seen,
    Start,
    Stop,
    pack,
    unpack,
)
from locustfiles.muster import ahead_ns, fault_of
from locustfiles.strain import Strain
from tailgate.exits import BadInput

logger = logging.getLogger(__name__)

ASSIGN, READY, START, STOP = "tailgate-assign", "tailgate-ready", "tailgate-start", "tailgate-stop"
PROPOSAL, REPLY, DECISION = "tailgate-proposal", "tailgate-reply", "tailgate-decision"
PACE, RHYTHM, SEEN = "tailgate-pace", "tailgate-rhythm", "tailgate-seen"
REPORT_KEY = "tailgate"

_PREPARING_S, _ASK_S = 120.0, 1.0
# Above the drain: cancelling, a last report and its way here.
_GRACE_S = 12.0
# Between two runs Locust's workers are strangers for a moment, of their own accord.
_STRANGER_S, _ASK_AGAIN_S = 3.0, 10.0
# Locust takes waiting reports one after the other; whoever looks at a page meanwhile gets a turn that often.
_BREATH_S = 0.05

MakeAssignment = Callable[[int, int, bool], Assignment]
TakeReport = Callable[[Report], None]


class Fleet(Protocol):
    """Those who send, seen from the leader."""

    @property
    def lost(self) -> dict[str, str]:
        """Workers that left without a last report, by name, and why one thinks so."""

    def enlist(self, make: MakeAssignment) -> dict[str, Introduction]:
        """Gives everyone a part (slot, slots, guest) and waits until all are ready. Raises `BadInput` if one is not."""

    def start(self, run_id: str, start_ns: int, cut: Cut | None) -> None:
        """Lets everyone send. With `cut`, requests are dealt anew when workers come or go."""

    def change_rate(self, run_id: str, at_s: float, rate: float) -> None:
        """Another rate for everyone, from `at_s` after the start on."""

    @property
    def redeals(self) -> list[tuple[int, int]]:
        """(from index, number of workers) of each time that requests were dealt anew in this run."""

    @property
    def strain(self) -> Strain | None:
        """What gathering this run's reports costs; None where who leads also sends, and measures itself as such."""

    def stop(self, run_id: str, drain_s: float, stop_ns: int) -> None:
        """Has everyone end, as of `stop_ns`, and waits for the last reports; not for those of a worker that is gone."""

    def hurry(self, run_id: str) -> None:
        """Has everyone give up what is still in flight."""

    def all_done(self) -> bool:
        """Whether nobody who is still there has anything left to send."""

    def dismiss(self) -> None:
        """Tells the workers to leave: there will be no run."""


class _Member:
    """One worker of the current run, as the leader knows it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.introduction: Introduction | None = None
        self.ahead_ns = 0
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
        self._dealer: Dealer | None = None
        self._strain: Strain | None = None
        self._breathed_s = 0.0
        self._strangers: dict[str, float] = {}
        runner.register_message(READY, self._on_ready)
        runner.register_message(REPLY, self._on_reply)
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
        self._members, self._start_ns, self._dealer = {}, None, None
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
            if fault := fault_of(member.name, member.introduction):
                raise BadInput(fault)
            ready[member.name] = member.introduction
        return ready

    def start(self, run_id: str, start_ns: int, cut: Cut | None) -> None:
        self._start_ns = start_ns
        self._strain = Strain(lambda report_s: self._change_rhythm(run_id, report_s))
        for client_id in self._members:
            self._start_one(client_id)
        if cut is not None:
            self._dealer = Dealer(run_id, list(self._members), cut, self._here, self._send_about_deal)

    def change_rate(self, run_id: str, at_s: float, rate: float) -> None:
        for client_id in self._members:
            self._send(PACE, Pace(run_id=run_id, at_s=at_s, rate=rate), client_id)

    @property
    def redeals(self) -> list[tuple[int, int]]:
        return self._dealer.redeals if self._dealer else []

    @property
    def strain(self) -> Strain | None:
        return self._strain

    def stop(self, run_id: str, drain_s: float, stop_ns: int) -> None:
        self._make = None
        if self._dealer is not None:
            self._dealer.close()
        if self._strain is not None:
            self._strain.end()
        self._tell_to_stop(run_id, drain_s, stop_ns)
        deadline = time.monotonic() + drain_s + _GRACE_S
        while time.monotonic() < deadline:
            if all(member.final or not self._present(key) for key, member in self._members.items()):
                return
            self._changed.wait(0.2)
            self._changed.clear()

    def hurry(self, run_id: str) -> None:
        self._tell_to_stop(run_id, 0.0)

    def all_done(self) -> bool:
        if self._dealer is not None and not self._dealer.settled:
            return False
        here = [member for key, member in self._members.items() if self._present(key) or member.final]
        return bool(here) and all(member.done or member.final for member in here)

    def dismiss(self) -> None:
        for client_id in list(self._runner.clients):
            self._runner.send_message("quit", client_id=client_id)
        gevent.sleep(0.3)

    def _start_one(self, client_id: str) -> None:
        assert self._start_ns is not None, "the run has begun"
        assert self._strain is not None, "made as it began"
        start = Start(
            run_id=self._run_id,
            start_ns=self._start_ns,
            ahead_ns=self._members[client_id].ahead_ns,
            report_s=self._strain.interval_s,
        )
        self._send(START, start, client_id)

    def _change_rhythm(self, run_id: str, report_s: float) -> None:
        for client_id in self._members:
            self._send(RHYTHM, Rhythm(run_id=run_id, report_s=report_s), client_id)

    def _tell_to_stop(self, run_id: str, drain_s: float, stop_ns: int | None = None) -> None:
        for client_id in self._members:
            self._send(STOP, Stop(run_id=run_id, drain_s=drain_s, stop_ns=stop_ns), client_id)

    def _assign(self, client_id: str, assignment: Assignment) -> None:
        self._run_id = assignment.run_id
        member = self._members[client_id] = _Member(assignment.worker)
        self._send(ASSIGN, assignment, client_id)
        gevent.spawn_later(_ASK_S, self._insist, client_id, member, assignment)

    def _insist(self, client_id: str, member: _Member, assignment: Assignment) -> None:
        """Asks until there is an answer: Locust connects a worker before its locustfile can listen, and discards what
        comes in between."""
        deadline = time.monotonic() + _PREPARING_S
        while member.introduction is None and self._members.get(client_id) is member and time.monotonic() < deadline:
            self._send(ASSIGN, msgspec.structs.replace(assignment, sent_ns=time.time_ns()), client_id)
            gevent.sleep(_ASK_S)

    def _present(self, client_id: str) -> bool:
        client = self._runner.clients.get(client_id)
        return client is not None and client.state != STATE_MISSING

    def _here(self) -> list[str]:
        """Who can be dealt requests: the workers that are there and ready."""
        return [
            client_id
            for client_id, member in self._members.items()
            if self._present(client_id) and member.introduction is not None and not member.introduction.fault
        ]

    def _send_about_deal(self, client_id: str, message: Proposal | Decision) -> None:
        self._send(PROPOSAL if isinstance(message, Proposal) else DECISION, message, client_id)

    def _send(self, kind: str, message: Message, client_id: str) -> None:
        self._runner.send_message(kind, {"message": pack(message)}, client_id)

    def _on_reply(self, environment: Environment, msg: Any, **_: Any) -> None:
        if self._dealer is not None:
            self._dealer.on_reply(msg.node_id, unpack(msg.data["message"], Reply))

    def _on_ready(self, environment: Environment, msg: Any, **_: Any) -> None:
        introduction = unpack(msg.data["message"], Introduction)
        member = self._members.get(msg.node_id)
        if member is None or introduction.run_id != self._run_id:
            return
        member.ahead_ns = ahead_ns(introduction, time.time_ns())
        member.introduction = msgspec.structs.replace(introduction, clock_offset_s=member.ahead_ns / 1e9)
        self._changed.set()
        if self._start_ns is None:
            return
        # It came in the middle of the run.
        if fault := fault_of(member.name, introduction):
            logger.error("sent away: %s", fault)
            del self._members[msg.node_id]
            self._runner.send_message("quit", client_id=msg.node_id)
        else:
            self._start_one(msg.node_id)

    def _on_connect(self, client_id: str, **_: Any) -> None:
        """A worker that comes during a run: it takes part in the next deal, or has requests that are nobody's."""
        if self._make is not None and self._start_ns is not None and client_id not in self._members:
            guest = self._make(len(self._members), self._slots, True)
            logger.warning("%s joins in the middle of the run", guest.worker)
            self._assign(client_id, guest)

    def _meet(self, client_id: str) -> None:
        """Has a worker that reports but is not known here begin anew: its master was started anew, or gave it up.

        Locust itself would discard what such a worker says until it gives up, a minute later.
        """
        now = time.monotonic()
        if client_id in self._runner.clients:
            self._strangers.pop(client_id, None)
        elif now >= self._strangers.setdefault(client_id, now + _STRANGER_S):
            self._strangers[client_id] = now + _ASK_AGAIN_S
            logger.warning("the worker %s is not known to this master: it is told to begin anew", client_id)
            self._send(STOP, Stop(run_id=self._run_id, drain_s=0.0), client_id)
            self._runner.send_message("stop", client_id=client_id)

    def _on_report(self, client_id: str, data: dict[str, Any], **_: Any) -> None:
        self._meet(client_id)
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
        if self._dealer is not None and self._dealer.includes(client_id):
            self._send(SEEN, Seen(run_id=report.run_id, number=report.number), client_id)
        self._take(report)
        self._changed.set()
        if time.monotonic() > self._breathed_s + _BREATH_S:
            gevent.sleep(0)
            self._breathed_s = time.monotonic()
