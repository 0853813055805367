"""Ends what its parent started should the parent die without doing so itself, even by SIGKILL.

Run as a script with a pipe on standard input. `+PGID AFTER` takes a process group into its care, `-PGID` lets it go;
AFTER is JSON: `argv` to run and `folder` to remove once the group is ended. When the pipe closes, whatever is still in
its care is ended. It imports nothing of ours, so that it starts in no time.
"""

import contextlib
import os
import signal
import sys
import time

_GRACE_S = 3.0
_AFTER_S = 60.0


def main() -> None:
    """Listens until the pipe closes, then ends what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, str] = {}
    for line in sys.stdin:
        group, _, after = line[1:].partition(" ")
        if line[0] == "+":
            groups[int(group)] = after
        else:
            groups.pop(int(group), None)
    if groups:
        _end(set(groups))
        for after in groups.values():
            _clean_up(after)


def _end(groups: set[int]) -> None:
    _signal(groups, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while groups and time.monotonic() < deadline:
        time.sleep(0.05)
        groups = {group for group in groups if _signal({group}, 0)}
    _signal(groups, signal.SIGKILL)


def _clean_up(after: str) -> None:
    import json
    import shutil
    import subprocess

    wanted = json.loads(after)
    if wanted.get("argv"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                wanted["argv"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_AFTER_S, check=False
            )
    if wanted.get("folder"):
        shutil.rmtree(wanted["folder"], ignore_errors=True)


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
