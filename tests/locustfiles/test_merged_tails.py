"""Tails over one, two and four real workers: what Locust and the summary tell is what all records say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.locust_runs import run_distributed
from tests.support.openai_server import Running


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_merged_p99_is_that_of_all_records(workers: int, server: Running, small: Path, tmp_path: Path) -> None:
    load = ("--workload", small, "-u", 16, "-r", 16, "--num-requests", 240, "--seed", 3, "--warmup", 0)
    ended = run_distributed(server.url, tmp_path / "run", workers, *load)
    rows = {(row["Type"], row["Name"]): row for row in ended.csv_rows()}
    assert len({record.worker for record in ended.records}) == workers
    for name in ("short", "long"):
        records = [record for record in ended.records if record.request_class == name]
        gaps_ms = np.concatenate([record.gaps_ns for record in records]) / 1e6
        assert int(rows["ITL", name]["Request Count"]) == gaps_ms.size
        assert float(rows["ITL", name]["99%"]) == pytest.approx(_nearest_rank(gaps_ms, 0.99), rel=0.005)
        told = ended.summary["classes"][name]["metrics"]["itl_s"]["p99"]
        assert told * 1e3 == pytest.approx(np.quantile(gaps_ms, 0.99), rel=1e-9)


def _nearest_rank(values: np.ndarray, share: float) -> float:
    """As Locust takes a percentile: a value that was measured, none in between, and of two the upper."""
    return float(np.sort(values)[int(share * values.size)])
