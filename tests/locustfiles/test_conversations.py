"""Conversations and replays as they are really sent, against the embedded engine, whose prefix cache is the witness."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporters.record import RequestRecord
from tests.support.locust_runs import ROOT, Ended, end, headless, run, start

BLOCK = 16

WORKLOAD = """
name: talks
classes:
  talk:
    input-tokens: {distribution: uniform, min: 100, max: 200}
    output-tokens: {distribution: uniform, min: 30, max: 60}
    turns:
      count: {distribution: uniform, min: 2, max: 4}
      input-tokens: {distribution: uniform, min: 20, max: 60}
      think-time: {distribution: uniform, min: 0.1, max: 0.3}
"""


class Engine:
    """An embedded engine, served as `tiny`, ten times as fast as its GPU."""

    def __init__(self) -> None:
        flags = ("served-model-name=tiny", "max-model-len=4096", "enable-prompt-tokens-details=true")
        options = [option for flag in flags for option in ("--flag", flag)]
        command = [sys.executable, "-m", "vllm_launch.simulated", "--port", "0", "--slowdown", "0.1", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        line = next(line for line in self.process.stdout if line.startswith("Ready on"))
        self.url = line.split()[-1]

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as reply:
            page = reply.read().decode()
        return sum(map(float, re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    running = Engine()
    yield running
    running.process.kill()
    running.process.wait()


@pytest.fixture(scope="module")
def talks(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, float]:
    """A run of 24 conversations on two workers, and the prompt tokens that the engine found in its cache meanwhile."""
    base = tmp_path_factory.mktemp("talks")
    (base / "talks.yaml").write_text(WORKLOAD)
    before = engine.metric("vllm:prefix_cache_hits_total")
    options = ("--workload", base / "talks.yaml", "--arrival", "constant", "--request-rate", 12, "--num-requests", 24)
    ended = run(engine.url, base / "run", *options, "--seed", 5, "--save-outputs", "--processes", 2, "--drain", 20)
    return ended, engine.metric("vllm:prefix_cache_hits_total") - before


def conversations(records: list[RequestRecord]) -> list[list[RequestRecord]]:
    ordered = sorted(records, key=lambda record: (record.index, record.turn))
    return [list(found) for _, found in itertools.groupby(ordered, key=lambda record: record.index)]


def test_turns_follow_each_other_on_one_worker_after_their_users_thought(talks: tuple[Ended, float]) -> None:
    ended, _ = talks
    found = conversations(ended.records)
    assert len(found) == 24
    assert {len(turns) for turns in found} <= {2, 3, 4}
    assert len({len(turns) for turns in found}) > 1
    assert len({turn.worker for turns in found for turn in turns}) == 2
    for turns in found:
        assert [turn.turn for turn in turns] == list(range(len(turns)))
        assert all(turn.outcome == "ok" for turn in turns)
        assert len({turn.worker for turn in turns}) == 1
        for earlier, later in itertools.pairwise(turns):
            assert later.sent_ns - earlier.end_ns >= 0.1e9
            assert later.scheduled_ns is None
    assert ended.meta["sent"]["count"] == len(ended.records)
    assert ended.summary["conversations"] == {"begun": 24, "whole": 24}


def test_every_turn_carries_the_true_answers_for_the_engine_finds_them_in_its_cache(talks: tuple[Ended, float]) -> None:
    ended, hits = talks
    expected = 0
    for turns in conversations(ended.records):
        for earlier, later in itertools.pairwise(turns):
            assert earlier.prompt_tokens is not None
            assert earlier.output_tokens is not None
            assert later.prompt_tokens is not None
            known = earlier.prompt_tokens + earlier.output_tokens
            assert known + 20 < later.prompt_tokens
            # The last token of an answer was never computed, for nothing came after it.
            expected += (known - 1) // BLOCK * BLOCK
    assert expected > 5000
    assert hits == pytest.approx(expected, abs=BLOCK * 24)


def test_a_run_is_replayed_with_its_own_bodies_at_its_own_times(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(
        "name: w\nclasses:\n  a: {input-tokens: {distribution: uniform, min: 20, max: 80}, output-tokens: 5}\n"
        "  b: {input-tokens: 50, output-tokens: 9, language: zh}\n"
    )
    first = run(
        engine.url, tmp_path / "first", "--workload", tmp_path / "w.yaml",
        "--arrival", "poisson", "--request-rate", 40, "--num-requests", 80, "--salt", "fresh",
    )  # fmt: skip
    again = run(engine.url, tmp_path / "again", "--workload", tmp_path / "first", "--processes", 2)
    assert again.meta["sent"]["bodies_sum"] == first.meta["sent"]["bodies_sum"]
    assert again.meta["sent"]["count"] == 80
    times = []
    for ended in (first, again):
        records = sorted(ended.records, key=lambda record: record.scheduled_ns or 0)
        assert all(record.scheduled_ns for record in records)
        times.append([((record.scheduled_ns or 0) - (records[0].scheduled_ns or 0)) / 1e9 for record in records])
        assert {record.request_class for record in records} == {"a", "b"}
    assert times[1] == pytest.approx(times[0], abs=1e-6)
    assert any("replays 80 requests of first" in note for note in again.meta["notes"])
    assert again.summary["prompt_lengths"]["as_designed"] == again.summary["prompt_lengths"]["compared"] > 40


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty; give a file in the azure format"),
        (b"\x00\x01\xff" * 40, "1: not text; give a file in the azure format"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "2: TIMESTAMP: 'yesterday' is no date and time"),
    ],
)
def test_a_broken_trace_is_one_line_before_anything_starts(
    engine: Engine, tmp_path: Path, content: bytes, problem: str
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(content)
    ended = end(
        start(*headless(engine.url, tmp_path / "run", "--workload", "azure-code", "--trace", trace)), tmp_path / "run"
    )
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert ended.err.startswith(f"locust: {trace}:")
    assert problem in ended.err
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_is_not_there_is_one_line_too(engine: Engine, tmp_path: Path) -> None:
    ended = run(engine.url, tmp_path / "run", "--tokenizer", "/none", "--workload", "chat-short")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert ended.err.startswith("locust: --tokenizer: /none is not a file")
