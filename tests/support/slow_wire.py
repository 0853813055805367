"""A wire between two network namespaces that delays and loses packets, for kernels without `tc netem`.

python slow_wire.py NEAR DEVICE FAR DEVICE DELAY_S LOSS: a TUN device in each namespace; whole IP packets pass from one
to the other in both directions. Those from FAR to NEAR wait DELAY_S each, in order, and the share LOSS of them is
dropped (as `tc qdisc add dev … root netem delay … loss …` at FAR would do). Prints "ready" once both devices are there.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_PACKET = 65535


def open_tun(namespace: str, device: str) -> int:
    """A TUN device made in that namespace; this process stays in it."""
    with Path(f"/var/run/netns/{namespace}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
    return tun


def main(near_name: str, near_device: str, far_name: str, far_device: str, delay_s: float, loss: float) -> None:
    near, far = open_tun(near_name, near_device), open_tun(far_name, far_device)
    print("ready", flush=True)
    chance = random.Random(1)
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        patience = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        readable, _, _ = select.select([near, far], [], [], patience)
        if near in readable:
            _pass(far, os.read(near, _PACKET))
        if far in readable:
            packet = os.read(far, _PACKET)
            if chance.random() >= loss:
                waiting.append((time.monotonic() + delay_s, packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _pass(near, waiting.popleft()[1])


def _pass(device: int, packet: bytes) -> None:
    try:
        os.write(device, packet)
    except OSError:
        # The device is not up yet, or its queue is full: a packet lost, as on any wire.
        return


if __name__ == "__main__":
    main(*sys.argv[1:5], *map(float, sys.argv[5:7]))  # type: ignore[arg-type]
