"""Step times fitted on one's own runs: found, kept in a file, and served, compared and searched with."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tailgate.exits import BadInput
from tests.vllm_launch.commands import end, launch, start
from vllm_launch.config import load_config
from vllm_launch.engine import embedded
from vllm_launch.engine.launch import free_port
from vllm_launch.simulated.settings import EngineSettings

SOURCE = "cpu-tiny-baseline (1-A1)"
TABLE: dict[str, Any] = {
    "schema": "tailgate.step-times/1",
    "simulated": True,
    "source": SOURCE,
    "model": "generated:tiny-llama",
    "device": "cpu",
    "max_model_len": 4096,
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "block_size": 128,
    "kv_blocks": 512,
    "per_step_s": 0.004,
    "per_sequence_s": 0.0004,
    "per_request_s": 0.002,
    "per_token_s": 0.00005,
    "per_pair_s": 1e-9,
    "per_context_s": 1e-8,
    "error": 0.07,
}
WORKLOAD = """\
name: mixed
classes:
  chat: {weight: 4, input-tokens: {distribution: uniform, min: 20, max: 200}, output-tokens: 30}
  document: {weight: 1, input-tokens: 1500, output-tokens: 10}
"""
COMPARE = """\
engine: simulated
step-times: mine.json
baseline: cpu-tiny-baseline
candidate: cpu-tiny-tuned
workload: mixed.yaml
users: 4
run-time: 6s
warm-up: 1s
workers: 1
order: AB
gate: [itl_p99]
"""
SEARCH = """\
kind: search
engine: simulated
step-times: mine.json
baseline: cpu-tiny-baseline
flags: {max-num-seqs: [2, 64]}
workload: mixed.yaml
slo: ttft_p95<500ms
run-time: 20s
warm-up: 2s
tolerance: 0.2
measure: 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.json").write_text(json.dumps(TABLE))
    (tmp_path / "mixed.yaml").write_text(WORKLOAD)
    (tmp_path / "e.yaml").write_text(COMPARE)
    (tmp_path / "s.yaml").write_text(SEARCH)
    return tmp_path


def test_an_engine_with_fitted_step_times_says_whose_they_are(folder: Path) -> None:
    port = free_port()
    words = ["serve", "cpu-tiny-baseline", "--engine", "simulated", "--step-times", "mine.json", "--port", port]
    engine = start(*words, cwd=folder)
    try:
        assert engine.stdout is not None
        assert "Ready on" in next(line for line in engine.stdout if "Ready" in line)
        facts = launch("attach", f"http://127.0.0.1:{port}", "--json").json
    finally:
        engine.send_signal(signal.SIGTERM)
        end(engine)
    assert facts["said_version"]["simulated"] is True
    assert facts["said_version"]["table"] == f"fitted on {SOURCE}"
    assert facts["kv_cache"]["blocks"] == 512


def test_configs_without_a_measured_table_are_compared_on_fitted_step_times_and_fitted_again(folder: Path) -> None:
    ended = launch("experiment", "e.yaml", "--results", "results", "--json", cwd=folder)
    assert ended.code in (0, 3, 4), ended
    ratios = {figure["name"]: figure.get("ratio") for figure in ended.json["comparison"]["metrics"]}
    assert ratios["itl_p99"] < 1, "shorter steps have shorter gaps"
    (directory,) = (folder / "results").iterdir()
    about = json.loads((directory / "1-A1" / "run.json").read_text())
    assert about["simulated"] is True
    assert about["engine"]["step_times"] == f"fitted on {SOURCE}"
    assert about["launch"]["said_version"]["table"] == f"fitted on {SOURCE}"
    fitted = launch("fit", directory / "1-A1", "-o", folder / "again.json")
    assert fitted.code == 0, fitted
    assert "step times of simulated runs: cpu-tiny-baseline (1-A1)" in fitted.out
    again = embedded.read_step_times(folder / "again.json", load_config("cpu-tiny-baseline"))
    assert (again.kv_blocks, again.block_size) == (512, 128)
    step_of_four = again.overhead.per_step_s + 4 * again.overhead.per_sequence_s
    assert step_of_four == pytest.approx(0.004 + 4 * 0.0004, rel=0.3)


def test_a_search_uses_them_too(folder: Path) -> None:
    ended = launch("search", "s.yaml", "--virtual", "--json", "--results", "results", cwd=folder)
    assert ended.code in (0, 3, 4), ended
    configs = {entry["config"]: entry["predicted_requests_per_s"] for entry in ended.json["configs"]}
    assert configs["max-num-seqs-2"] < configs["baseline"]


MISTAKES: dict[str, tuple[dict[str, Any] | str | None, str]] = {
    "no file": (None, "mine.json: No such file or directory; make it with: python -m vllm_launch fit RUN -o FILE"),
    "no JSON": ("step: 3", "mine.json: holds no step times: JSON is malformed"),
    "a key left out": (
        {k: v for k, v in TABLE.items() if k != "per_pair_s"},
        "mine.json: holds no step times: Object missing required field `per_pair_s`",
    ),
    "a key with a typo": ({**TABLE, "per_steps": 1}, "holds no step times: Object contains unknown field `per_steps`"),
    "no time": ({**TABLE, "per_step_s": 0}, "holds no step times: Expected `float` > 0.0 - at `$.per_step_s`"),
    "another schema": ({**TABLE, "schema": "x/9"}, "holds no step times: Invalid enum value 'x/9' - at `$.schema`"),
    "another model": (
        {**TABLE, "model": "m"},
        "mine.json: holds the step times of the model m, and cpu-tiny-baseline is for generated:tiny-llama; fit",
    ),
    "another device": ({**TABLE, "device": "t4"}, "holds the step times of the device t4, and cpu-tiny-baseline is"),
}


@pytest.mark.parametrize("case", MISTAKES)
@pytest.mark.parametrize("words", [("serve", "cpu-tiny-baseline", "--engine", "simulated"), ("experiment", "e.yaml")])
def test_a_file_that_is_none_is_refused_in_one_line(folder: Path, case: str, words: tuple[str, ...]) -> None:
    content, said = MISTAKES[case]
    (folder / "mine.json").unlink()
    if content is not None:
        (folder / "mine.json").write_text(content if isinstance(content, str) else json.dumps(content))
    more = ["--step-times", "mine.json", "--port", free_port()] if words[0] == "serve" else ["--dry-run"]
    ended = launch(*words, *more, cwd=folder)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert said in ended.err


def test_they_are_the_embedded_engines_alone(folder: Path) -> None:
    ended = launch("serve", "cpu-tiny-baseline", "--step-times", "mine.json", cwd=folder)
    assert (ended.code, ended.err) == (
        2,
        "vllm_launch: --step-times: the vllm engine has its own; add --engine simulated\n",
    )
    (folder / "e.yaml").write_text(COMPARE.replace("engine: simulated", "engine: vllm"))
    ended = launch("experiment", "e.yaml", "--dry-run", cwd=folder)
    assert (ended.code, ended.err) == (
        2,
        "vllm_launch: e.yaml: step-times: the vllm engine has its own; use 'engine: simulated'\n",
    )


def test_flags_that_the_fitted_server_decided_are_said_to_have_no_effect(folder: Path) -> None:
    table = embedded.read_step_times(folder / "mine.json", load_config("cpu-tiny-baseline"))
    settings, notes = EngineSettings.from_fitted(table, {"gpu-memory-utilization": 0.5, "block-size": 64})
    assert notes == ["gpu-memory-utilization: the KV cache is that of the fitted server, it has no effect"]
    assert settings.kv_blocks * settings.block_size == 512 * 128, "smaller blocks, as much memory"
    with pytest.raises(BadInput, match="tensor-parallel-size 2, pipeline-parallel-size 1: the step times fitted on"):
        EngineSettings.from_fitted(table, {"tensor-parallel-size": 2})


def test_a_context_that_was_left_to_the_engine_is_what_the_engine_said() -> None:
    said = {"effective": {"max-model-len": 2048}}
    assert embedded._longest({"args": {"max-model-len": -1}, **said}) == 2048
    assert embedded._longest({"args": {"max-model-len": -1}}) == 4096


def test_runs_of_several_launches_or_of_none_are_no_ground_for_a_fit(tmp_path: Path) -> None:
    for name, args in (("a", {}), ("b", {"max-num-seqs": 4})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "requests.jsonl").touch()
        meta = {"launch": {"model": "m", "device": "cpu", "args": args}} if name == "a" else {"launch": {"args": args}}
        (tmp_path / name / "run.json").write_text(json.dumps({"schema": "tailgate.run/1", **meta}))
    ended = launch("fit", "a", "b", "-o", "t.json", cwd=tmp_path)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "b: does not say how its engine was launched; give the runs of an experiment" in ended.err
