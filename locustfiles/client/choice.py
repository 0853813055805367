"""`--clock auto|wire|kernel|user`: the best clock that this machine allows, and one line about it."""

from __future__ import annotations

import gevent

from locustfiles.client.clock import CLOCKS, Clock, ReadClock, has_receive_stamps
from locustfiles.client.target import Target
from tailgate.exits import BadInput


def open_clock(name: str, target: Target) -> tuple[Clock, str]:
    """The clock called `name` (one of `CLOCKS`) for connections to `target`, and what a user should know about it.

    `auto` takes the best there is. Raises `BadInput` where a clock asked for by name cannot be had.
    """
    if name not in CLOCKS:
        raise BadInput(f"--clock: unknown clock '{name}'", f"known: {', '.join(CLOCKS)}")
    loop = gevent.get_hub().loop
    stamps = has_receive_stamps()
    if name == "kernel" and not stamps:
        raise BadInput("--clock kernel: this system does not stamp what it receives", "use --clock user, or Linux")
    if name == "user" or not stamps:
        return ReadClock("user", loop), "clock: user (the time of reading; late whenever this process is busy)"
    return ReadClock("kernel", loop), "clock: kernel (receive times)"
