"""A finished request on Locust's table: POST for the whole of it, TTFT, ITL, TPOT and LAG for its parts.

`events.request` fires for POST, TTFT and TPOT, so that anyone's listener hears of them. A gap fires one only with
--itl-events, since that costs a chain of Python calls a token; without it gaps enter their row in bulk. In every event
`context["record"]` is the request's whole record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from locust.env import Environment

from exporters.record import RequestRecord
from locustfiles.client.stream import Outcome
from locustfiles.locust_stats import log_many


class RequestFailed(Exception):
    """How a failed request looks in Locust's failures table and to listeners: `kind: message`."""

    def __init__(self, kind: str, message: str | None) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}" if message else kind)

    def __repr__(self) -> str:
        return str(self)


class Rows:
    """Enters records into Locust's statistics. Failures count once, and their times enter no percentile."""

    def __init__(self, environment: Environment, url: str, itl_events: bool) -> None:
        self._environment = environment
        self._url = url
        self._itl_events = itl_events

    def enter(self, record: RequestRecord, outcome: Outcome) -> None:
        """A cancelled request enters no row: it neither succeeded nor failed, and its time is its age."""
        if record.outcome == "cancelled":
            return
        ok = record.outcome == "ok"
        size = outcome.reading.end if outcome.reading else 0
        fault = None if ok else RequestFailed(record.error or "unknown", record.error_message)
        e2e_ms = (record.end_ns - record.sent_ns) / 1e6
        self._fire("POST", record, e2e_ms if ok else None, size, fault)
        if record.scheduled_ns is not None:
            lag_ms = max(record.sent_ns - record.scheduled_ns, 0) / 1e6
            log_many(self._environment.stats, "LAG", record.request_class, np.array([lag_ms]))
        if not ok or record.first_ns is None or record.last_ns is None:
            return
        self._fire("TTFT", record, (record.first_ns - record.sent_ns) / 1e6)
        gaps_ms = outcome.gaps_ns / 1e6
        if self._itl_events:
            for gap_ms in gaps_ms.tolist():
                self._fire("ITL", record, gap_ms)
        else:
            log_many(self._environment.stats, "ITL", record.request_class, gaps_ms)
        if record.output_tokens is not None and record.output_tokens > 1:
            self._fire("TPOT", record, (record.last_ns - record.first_ns) / 1e6 / (record.output_tokens - 1))

    def _fire(
        self,
        kind: str,
        record: RequestRecord,
        time_ms: float | None,
        size: int = 0,
        fault: RequestFailed | None = None,
    ) -> None:
        context: dict[str, Any] = {"record": record}
        self._environment.events.request.fire(
            request_type=kind,
            name=record.request_class,
            response_time=time_ms,
            response_length=size,
            exception=fault,
            context=context,
            start_time=record.sent_ns / 1e9,
            url=self._url + record.endpoint,
            response=None,
        )
