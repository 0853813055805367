"""What a server that is asked for too much does to the figures: open loop shows its queue, closed loop hides it.

And what its prefix cache does to them where a run repeats an earlier one's prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.embedded_engine import embedded_engine
from tests.support.locust_runs import Ended, run

WORKLOAD = """
name: even
classes:
  one: {input-tokens: 256, output-tokens: 12}
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """Serves one request at a time."""
    with embedded_engine("max-num-seqs=1", "max-model-len=4096") as url:
        yield url


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workloads") / "even.yaml"
    path.write_text(WORKLOAD)
    return path


@pytest.fixture(scope="module")
def closed(engine: str, even: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    directory = tmp_path_factory.mktemp("runs") / "closed"
    return run(engine, directory, "--workload", even, "-u", 2, "-r", 10, "--num-requests", 40, "--seed", 3)


def slope(ended: Ended, metric: str) -> float:
    """By how many seconds a second the time from `metric` to the first token grows."""
    records = [record for record in ended.records if record.first_ns is not None]
    begun = np.array([(r.scheduled_ns if metric == "scheduled" else r.sent_ns) or 0 for r in records], float) / 1e9
    first = np.array([r.first_ns or 0 for r in records], float) / 1e9
    return float(np.polyfit(begun - begun.min(), first - begun, 1)[0])


def test_open_loop_shows_the_queue_that_closed_loop_hides(
    closed: Ended, engine: str, even: Path, tmp_path: Path
) -> None:
    records = sorted(closed.records, key=lambda record: record.end_ns)
    served_per_s = (len(records) - 1) / ((records[-1].end_ns - records[0].end_ns) / 1e9)
    load = 2.0
    options = ("--workload", even, "--arrival", "constant", "--request-rate", load * served_per_s, "--seed", 4)
    flooded = run(engine, tmp_path / "open", *options, "--num-requests", 60, "--drain", 60)
    assert flooded.summary["requests"]["ok"] == 60
    # Fluid limit of a queue with load a > 1: who comes at t waits (a - 1) t.
    assert slope(flooded, "scheduled") == pytest.approx(load - 1, rel=0.25)
    assert abs(slope(closed, "sent")) < 0.1
    waits = [np.quantile([(r.first_ns or 0) - r.sent_ns for r in one.records], 0.95) for one in (flooded, closed)]
    assert waits[0] > 8 * waits[1]


def test_prompts_that_the_engine_knows_from_an_earlier_run_make_a_run_invalid(
    closed: Ended, engine: str, even: Path, tmp_path: Path
) -> None:
    options = ("--workload", even, "-u", 2, "-r", 10, "--num-requests", 40, "--seed", 3)
    again = run(engine, tmp_path / "again", *options)
    salted = run(engine, tmp_path / "salted", *options, "--salt", "fresh")
    for fresh in (closed, salted):
        assert fresh.summary["quality"]["cache_hit_share"] < 0.02
        assert fresh.summary["quality"]["cache_designed_share"] < 0.02
        assert not any("prefix cache" in reason for reason in fresh.summary["quality"]["reasons"])
    assert again.summary["quality"]["cache_hit_share"] > 0.9
    assert again.code == 4
    assert "--salt fresh" in again.out
    assert again.meta["bodies_sha256"] == closed.meta["bodies_sha256"] != salted.meta["bodies_sha256"]
    lengths = [sorted((r.index, r.prompt_tokens) for r in one.records) for one in (closed, salted)]
    assert lengths[0] == lengths[1]
