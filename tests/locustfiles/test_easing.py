"""Users at a server that is down wait longer and longer; a refusal now and then holds nobody back."""

from __future__ import annotations

import logging

import pytest

from locustfiles.easing import BORNE, LONGEST_PAUSE_S, Easing


def test_a_refusal_among_connections_holds_nobody_back() -> None:
    easing = Easing()
    for _ in range(100):
        assert not any(easing.refused(8) for _ in range(BORNE - 1))
        easing.connected()


@pytest.mark.parametrize("users", [1, 500])
def test_a_server_that_is_down_is_asked_ever_more_rarely(users: int, caplog: pytest.LogCaptureFixture) -> None:
    easing = Easing()
    with caplog.at_level(logging.WARNING):
        pauses = [easing.refused(users) for _ in range(10 * max(users, BORNE))]
    assert pauses == sorted(pauses)
    assert pauses[max(users, BORNE) - 2] == 0
    assert pauses[-1] == LONGEST_PAUSE_S
    assert len(caplog.records) == 1


def test_after_the_first_connection_nobody_waits(caplog: pytest.LogCaptureFixture) -> None:
    easing = Easing()
    assert [easing.refused(1) for _ in range(3 * BORNE)][-1] > 0
    easing.connected()
    assert easing.refused(1) == 0
    assert "takes connections again" in caplog.text
