"""One paced server and one small workload for all tests of the users."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Importing Locust would patch the sockets and threads of every other test in this process. The variable must not stay:
# a Locust that a test starts would inherit it, run unpatched, and never hear of its workers.
os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
import locust  # noqa: F401

del os.environ["LOCUST_SKIP_MONKEY_PATCH"]

from tests.support.locust_runs import SMALL
from tests.support.openai_server import Running, serve


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serve() as running:
        yield running


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workload of 10 and 30 tokens an answer."""
    path = tmp_path_factory.mktemp("workloads") / "small.yaml"
    path.write_text(SMALL)
    return path
