"""A user between Locust, which starts and stops it, and the sender, which has its requests."""

from __future__ import annotations

from typing import Any

import gevent
import pytest
from gevent.pool import Group
from locust.env import Environment

from locustfiles import hooks
from locustfiles.chat import ChatUser


class OneAfterTheOther:
    """A sender that has requests without end, and in the first one's last instant has its user stopped."""

    open_loop = False
    active_users = 0

    def __init__(self) -> None:
        self.user: Any = None
        self.begun = self.cut_off = 0

    def sender(self) -> OneAfterTheOther:
        return self

    def take_turn(self) -> None:
        pass

    def take(self) -> object:
        return object()

    def perform(self, ticket: object) -> None:
        self.begun += 1
        try:
            gevent.sleep(0.01)
        except gevent.GreenletExit:
            self.cut_off += 1
            raise
        gevent.spawn(self.user.stop)


def test_a_user_that_is_stopped_between_two_requests_begins_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = OneAfterTheOther()
    monkeypatch.setattr(hooks, "crew", lambda environment: sender)
    environment = Environment(user_classes=[ChatUser], host="http://127.0.0.1:1")
    sender.user = ChatUser(environment)
    group = Group()
    sender.user.start(group)
    assert group.join(timeout=5)
    assert (sender.begun, sender.cut_off, sender.active_users) == (1, 0, 0)
