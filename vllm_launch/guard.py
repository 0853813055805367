"""Kills what its parent started should the parent die without doing so itself, even by SIGKILL.

Run as a script with a pipe on standard input: `+PGID` takes a process group into its care, `-PGID` lets it go. When
the pipe closes, whatever is still in its care is ended. It imports nothing of ours, so that it starts in no time.
"""

import os
import signal
import sys
import time

_GRACE_S = 3.0


def main() -> None:
    """Listens until the pipe closes, then ends what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    if groups:
        _signal(groups, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while groups and time.monotonic() < deadline:
            time.sleep(0.05)
            groups = {group for group in groups if _signal({group}, 0)}
        _signal(groups, signal.SIGKILL)


def _signal(groups: set[int], number: int) -> bool:
    reached = False
    for group in groups:
        try:
            os.killpg(group, number)
            reached = True
        except OSError:
            pass
    return reached


if __name__ == "__main__":
    main()
