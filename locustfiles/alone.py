"""A fleet of one: leader and crew in one process, which reach each other by plain calls."""

from __future__ import annotations

import gevent

from locustfiles.crew import Crew
from locustfiles.dealing import Cut
from locustfiles.fleet import MakeAssignment, TakeReport
from locustfiles.messages import Introduction
from locustfiles.strain import REPORT_INTERVAL_S, Strain
from tailgate.exits import BadInput


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

    def start(self, run_id: str, start_ns: int, cut: Cut | None) -> None:
        self._crew.start(run_id, start_ns)
        gevent.spawn(self._report_regularly)

    def change_rate(self, run_id: str, at_s: float, rate: float) -> None:
        self._crew.change_rate(run_id, at_s, rate)

    @property
    def redeals(self) -> list[tuple[int, int]]:
        return []

    @property
    def strain(self) -> Strain | None:
        return None

    def stop(self, run_id: str, drain_s: float, stop_ns: int) -> None:
        self._crew.end(drain_s, stop_ns)
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
