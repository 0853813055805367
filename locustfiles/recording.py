"""One worker's records: an outcome becomes a line of its journal, a part of its next report, and rows of Locust's."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from exporters.columns import Columns
from exporters.counted import Ended, count_ended
from exporters.facts import Facts
from exporters.quality import WorkerHealth
from exporters.record import Outcome as Kind
from exporters.record import RequestRecord
from exporters.run_store import AppendedFile, Journal
from locustfiles.client.errors import redacted
from locustfiles.client.stream import Outcome
from locustfiles.rows import Rows
from workloads import PlannedRequest

OUTPUTS = "outputs"


class Recorder:
    """Counts, keeps and passes on what became of this worker's requests: sent = ok + failed + cancelled + in flight.

    `window_start_ns` is the end of the warm-up; a request counts if it was sent (open loop: due) after it. Both are by
    this machine's clock; what a record holds is by the leader's, which that is `ahead_ns` ahead of. With `live`, what
    is known of the run, records are counted too, for whoever looks at the run while it goes.
    """

    def __init__(
        self, worker: str, run_id: str, directory: Path, rows: Rows, keep_outputs: bool, live: Facts | None = None
    ) -> None:
        self.window_start_ns = 0
        self.ahead_ns = 0
        self.sent = 0
        self.bodies_sum = 0
        self.bodies_count = 0
        self.schedule_sum = 0
        self.ended: Counter[Kind] = Counter()
        self._worker = worker
        self._rows = rows
        self._journal = Journal(directory, worker, run_id)
        self._sequence = 0
        self._live = live
        self._fresh: list[RequestRecord] = []
        self._fresh_lines: list[bytes] = []
        self._outputs = None
        if keep_outputs:
            (directory / OUTPUTS).mkdir(parents=True, exist_ok=True)
            self._outputs = AppendedFile(directory / OUTPUTS / f"{worker}.jsonl")

    def leaves(self, digest: int | None, due_digest: int = 0) -> None:
        """A request is about to be handed to the kernel; `digest` None for one that is sent again."""
        self.sent += 1
        if digest is not None:
            self.bodies_sum = (self.bodies_sum + digest) % 2**256
            self.schedule_sum = (self.schedule_sum + due_digest) % 2**256
            self.bodies_count += 1

    def ends(self, planned: PlannedRequest, outcome: Outcome, scheduled_ns: int | None, attempt: int) -> None:
        """A request that left has ended, in whatever way."""
        record = self._record(planned, outcome, scheduled_ns, attempt)
        self.ended[record.outcome] += 1
        self._fresh_lines.append(self._journal.append(record))
        if self._live is not None:
            self._fresh.append(record)
        if self._outputs is not None and outcome.reading is not None and outcome.reading.text is not None:
            text = redacted(outcome.reading.text)
            line = {"index": planned.index, "turn": planned.turn, "attempt": attempt, "text": text}
            self._outputs.write(msgspec.json.encode(line) + b"\n")
        self._rows.enter(record, outcome)

    def take_fresh(self) -> tuple[bytes, dict[str, Ended]]:
        """The records since this was last called: their lines, and their counts where those are wanted."""
        lines, self._fresh_lines = self._fresh_lines, []
        fresh, self._fresh = self._fresh, []
        counted = count_ended(Columns.of(fresh), self._live) if self._live is not None and fresh else {}
        return b"".join(lines), counted

    def add_counts(self, health: WorkerHealth) -> None:
        """Puts the counts of the whole run so far into a worker's self-measurement."""
        health.sent = self.sent
        health.ok, health.failed, health.cancelled = (self.ended[kind] for kind in ("ok", "failed", "cancelled"))

    def close(self) -> None:
        self._journal.close()
        if self._outputs is not None:
            self._outputs.close()

    def _record(
        self, planned: PlannedRequest, outcome: Outcome, scheduled_ns: int | None, attempt: int
    ) -> RequestRecord:
        reading = outcome.reading
        arrivals = outcome.arrivals_ns
        counts = reading.token_counts if reading else None
        ahead = self.ahead_ns
        end_ns = time.time_ns() if outcome.cancelled else outcome.end_ns
        sequence, self._sequence = self._sequence, self._sequence + 1
        return RequestRecord(
            index=planned.index,
            worker=self._worker,
            request_class=planned.request_class,
            endpoint=planned.endpoint,
            sent_ns=outcome.sent_ns - ahead,
            # A cancelled one ends now: its time is its age.
            end_ns=end_ns - ahead,
            outcome="cancelled" if outcome.cancelled else "ok" if outcome.ok else "failed",
            scheduled_ns=scheduled_ns - ahead if scheduled_ns is not None else None,
            first_ns=outcome.first_ns - ahead if outcome.first_ns is not None else None,
            last_ns=int(arrivals[-1]) - ahead if len(arrivals) else None,
            gaps_ns=outcome.gaps_ns.tolist(),
            gap_tokens=np.diff(counts).tolist() if counts is not None and len(counts) == len(arrivals) else None,
            events=len(arrivals),
            prompt_tokens=reading.prompt_tokens if reading else None,
            output_tokens=reading.output_tokens if reading else None,
            tokens_source=reading.tokens_source if reading else "none",
            cached_tokens=reading.cached_tokens if reading else None,
            asked_tokens=planned.output_tokens,
            planned_prompt_tokens=planned.prompt_tokens,
            finish_reason=redacted(reading.finish_reason) if reading and reading.finish_reason else None,
            http_status=reading.http_status if reading else None,
            error=outcome.error,
            error_message=outcome.error_message,
            connect_ns=outcome.connect_ns,
            in_window=(scheduled_ns or outcome.sent_ns) >= self.window_start_ns,
            coalesced=outcome.late_events,
            attempt=attempt,
            turn=planned.turn,
            turns=planned.turns,
            retry_after_s=reading.retry_after_s if reading else None,
            short_output=reading is not None and reading.short_output and not outcome.cancelled,
            notes=reading.notes if reading else (),
            clock=outcome.clock,
            sequence=sequence,
        )


def crashed(clock: str, fault: BaseException) -> Outcome:
    """The outcome of a request that this program, not the server, failed: counted all the same."""
    now = time.time_ns()
    return Outcome(
        sent_ns=now,
        end_ns=now,
        arrivals_ns=np.empty(0, np.int64),
        reading=None,
        connect_ns=None,
        error="internal",
        error_message=type(fault).__name__,
        late_events=0,
        clock=clock,
    )
