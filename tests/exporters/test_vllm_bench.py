"""Results of `vllm bench serve`, read as runs and written for vLLM's own tools."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from exporters.__main__ import main
from exporters.compare import compare
from exporters.formats import vllm_bench
from exporters.tables import summary_text
from tailgate.exits import run_command
from tests.support.require import need
from tests.support.runs import queueing_records, store
from vllm_launch import cpu_vllm


def result(**changes: Any) -> dict[str, Any]:
    """Two answers of three tokens as vLLM 0.32 saves them: it counted the role chunk, so each has three gaps."""
    return {
        "date": "20261129-144137",
        "backend": "openai-chat",
        "model_id": "tiny",
        "num_prompts": 3,
        "request_rate": 5.0,
        "duration": 2.0,
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 20,
        "total_output_tokens": 6,
        "request_throughput": 1.0,
        "output_throughput": 3.0,
        "mean_ttft_ms": 20.0,
        "median_ttft_ms": 19.0,
        "p99_ttft_ms": 25.0,
        "mean_itl_ms": 4.0,
        "input_lens": [10, 10, 10],
        "output_lens": [3, 3, 0],
        "ttfts": [0.02, 0.03, 0.0],
        "itls": [[0.001, 0.004, 0.005], [0.002, 0.006, 0.007], []],
        "start_times": [100.0, 100.5, 101.0],
        "errors": ["", "", "Service Unavailable"],
    } | changes


def saved(folder: Path, found: dict[str, Any]) -> Path:
    path = folder / "bench.json"
    path.write_text(json.dumps(found))
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"ttfts": [None, 0.1, 0.1]},
        {"ttfts": [-1.0, 0.1, 0.1]},
        {"ttfts": [1e300, 0.1, 0.1]},
        {"itls": ["x", [], []]},
        {"input_lens": ["x", 1, 1]},
        {"start_times": "x"},
        {"duration": "x"},
        {"request_rate": "fast"},
        {"errors": None, "ttfts": None, "itls": None, "output_lens": None, "completed": "x"},
    ],
)  # fmt: skip
def test_what_is_no_measurement_is_one_line_that_names_the_file(
    tmp_path: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    file, ours = saved(tmp_path, result(**change)), store(tmp_path / "ours", queueing_records(1, seconds=5))
    for words in (("import", file, "-o", tmp_path / "run"), ("compare", file, ours.path)):
        assert run_command(lambda words=words: main([str(word) for word in words]), "exporters") == 2
        err = capsys.readouterr().err
        assert err.startswith(f"exporters: {file}: ")
        assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_role_chunk_is_no_token(tmp_path: Path) -> None:
    run = vllm_bench.load(saved(tmp_path, result()), tmp_path / "run")
    metrics = run.summary["metrics"]
    assert metrics["ttft_s"]["mean"] == pytest.approx((0.021 + 0.032) / 2)
    assert metrics["itl_s"]["count"] == 4
    assert metrics["itl_s"]["min"] == pytest.approx(0.004)
    assert "role-only chunk" in run.meta["corrections"][0]
    assert run.summary["requests"]["by_error"] == {"imported": 1}


@pytest.mark.parametrize(
    "changes",
    [{"backend": "openai"}, {"itls": [[0.004, 0.005], [0.006, 0.007], []]}],
    ids=["completions have no role chunk", "a server that sends it with the first token"],
)
def test_where_it_was_not_counted_nothing_is_corrected(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = vllm_bench.load(saved(tmp_path, result(**changes)), tmp_path / "run")
    assert run.summary["metrics"]["ttft_s"]["mean"] == pytest.approx(0.025)
    assert run.meta["corrections"] == []


def test_a_result_without_details_is_shown_and_not_compared(tmp_path: Path) -> None:
    found = {k: v for k, v in result().items() if not isinstance(v, list)}
    run = vllm_bench.load(saved(tmp_path, found), tmp_path / "run")
    metrics = run.summary["metrics"]
    assert (metrics["ttft_s"]["mean"], metrics["ttft_s"]["p50"], metrics["ttft_s"]["p99"]) == (0.02, 0.019, 0.025)
    assert run.summary["requests"] | {"cancelled": 0} == {
        "sent": 3,
        "ok": 2,
        "failed": 1,
        "cancelled": 0,
        "by_error": {"imported": 1},
    }
    assert not run.valid
    assert "save results with --save-detailed" in summary_text(run)
    assert compare([run], [run]).verdict == "not comparable"


def test_an_import_can_be_a_baseline(tmp_path: Path) -> None:
    from exporters import baseline

    many = {key: value * 15 if isinstance(value, list) else value for key, value in result().items()}
    run = vllm_bench.load(saved(tmp_path, many), tmp_path / "run")
    path = baseline.save([run], "main", tmp_path)
    assert baseline.load(path)[0].summary["requests"]["ok"] == 30


def test_a_sweeps_summary_is_what_vllms_plots_read(tmp_path: Path) -> None:
    run = store(tmp_path / "a", queueing_records(1, seconds=10), seconds=10.0)
    path = tmp_path / "sweep" / "summary.json"
    assert main(["convert", str(run.path), "--to", "vllm-sweep", "-o", str(path)]) == 0, "the folder is made"
    row = json.loads((tmp_path / "sweep" / "summary.json").read_text())[0]
    assert (row["max_num_seqs"], row["run_number"], row["completed"]) == (256, 0, run.summary["requests"]["ok"])
    assert row["p99_ttft_ms"] > row["median_ttft_ms"] > 0


@pytest.mark.vllm
def test_vllms_own_reader_finds_what_it_plots(tmp_path: Path) -> None:
    need(cpu_vllm.ready(), "real vLLM on CPU (python -m vllm_launch.cpu_vllm)")
    run = store(tmp_path / "a", queueing_records(1, seconds=10), seconds=10.0)
    path = tmp_path / "summary.json"
    path.write_text(vllm_bench.dump_sweep([run]))
    ask = (
        "import sys, json; from pathlib import Path; from vllm.benchmarks.sweep import plot; "
        "rows = plot._convert_inf_nan_strings(plot._json_load_bytes(Path(sys.argv[1]))); "
        "print(json.dumps([[plot._get_metric(row, key) for key in sys.argv[2:]] for row in rows]))"
    )
    # The axes that `vllm bench sweep plot` and `plot_pareto` draw by default.
    keys = ("total_token_throughput", "median_ttft_ms", "output_throughput", "request_rate", "run_number")
    done = subprocess.run(
        [str(cpu_vllm.PYTHON), "-c", ask, str(path), *keys], capture_output=True, text=True, check=True, timeout=150
    )
    found = json.loads(done.stdout.splitlines()[-1])[0]
    row = json.loads(path.read_text())[0]
    assert found == [row[key] for key in keys]
