"""Locust users that send a workload's requests and time their streams.

In closed loop each user sends its next request when its last has ended. In open loop the process itself sends, on
schedule, and users only stand for Locust's user count.
"""

from __future__ import annotations

from gevent.event import Event
from locust import User, constant, task
from locust.user.task import LOCUST_STATE_WAITING

from locustfiles import hooks


class StreamUser(User):
    """The base of the suite's users. Subclass it to add a `wait_time` between a user's requests."""

    abstract = True
    wait_time = constant(0)
    _killed = False

    def on_start(self) -> None:
        self._sender = hooks.crew(self.environment).sender()
        if not self._sender.open_loop:
            self._sender.take_turn()
            self._sender.active_users += 1
            self._active = True

    def on_stop(self) -> None:
        self._retire()

    def stop(self, force: bool = False) -> bool:
        """As Locust has it; who is killed while he waits begins no request any more."""
        # What wakes him may come before what kills him, and would have a request cut off in its first instant.
        self._killed = force or self._state == LOCUST_STATE_WAITING
        return bool(super().stop(force))

    @task
    def send(self) -> None:
        """One request from its send to its end."""
        if self._killed:
            Event().wait()
        ticket = None if self._sender.open_loop else self._sender.take()
        if ticket is None:
            self._idle()
        else:
            self._sender.perform(ticket)

    def _idle(self) -> None:
        """Waits until Locust ends this user, as a waiting one, so that it is not given time to finish; or until there
        is more to send, because another worker was lost."""
        self._retire()
        self._state = LOCUST_STATE_WAITING
        if self._sender.open_loop or self._sender.over.is_set():
            Event().wait()
        self._sender.more.wait()
        if not self._sender.over.is_set():
            self._sender.active_users += 1
            self._active = True

    def _retire(self) -> None:
        if getattr(self, "_active", False):
            self._active = False
            self._sender.active_users -= 1
