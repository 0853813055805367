"""Many users while a server fails in every way: the client's counts are the server's own, to the last request."""

from __future__ import annotations

import json
from collections import Counter

import gevent
import pytest

from locustfiles.client.clock import ReadClock
from locustfiles.client.exchange import Timeouts
from locustfiles.client.reading import Asked
from locustfiles.client.stream import StreamingClient
from locustfiles.client.target import Target
from tests.support.catalogue import REPLIES
from tests.support.scripted_server import ScriptedServer

USERS, EACH = 200, 6
LIMITS = {"first": 2.5, "idle": 2.5, "total": 20.0}
ROUNDS = {
    "what servers say": (
        *("plain", "http_500_html", "http_429", "error_first", "error_mid"),
        *("malformed_json", "empty_200", "abort", "html_200", "redirect_302"),
    ),
    "how connections end": (
        *("plain", "reset_mid", "closed_mid", "closed_mid_chunk", "finished_but_cut"),
        *("closed_before_head", "reset_before_head", "garbage", "connection_close", "closed_in_head"),
    ),
    "what never ends": (
        *("plain", "role_early", "gzip", "crlf", "until_close"),
        *("no_first_byte", "no_first_token", "stall", "short_output", "done_then_reset"),
    ),
}


@pytest.mark.parametrize("names", ROUNDS.values(), ids=ROUNDS)
def test_counts_match_the_servers_to_the_last_request(names: tuple[str, ...]) -> None:
    """A tenth of the replies are of each kind."""
    counts: Counter[str | None] = Counter()
    with ScriptedServer("--mix", ",".join(names)) as server:
        clock = ReadClock("user", gevent.get_hub().loop)
        client = StreamingClient(Target.resolve(server.url), clock, timeouts=Timeouts(**LIMITS))

        def use() -> None:
            for _ in range(EACH):
                outcome = client.perform("/v1/chat/completions", json.dumps({"stream": True}).encode(), Asked())
                counts[outcome.error] += 1

        users = [gevent.spawn(use) for _ in range(USERS)]
        gevent.joinall(users, timeout=120)
        assert all(user.successful() for user in users)
        client.close()
        clock.close()
        served = server.truth()["served"]

    expected: Counter[str | None] = Counter()
    for name, count in served.items():
        expected[REPLIES[name].error] += count
    assert counts == expected
    assert counts.total() == USERS * EACH
