"""Waiting for what other processes bring about, however long a busy machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def eventually(condition: Callable[[], Any], what: str = "it", timeout_s: float = 60) -> Any:
    """The condition's value once it is truthy."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s} s: {what}")
