"""A stored run's metrics served, and runs in other tools' formats, through the command itself."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporters.__main__ import main
from exporters.run_store import Run
from tailgate.exits import run_command
from tests.support.locust_runs import ROOT, free_port
from tests.support.runs import failed, queueing_records, store


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    records = [*queueing_records(1, seconds=30, load=0.4), failed(9000, error="=cmd|x")]
    return store(tmp_path_factory.mktemp("run"), records, seconds=30.0, label="=A1", simulated=True)


def _call(*words: str | Path) -> int:
    return run_command(lambda: main([str(word) for word in words]), "exporters")


@pytest.fixture
def served(run: Run, request: pytest.FixtureRequest) -> Iterator[str]:
    words = [sys.executable, "-m", "exporters", "serve", str(run.path), "--port", "0", "--json", *request.param]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = "".join(iter(process.stdout.readline, "}\n")) + "}"
        with urllib.request.urlopen(json.loads(said)["metrics"], timeout=10) as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            yield response.read().decode()
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.parametrize("served", [(), ("--host", "::1")], ids=["ipv4", "ipv6"], indirect=True)
def test_a_stored_run_is_served_to_prometheus(served: str, run: Run) -> None:
    families = {family.name: family for family in text_string_to_metric_families(served)}
    ok = [s for s in families["tailgate_requests"].samples if s.labels["outcome"] == "ok"]
    assert (ok[0].value, ok[0].labels["simulated"]) == (600, "true")
    p95 = next(
        s.value
        for s in families["tailgate_quantile_seconds"].samples
        if (s.labels["metric"], s.labels["quantile"], s.labels["request_class"]) == ("ttft", "0.95", "")
    )
    assert p95 == pytest.approx(run.summary["metrics"]["ttft_s"]["p95"], rel=0.004)


def test_a_run_is_served_beside_a_baseline(run: Run, tmp_path: Path) -> None:
    base = store(tmp_path / "base", queueing_records(2, seconds=30, load=0.4), seconds=30.0, simulated=True)
    words = [sys.executable, "-m", "exporters", "serve", str(run.path), "--port", "0", "--baseline", str(base.path)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split()[1]
        with urllib.request.urlopen(address, timeout=10) as response:
            page = response.read().decode()
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert "tailgate_baseline_ratio{" in page
    assert "tailgate_regression{" in page


def test_a_port_that_is_taken_is_one_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert _call("serve", run.path, "--port", str(port)) == 2
    said = f"exporters: 127.0.0.1 port {port}: Address already in use; give another with --port (0: a free one)\n"
    assert capsys.readouterr().err == said
    assert _call("serve", run.path, "--port", "70000") == 2
    assert "'70000' is no port; give 0 to 65535" in capsys.readouterr().err


def test_parquet_holds_every_request_and_gap(run: Run, tmp_path: Path) -> None:
    assert _call("convert", run.path, "--to", "parquet", "-o", tmp_path / "r.parquet") == 0
    table = pyarrow.parquet.read_table(tmp_path / "r.parquet")
    assert table.num_rows == 601
    assert json.loads(table.schema.metadata[b"tailgate"])["simulated"] is True
    gaps = np.concatenate(table["gaps_s"].combine_chunks().to_numpy(zero_copy_only=False))
    assert np.allclose(gaps, run.columns.gaps_ns * 1e-9)
    last: dict[str, Any] = table.slice(600, 1).to_pylist()[0]
    assert (last["outcome"], last["error"], last["ttft_s"]) == ("failed", "=cmd|x", None)
    found = table["ttft_s"].drop_null().to_numpy()
    assert float(np.quantile(found, 0.95)) == pytest.approx(run.summary["metrics"]["ttft_s"]["p95"])


def test_parquet_without_its_library_or_a_file_is_one_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _call("convert", run.path, "--to", "parquet") == 2
    assert capsys.readouterr().err == "exporters: a Parquet file is no text for the screen; name it with -o FILE\n"
    assert _call("convert", run.path, "--to", "parquet", "-o", tmp_path / "no" / "where") == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert _call("convert", run.path, "--to", "parquet", "-o", tmp_path / "r.parquet") == 2
    said = "exporters: Parquet needs pyarrow, which is not installed; install it with: pip install pyarrow\n"
    assert capsys.readouterr().err == said


def test_csv_is_csv_and_with_json_it_is_json(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert _call("convert", run.path, "--to", "csv") == 0
    cells = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert _call("convert", run.path, "--to", "csv", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len(cells) == 601
    assert rows[0]["ttft_s"] == float(cells[0]["ttft_s"])
    # A spreadsheet runs what starts like a formula; JSON needs no guard.
    assert (rows[-1]["error"], cells[-1]["error"]) == ("=cmd|x", "'=cmd|x")
    assert (rows[-1]["ttft_s"], cells[-1]["ttft_s"]) == (None, "")
    assert _call("convert", run.path, "--to", "vllm-bench", "--json") == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 600
