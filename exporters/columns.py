"""Records as numpy columns, and each latency's values out of them: the one place where a metric is defined.

Definitions are those of the project's vocabulary: TTFT and E2E run from the send, their `_scheduled` twins from the
scheduled send; ITL is each gap between token events; TPOT is (last - first) / (output tokens - 1); a stall is the
longest gap of one request. Only requests that succeeded yield latencies. Send lag belongs to every request sent.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from exporters.quantiles import Floats
from exporters.record import RequestRecord

METRICS = (
    "ttft_s",
    "itl_s",
    "itl_token_s",
    "stall_s",
    "tpot_s",
    "e2e_s",
    "connect_s",
    "send_lag_s",
    "ttft_scheduled_s",
    "e2e_scheduled_s",
)
OF_GAPS = ("itl_s", "itl_token_s")
"""Those with many values a request."""
OUTCOMES = ("ok", "failed", "cancelled")
_FROM_RECORD = (
    "index",
    "scheduled_ns",
    "sent_ns",
    "first_ns",
    "last_ns",
    "end_ns",
    "connect_ns",
    "events",
    "coalesced",
    "prompt_tokens",
    "planned_prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "outcome",
    "class_code",
    "worker_code",
    "in_window",
    "counted_events",
)
RETRY, SHORT, OPENS, CLOSES = "retry", "short", "opens a conversation", "closes a conversation"
ABSENT = np.iinfo(np.int64).min
_GAPS_AT_ONCE = _STAMPS_AT_ONCE = 1 << 17

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass
class Columns:
    """n requests. Integer columns are int64 with `ABSENT` where a record had none.

    `gaps_ns` is flat, in request order; request i owns `gaps_ns[gap_starts[i]:gap_starts[i + 1]]` (n + 1 starts).
    `gap_tokens` (int32) runs parallel to `gaps_ns`, 0 where the server did not say; None where no request had it.
    `marked` holds the positions of the few requests that are a `RETRY`, were answered `SHORT`, bear a note, or are a
    conversation's first (`OPENS`) or its last, well answered (`CLOSES`).
    """

    index: Ints
    scheduled_ns: Ints
    sent_ns: Ints
    first_ns: Ints
    last_ns: Ints
    end_ns: Ints
    connect_ns: Ints
    events: Ints
    coalesced: Ints
    prompt_tokens: Ints
    planned_prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    outcome: Ints
    class_code: Ints
    worker_code: Ints
    in_window: Bools
    counted_events: Bools
    gaps_ns: Ints
    gap_starts: Ints
    gap_tokens: np.ndarray[Any, np.dtype[np.int32]] | None
    classes: list[str]
    workers: list[str]
    errors: list[str | None]
    clocks: set[str]
    marked: dict[str, list[int]] = field(default_factory=dict)

    @staticmethod
    def of(records: Iterable[RequestRecord]) -> Columns:
        """The columns of `records`, in their order; one pass, no record is kept."""
        stamps, table = array("q"), [array("q") for _ in _FROM_RECORD]
        gaps, tokens, starts = array("q"), array("i"), array("q", [0])
        classes: dict[str, int] = {}
        workers: dict[str, int] = {}
        errors: list[str | None] = []
        clocks: set[str] = set()
        marked: dict[str, list[int]] = {}
        for r in records:
            stamps.extend(
                (
                    r.index,
                    _or_absent(r.scheduled_ns),
                    r.sent_ns,
                    _or_absent(r.first_ns),
                    _or_absent(r.last_ns),
                    r.end_ns,
                    _or_absent(r.connect_ns),
                    r.events,
                    r.coalesced,
                    _or_absent(r.prompt_tokens),
                    _or_absent(r.planned_prompt_tokens),
                    _or_absent(
                        r.events if r.output_tokens is None and r.tokens_source == "events" else r.output_tokens
                    ),
                    _or_absent(r.cached_tokens),
                    OUTCOMES.index(r.outcome),
                    classes.setdefault(r.request_class, len(classes)),
                    workers.setdefault(r.worker, len(workers)),
                    r.in_window,
                    r.tokens_source == "events",
                )
            )
            gaps.extend(r.gaps_ns)
            if r.gap_tokens is not None and len(r.gap_tokens) == len(r.gaps_ns):
                # Filled up lazily: most servers never say, and then the column is not built at all.
                _pad_with_zeros(tokens, len(gaps) - len(r.gaps_ns))
                tokens.extend(r.gap_tokens)
            starts.append(len(gaps))
            for mark in _marks(r):
                marked.setdefault(mark, []).append(len(errors))
            errors.append(r.error)
            clocks.add(r.clock)
            if len(stamps) >= _STAMPS_AT_ONCE:
                _turn(stamps, table)
                stamps = array("q")
        _turn(stamps, table)
        if len(tokens):
            _pad_with_zeros(tokens, len(gaps))
        column: dict[str, Any] = {name: _int64(values) for name, values in zip(_FROM_RECORD, table, strict=True)}
        flags: dict[str, Any] = {name: column.pop(name) != 0 for name in ("in_window", "counted_events")}
        return Columns(
            **column,
            **flags,
            gaps_ns=_int64(gaps),
            gap_starts=_int64(starts),
            gap_tokens=np.frombuffer(tokens, dtype=np.int32) if len(tokens) else None,
            classes=list(classes),
            workers=list(workers),
            errors=errors,
            clocks=clocks,
            marked=marked,
        )

    def __len__(self) -> int:
        return int(self.index.size)

    @cached_property
    def ok(self) -> Bools:
        """Whether each request succeeded."""
        return self.outcome == OUTCOMES.index("ok")

    def count_marked(self, chosen: Bools) -> dict[str, int]:
        """How many of the chosen requests bear each mark; marks that none bears are left out."""
        counts = {mark: int(chosen[positions].sum()) for mark, positions in sorted(self.marked.items())}
        return {mark: count for mark, count in counts.items() if count}

    def values(self, metric: str, chosen: Bools) -> Floats:
        """The observations of `metric` (seconds) among the requests where `chosen` (length n) is true, as an array of
        the caller's own."""
        found = array("d")
        for values, _ in self.parts(metric, chosen):
            found.frombytes(values.tobytes())
        return np.frombuffer(found, dtype=np.float64) if found else np.empty(0)

    def values_in_parts(self, metric: str, chosen: Bools) -> Callable[[], Iterator[Floats]]:
        """A way to go through them, as often as one likes, without having them all in memory."""
        return lambda: (values for values, _ in self.parts(metric, chosen))

    def parts(self, metric: str, chosen: Bools) -> Iterator[tuple[Floats, Ints]]:
        """As `values`, a part after the other, with the position of the request each observation belongs to."""
        if metric in OF_GAPS:
            yield from self._gaps(metric, chosen & self.ok)
        else:
            per_request = self.per_request(metric)
            position = np.flatnonzero(chosen & ~np.isnan(per_request)).astype(np.int64)
            yield per_request[position], position

    def per_request(self, metric: str) -> Floats:
        """One value a request (seconds), NaN where it has none; for every metric but the gaps themselves."""
        if metric not in self._computed:
            self._computed[metric] = _PER_REQUEST[metric](self)
        return self._computed[metric]

    @cached_property
    def _computed(self) -> dict[str, Floats]:
        return {}

    def _gaps(self, metric: str, chosen: Bools) -> Iterator[tuple[Floats, Ints]]:
        """In parts, because all gaps at once are most of what a long run takes up, and each copy is as much again."""
        firsts = np.searchsorted(self.gap_starts, np.arange(0, self.gaps_ns.size, _GAPS_AT_ONCE))
        for first, end in pairwise([*np.unique(firsts).tolist(), len(self)]):
            if not chosen[first:end].any():
                continue
            owner = np.repeat(np.arange(first, end), np.diff(self.gap_starts[first : end + 1]))
            mine = chosen[owner]
            owner, part = owner[mine], slice(self.gap_starts[first], self.gap_starts[end])
            gaps = self.gaps_ns[part][mine]
            if metric == "itl_s":
                yield gaps * 1e-9, owner
            elif self.gap_tokens is not None:
                tokens = self.gap_tokens[part][mine]
                yield np.repeat(gaps / np.maximum(tokens, 1) * 1e-9, tokens), np.repeat(owner, tokens)

    def longest_gap_s(self) -> Floats:
        """Each request's longest gap, NaN where it has none."""
        longest = np.full(len(self), np.nan)
        has = np.diff(self.gap_starts) > 0
        if has.any():
            longest[has] = np.maximum.reduceat(self.gaps_ns, self.gap_starts[:-1][has]) * 1e-9
        return longest


def _marks(record: RequestRecord) -> tuple[str, ...]:
    if not (record.attempt or record.short_output or record.notes or record.turns > 1):
        return ()
    found = {
        RETRY: record.attempt > 0,
        SHORT: record.short_output,
        OPENS: record.turns > 1 and not record.turn and not record.attempt,
        CLOSES: record.turns > 1 and record.turn + 1 == record.turns and record.outcome == "ok",
    }
    return (*record.notes, *(mark for mark, holds in found.items() if holds))


def _or_absent(value: int | None) -> int:
    return ABSENT if value is None else value


def _turn(rows: array[int], columns: list[array[int]]) -> None:
    """Appends the rows' numbers to their columns; a few rows at a time, so that no second copy of all is ever there."""
    table = _int64(rows).reshape(-1, len(columns))
    for i, column in enumerate(columns):
        column.frombytes(table[:, i].tobytes())


def _pad_with_zeros(values: array[int], length: int) -> None:
    values.frombytes(bytes(values.itemsize * (length - len(values))))


def _int64(values: array[int]) -> Ints:
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.empty(0, dtype=np.int64)


def _between(start: str, end: str, *, ok_only: bool = True) -> Callable[[Columns], Floats]:
    def length(columns: Columns) -> Floats:
        a, b = getattr(columns, start), getattr(columns, end)
        known = (a != ABSENT) & (b != ABSENT)
        if ok_only:
            known &= columns.ok
        return np.where(known, (np.where(known, b, 0) - np.where(known, a, 0)) * 1e-9, np.nan)

    return length


def _tpot(columns: Columns) -> Floats:
    spread = _between("first_ns", "last_ns")(columns)
    tokens = columns.output_tokens
    return np.where(tokens > 1, spread / np.maximum(tokens - 1, 1), np.nan)


def _connect(columns: Columns) -> Floats:
    return np.where(columns.ok & (columns.connect_ns != ABSENT), columns.connect_ns * 1e-9, np.nan)


def _stall(columns: Columns) -> Floats:
    return np.where(columns.ok, columns.longest_gap_s(), np.nan)


_PER_REQUEST: dict[str, Callable[[Columns], Floats]] = {
    "ttft_s": _between("sent_ns", "first_ns"),
    "stall_s": _stall,
    "tpot_s": _tpot,
    "e2e_s": _between("sent_ns", "end_ns"),
    "connect_s": _connect,
    "send_lag_s": _between("scheduled_ns", "sent_ns", ok_only=False),
    "ttft_scheduled_s": _between("scheduled_ns", "first_ns"),
    "e2e_scheduled_s": _between("scheduled_ns", "end_ns"),
}
