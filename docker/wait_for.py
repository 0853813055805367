"""Waits until a server is ready: python wait_for.py URL [SECONDS]. Exit code 0 once it answers 200, 2 if it never does.

For load tests that are started together with their engine, which may load its model for many minutes.
"""

from __future__ import annotations

import sys
import time
import urllib.request

_PAUSE_S = 2.0


def main(url: str, seconds: float = 1800.0) -> int:
    end = time.monotonic() + seconds
    why = ""
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return 0
                why = f"HTTP {answer.status}"
        except (OSError, ValueError) as error:
            why = str(error)
        time.sleep(_PAUSE_S)
    print(f"wait_for: {url} was not ready within {seconds:g} s ({why})", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(float, sys.argv[2:3])))
