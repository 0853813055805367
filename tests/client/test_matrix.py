"""The catalogue over real sockets: read right, and every token event timed within 15 ms of the server's own write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import gevent.pool
import numpy as np
import pytest

from locustfiles.client.choice import open_clock
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

    def lateness_ns(self, name: str) -> list[int]:
        """For each token event, by how much its time is later than the server's write of its last byte."""
        outcome = self.outcomes[name]
        sizes = [len(step.data) for step in REPLIES[name].steps if isinstance(step, Send)]
        ends = np.cumsum(sizes)
        assert outcome.reading is not None
        # An endless stream's writes have no sizes here: an event each.
        which = [int(np.searchsorted(ends, end)) for end in outcome.reading.token_ends]
        if name == "endless":
            which = [number + 1 for number in range(len(which))]
        return [int(t) - self.writes[name][w] for t, w in zip(outcome.arrivals_ns, which, strict=True)]

    def on_time(self, name: str) -> bool:
        return all(-1_000_000 < late < TOLERANCE_NS for late in self.lateness_ns(name))


@pytest.fixture(scope="module")
def played() -> Iterator[Round]:
    with ScriptedServer() as server:
        target = Target.resolve(server.url)
        clock, _ = open_clock("auto", target)
        outcomes: dict[str, Outcome] = {}

        def play(name: str) -> None:
            reply = REPLIES[name]
            client = StreamingClient(target, clock, timeouts=Timeouts(**{"total": 20.0, **reply.limits}))
            body = json.dumps({"reply": name, "tag": name, "stream": reply.asked.stream}).encode()
            outcomes[name] = client.perform(reply.asked.endpoint, body, reply.asked)
            client.close()

        # Few at a time, so that this process keeps up: what is tested is reading, not load.
        gevent.pool.Pool(8).map(play, REPLIES)
        found = Round(outcomes, server.truth()["writes"])
        # The server may be set aside between noting a time and writing. Not three times running, though.
        for _ in range(2):
            for name in [name for name in REPLIES if not found.on_time(name)]:
                play(name)
            found.writes.update(server.truth()["writes"])
        clock.close()
        yield found


@pytest.mark.parametrize("name", REPLIES)
def test_reply_is_read_and_timed_right(played: Round, name: str) -> None:
    reply, outcome = REPLIES[name], played.outcomes[name]
    assert outcome.reading is not None
    reply.check(outcome.reading)
    assert (outcome.error, outcome.error_message) == (outcome.reading.error, outcome.reading.error_message)
    assert outcome.ok == (reply.error is None)
    assert outcome.connect_ns is not None
    assert len(outcome.arrivals_ns) == outcome.reading.events

    assert played.on_time(name), f"ms after the server's writes: {[ns / 1e6 for ns in played.lateness_ns(name)]}"


def test_tokens_of_an_endless_stream_are_kept(played: Round) -> None:
    outcome = played.outcomes["endless"]
    assert outcome.error == "timeout_total"
    assert len(outcome.arrivals_ns) >= 5


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
