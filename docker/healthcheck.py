"""The image's health check, of whichever part runs in it: exit code 0 where it is well, 1 where it is not.

What listens (master, web UI, exporter, engine) must take connections; a worker, which listens on nothing, must hold one
to its master. Only the container's own network is looked at.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

_LISTENING, _ESTABLISHED = "0A", "01"
_TIMEOUT_S = 3.0


def main() -> int:
    states = [state for table in ("tcp", "tcp6") for state in _sockets(Path(f"/proc/net/{table}"))]
    ports = sorted({port for port, state in states if state == _LISTENING})
    if not ports:
        well = any(state == _ESTABLISHED for _, state in states)
        print("connected" if well else "listens on nothing and is connected to nobody")
        return 0 if well else 1
    for port in ports:
        try:
            socket.create_connection(("127.0.0.1", port), _TIMEOUT_S).close()
        except OSError as error:
            print(f"port {port} takes no connection: {error}")
            return 1
    print(f"takes connections on {', '.join(map(str, ports))}")
    return 0


def _sockets(table: Path) -> list[tuple[int, str]]:
    """(local port, state) of each socket in /proc/net/tcp; Docker's own name server at 127.0.0.11 left out."""
    if not table.exists():
        return []
    found = []
    for line in table.read_text().splitlines()[1:]:
        _, local, _, state = line.split()[:4]
        address, port = local.rsplit(":", 1)
        if address != "0B00007F":
            found.append((int(port, 16), state))
    return found


if __name__ == "__main__":
    sys.exit(main())
