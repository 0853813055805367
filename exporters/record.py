"""One request as it was measured: a line of `requests.jsonl`, and how such lines are written and read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

Outcome = Literal["ok", "failed", "cancelled"]


class RequestRecord(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One request, from its send to its end. Stamps are CLOCK_REALTIME epoch ns; gaps and `connect_ns` are lengths.

    `gaps_ns` holds the times between consecutive token events, in order: `events - 1` of them once an event came.
    `gap_tokens` holds, for each gap, the tokens that came with the event that ended it (continuous usage), if known.
    `short_output`: a good answer of fewer tokens than the request demanded (min_tokens, ignore_eos). `notes` are the
    reply's oddities that changed no outcome. `attempt` is 0 for the first sending, 1 for the first retry.
    `turn` counts the `turns` of a conversation from 0; all of one have its first request's index.
    `sequence` numbers the records of one worker, so that a record seen twice (journal and report) counts once.
    """

    index: int
    worker: str
    request_class: str
    endpoint: str
    sent_ns: int
    end_ns: int
    outcome: Outcome
    scheduled_ns: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None
    gaps_ns: list[int] = []
    gap_tokens: list[int] | None = None
    events: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_source: str = "usage"
    cached_tokens: int | None = None
    asked_tokens: int | None = None
    planned_prompt_tokens: int | None = None
    finish_reason: str | None = None
    http_status: int | None = None
    error: str | None = None
    error_message: str | None = None
    connect_ns: int | None = None
    in_window: bool = True
    coalesced: int = 0
    attempt: int = 0
    turn: int = 0
    turns: int = 1
    retry_after_s: float | None = None
    short_output: bool = False
    notes: tuple[str, ...] = ()
    clock: str = "user"
    sequence: int | None = None

    @property
    def identity(self) -> tuple[str, int, int, int]:
        """The same for two copies of one record, and for no other record of the run."""
        if self.sequence is not None:
            return (self.worker, self.sequence, -1, -1)
        return (self.worker, self.index, self.attempt, self.sent_ns)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(RequestRecord)


def encode_record(record: RequestRecord) -> bytes:
    """The record as one line of JSON, newline included."""
    return _ENCODER.encode(record) + b"\n"


def decode_record(line: bytes) -> RequestRecord:
    """The record in one line. Raises `msgspec.DecodeError` (torn or foreign line)."""
    return _DECODER.decode(line)


def decode_records(path: Path, unreadable: list[int] | None = None) -> Iterator[RequestRecord]:
    """Every record of a file in order; numbers of lines that cannot be read (a torn last line) go to `unreadable`."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield _DECODER.decode(line)
            except msgspec.DecodeError:
                if unreadable is not None and line.strip():
                    unreadable.append(number)


def encode_records(records: Iterable[RequestRecord]) -> bytes:
    """Many records as lines of JSON."""
    return b"".join(encode_record(record) for record in records)
