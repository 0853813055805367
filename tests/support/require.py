"""When a test may be skipped: never where TAILGATE_REQUIRE_ALL=1 says that everything it needs can be had."""

from __future__ import annotations

import os

import pytest


def need(condition: object, reason: str) -> None:
    """Skips the test where `condition` does not hold, and fails it instead where all are required."""
    if condition:
        return
    if os.environ.get("TAILGATE_REQUIRE_ALL") == "1":
        pytest.fail(f"required here, yet missing: {reason}")
    pytest.skip(reason)
