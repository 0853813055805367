"""What leader and workers say to each other, as plain structures that travel as msgpack."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from exporters.counted import Ended
from exporters.quality import WorkerHealth


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's part in a run: all it needs to make its share of the requests alone.

    `worker` is its name in records. Worker `slot` of `slots` takes requests slot, slot + slots, …; a `guest` came when
    the shares were dealt out already and has none, or requests that are nobody's. `spacing_s` lies between the first
    requests of two of its users, so that connects do not bunch. `sent_ns` is the leader's clock when it sent this.
    `rate_changes` are those made before it came, as `Pace` has them. `live`: somebody can look at the run as it goes.
    """

    run_id: str
    directory: str
    worker: str
    slot: int
    slots: int
    guest: bool
    url: str
    model: str
    seed: int
    salt: str
    options: dict[str, Any]
    workload: dict[str, Any]
    calibration: dict[str, Any]
    usage_per_chunk: bool
    longest: int | None
    spacing_s: float
    sent_ns: int
    live: bool
    rate_changes: tuple[tuple[float, float], ...] = ()


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's answer: ready, or `fault` says why it cannot take part.

    `asked_ns` is the assignment's `sent_ns`; `received_ns` and `sent_ns` are the worker's own clock when that came and
    when this left, 0 where it does not say.
    """

    run_id: str
    host: str = ""
    version: str = ""
    asked_ns: int = 0
    received_ns: int = 0
    sent_ns: int = 0
    python: str = ""
    clock: str = ""
    notes: tuple[str, ...] = ()
    clock_offset_s: float = 0.0
    """How far its wall clock is ahead of the leader's; entered by the leader."""
    fault: str | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """All are ready: offsets count from `start_ns` (epoch ns by the leader's clock).

    The receiver's own clock is `ahead_ns` ahead of that: 0 where no difference could be told from the network's delay.
    Every `report_s` seconds a report is due.
    """

    run_id: str
    start_ns: int
    report_s: float
    ahead_ns: int = 0


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Send nothing more that was due after `stop_ns` (epoch ns); what is in flight has `drain_s` to end."""

    run_id: str
    drain_s: float
    stop_ns: int | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has to tell since its last report; `number` counts its reports from 0.

    `lines` are the records, encoded, of what ended since then, and `counted` the same as counts by class, where the run
    is `live`; everything else is the state of the whole run so far. `bodies_sum` is the sum modulo
    2**256, in hex, of the hashes of all `bodies_count` requests sent, `schedule_sum` the same of the times they were
    due. `done`: its share is used up and nothing is in flight. `final`: nothing will follow.
    """

    run_id: str
    worker: str
    number: int
    lines: bytes
    counted: dict[str, Ended]
    health: WorkerHealth
    in_flight: int
    bodies_sum: str
    bodies_count: int
    schedule_sum: str
    done: bool
    final: bool


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """May the requests from `from_index` on be dealt out anew? `deals` are all of the run's, as `feed.Deal` has them,
    the proposed one last. Whoever agrees keeps those requests back until the decision."""

    run_id: str
    number: int
    from_index: int
    deals: list[tuple[int, int, int]]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's answer to a proposal; `taken` is the last index that it has handed out."""

    run_id: str
    number: int
    agreed: bool
    taken: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Whether all have agreed, so that the proposal holds."""

    run_id: str
    number: int
    accepted: bool


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """From `at_s` after the start on the fleet sends `rate` requests/s (a trace: that many of its seconds a second)."""

    run_id: str
    at_s: float
    rate: float


class Rhythm(msgspec.Struct, frozen=True, kw_only=True):
    """From now on a report is due every `report_s` seconds."""

    run_id: str
    report_s: float


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The report of this number has come: its sender is not given up, and may send on for a while."""

    run_id: str
    number: int


Message = Assignment | Introduction | Start | Stop | Report | Proposal | Reply | Decision | Pace | Rhythm | Seen
M = TypeVar("M", Assignment, Introduction, Start, Stop, Report, Proposal, Reply, Decision, Pace, Rhythm, Seen)


def pack(message: Message) -> bytes:
    return msgspec.msgpack.encode(message)


def unpack(data: bytes, kind: type[M]) -> M:
    """Raises `msgspec.DecodeError` where the other side is of another version."""
    return msgspec.msgpack.decode(data, type=kind)
