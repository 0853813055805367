"""A stand-in for vLLM, and a mark by which a test finds the processes it has left behind."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pytest

STUB = Path(__file__).with_name("stub_engine.py")


@pytest.fixture(scope="session")
def stub_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An "interpreter that has vLLM", for --python."""
    path = tmp_path_factory.mktemp("stub") / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STUB}" "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def mark() -> str:
    """A value for TAILGATE_TEST_MARK that no other test uses."""
    return uuid.uuid4().hex
