"""The catalogue over real sockets: read right, and every token event timed within 15 ms of the server's own write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import gevent.pool
import pytest

from locustfiles.client.choice import open_clock
from locustfiles.client.clock import has_receive_stamps
from locustfiles.client.exchange import Timeouts
from locustfiles.client.stream import Outcome, StreamingClient
from locustfiles.client.target import Target
from tests.support.catalogue import REPLIES
from tests.support.replies import Send
from tests.support.scripted_server import ScriptedServer

TOLERANCE_NS = 15_000_000


@dataclass(frozen=True)
class Round:
    """One run through the catalogue: what the client made of it, and when the server wrote."""

    outcomes: dict[str, Outcome]
    writes: dict[str, list[int]]


@pytest.fixture(scope="module")
def played() -> Iterator[Round]:
    with ScriptedServer() as server:
        target = Target.resolve(server.url)
        clock, _ = open_clock("kernel" if has_receive_stamps() else "user", target)
        outcomes: dict[str, Outcome] = {}

        def play(name: str) -> None:
            reply = REPLIES[name]
            client = StreamingClient(target, clock, timeouts=Timeouts(**{"total": 20.0, **reply.limits}))
            body = json.dumps({"reply": name, "tag": name, "stream": reply.asked.stream}).encode()
            outcomes[name] = client.perform(reply.asked.endpoint, body, reply.asked)
            client.close()

        # Few at a time, so that this process keeps up: what is tested is reading, not load.
        pool = gevent.pool.Pool(8)
        pool.map(play, REPLIES)
        writes = server.truth()["writes"]
        clock.close()
        yield Round(outcomes, writes)


@pytest.mark.parametrize("name", REPLIES)
def test_reply_is_read_and_timed_right(played: Round, name: str) -> None:
    reply, outcome = REPLIES[name], played.outcomes[name]
    assert outcome.reading is not None
    reply.check(outcome.reading)
    assert (outcome.error, outcome.error_message) == (outcome.reading.error, outcome.reading.error_message)
    assert outcome.ok == (reply.error is None)
    assert outcome.connect_ns is not None
    assert len(outcome.arrivals_ns) == outcome.reading.events

    written = list(accumulate(len(step.data) for step in reply.steps if isinstance(step, Send)))
    for end, arrived in zip(outcome.reading.token_ends, outcome.arrivals_ns.tolist(), strict=True):
        if end <= (written[-1] if written else 0):
            write = next(i for i, total in enumerate(written) if total >= end)
            late = arrived - played.writes[name][write]
            assert -1_000_000 < late < TOLERANCE_NS, f"token event at {end} timed {late / 1e6:.1f} ms after its write"


def test_tokens_of_an_endless_stream_are_kept_and_timed(played: Round) -> None:
    outcome, writes = played.outcomes["endless"], played.writes["endless"][1:]
    assert outcome.reading is not None
    assert outcome.error == "timeout_total"
    assert outcome.reading.events >= 10
    late = outcome.arrivals_ns - writes[: outcome.reading.events]
    assert abs(late).max() < TOLERANCE_NS


def test_role_chunk_is_not_the_first_token(played: Round) -> None:
    outcome = played.outcomes["role_early"]
    assert outcome.first_ns is not None
    role, first = played.writes["role_early"][1:3]
    assert first - role > 50_000_000
    assert abs((outcome.first_ns - outcome.sent_ns) - (first - outcome.sent_ns)) < TOLERANCE_NS


def test_every_kind_of_the_taxonomy_occurs() -> None:
    from locustfiles.client.errors import KINDS

    connection_kinds = {"connect", "tls", "timeout_connect"}
    known = {kind for kind in KINDS if not kind.startswith("http_")} - connection_kinds
    assert known == {r.error for r in REPLIES.values() if r.error and not r.error.startswith("http_")}
    assert {"http_302", "http_404", "http_429", "http_500", "http_503"} <= {r.error for r in REPLIES.values()}
