"""Experiments from end to end on the embedded engine, and what is left of one that is broken off."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from exporters.record import decode_records
from tailgate.exits import Exit
from tests.support.waiting import eventually
from tests.vllm_launch.commands import Ended, end, launch, marked, start
from vllm_launch.experiments import run
from vllm_launch.experiments.file import Experiment, Leg, load_experiment
from vllm_launch.experiments.progress import Progress
from vllm_launch.experiments.state import State, identity

# Many short answers: on two sequences at a time most of twelve users wait, on the device's default nobody does.
WORKLOAD = "name: short\nclasses:\n  short: {input-tokens: 24, output-tokens: 12}\n"
NARROW = (
    "extends: h100-llama-8b-baseline\nargs:\n  max-num-seqs: 2\nenv:\n  HF_TOKEN: hf_s3cr3t\n"
    "notes:\n  max-num-seqs: To see requests wait.\n"
)
EXPERIMENT = """\
engine: simulated
baseline: h100-llama-8b-baseline
candidate: narrow.yaml
workload: short.yaml
users: 12
run-time: 4s
warm-up: 1s
workers: 2
order: AB
gate: [ttft_p50]
"""


@dataclass(frozen=True)
class Finished:
    """An run that ran to its end."""

    ended: Ended
    directory: Path

    @property
    def spoilt(self) -> bool:
        """Whether this machine was too busy for a leg: then nothing is compared, and that is what is said."""
        return bool(json.loads((self.directory / "comparison.json").read_text())["refusals"])

    def meta(self, leg: str) -> dict[str, Any]:
        return dict(json.loads((self.directory / leg / "run.json").read_text()))

    def summary(self, leg: str) -> dict[str, Any]:
        return dict(json.loads((self.directory / leg / "summary.json").read_text()))


def written(folder: Path, text: str = EXPERIMENT) -> Path:
    (folder / "short.yaml").write_text(WORKLOAD)
    (folder / "narrow.yaml").write_text(NARROW)
    (folder / "wait.yaml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = written(tmp_path_factory.mktemp("experiment"))
    env = {"TAILGATE_TEST_MARK": "finished-experiment"}
    ended = launch("experiment", "wait.yaml", "--results", "results", cwd=folder, env=env, timeout_s=300)
    assert (folder / "results").is_dir(), ended
    return Finished(ended, next((folder / "results").iterdir()))


def test_the_verdict_ends_the_command_and_names_the_harm(finished: Finished) -> None:
    assert finished.ended.code == (4 if finished.spoilt else 3), finished.ended
    out = finished.ended.out
    assert out.startswith("experiment wait on the simulated engine (SIMULATED: no real hardware is measured)\n")
    verdict = "WORSE: narrow is worse than h100-llama-8b-baseline on TTFT p50"
    assert (verdict in out) != finished.spoilt
    assert ("Not comparable: " in out) == finished.spoilt
    assert "SIMULATED: these figures come from the embedded engine" in out
    assert out.endswith(f"report: {Path('results') / finished.directory.name / 'report.html'}\n")


def test_progress_goes_to_stderr_a_line_for_what_happened(finished: Finished) -> None:
    lines = finished.ended.err.splitlines()
    said = [line for line in lines if "; measuring it once more" not in line]
    assert [line.partition(": ")[0] for line in said] == [
        *["[1/2] A h100-llama-8b-baseline"] * 2,
        *["[2/2] B narrow"] * 2,
    ]
    assert " ok, 0 failed, 0 cancelled" in said[1]


def test_nothing_is_left_running(finished: Finished) -> None:
    eventually(lambda: not marked("finished-experiment"), "all processes ended", 5)


def test_both_sides_were_sent_the_same_requests(finished: Finished) -> None:
    a, b = finished.meta("1-A1"), finished.meta("2-B1")
    assert a["bodies_sha256"] == b["bodies_sha256"]
    assert a["seed"] == b["seed"] == 1


def test_a_run_keeps_how_its_engine_was_launched(finished: Finished) -> None:
    kept = finished.meta("2-B1")["launch"]
    assert kept["name"] == "narrow"
    assert kept["diff"] == {"max-num-seqs": {"default": 1024, "value": 2, "note": "To see requests wait."}}
    assert kept["env"] == {"HF_TOKEN": "(hidden)"}
    assert kept["said_version"]["simulated"] is True
    assert int(kept["cache_config"]["num_gpu_blocks"]) > 1000


def test_no_secret_is_in_any_file(finished: Finished) -> None:
    files = [path for path in finished.directory.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if b"s3cr3t" in path.read_bytes()]


def test_accounts_and_records_agree(finished: Finished) -> None:
    for leg in ("1-A1", "2-B1"):
        requests = finished.summary(leg)["requests"]
        assert requests["sent"] == requests["ok"] + requests["failed"] + requests["cancelled"]
        records = [r for r in decode_records(finished.directory / leg / "requests.jsonl") if r.in_window]
        assert len(records) == requests["sent"]
        assert finished.summary(leg)["simulated"] is True


def test_the_engine_was_watched_while_it_was_under_load(finished: Finished) -> None:
    lines = (finished.directory / "2-B1" / "engine.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    window = finished.meta("2-B1")["window"]
    inside = [s for s in samples if window["start_ns"] <= s["time_ns"] <= window["end_ns"]]
    assert len(inside) >= 2
    assert max(s["running"] for s in inside) == 2, "the narrow engine never runs more than two"
    assert max(s["waiting"] for s in inside) >= 8, "and the others wait"


def test_the_comparison_and_the_report_say_the_same(finished: Finished) -> None:
    comparison = json.loads((finished.directory / "comparison.json").read_text())
    expected = ("not comparable", 4, True) if finished.spoilt else ("worse", 3, True)
    assert (comparison["verdict"], comparison["exit_code"], comparison["simulated"]) == expected
    report = (finished.directory / "report.html").read_text()
    assert "max-num-seqs" in report
    assert "simulated" in report.lower()
    assert "<script" not in report


def test_json_is_all_that_stdout_gets_and_an_open_loop_is_an_experiment_too(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("users: 12", "request-rate: 30").replace("4s", "3s").replace("workers: 2", "workers: 1")
    written(tmp_path, text)
    ended = launch("experiment", "wait.yaml", "--results", "results", "--json", cwd=tmp_path)
    result = ended.json
    assert result["exit_code"] == ended.code
    assert (tmp_path / result["report"]).is_file()
    run = json.loads((tmp_path / result["directory"] / "1-A1" / "run.json").read_text())
    assert run["arrival"]["kind"] == "poisson"


def under_way(folder: Path, mark: str) -> tuple[subprocess.Popen[str], Path]:
    """An run whose first leg is sending."""
    written(folder, EXPERIMENT.replace("run-time: 4s", "run-time: 100s"))
    env = {"TAILGATE_TEST_MARK": mark}
    process = start("experiment", "wait.yaml", "--results", "results", cwd=folder, env=env)

    def sending() -> Path | None:
        assert process.poll() is None, process.communicate()
        found = list((folder / "results").glob("*/1-A1/requests.jsonl"))
        return found[0].parent if found and found[0].stat().st_size > 0 else None

    leg: Path = eventually(sending, "records are written", 60)
    return process, leg


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_experiment_leaves_no_process_and_keeps_what_it_has(
    tmp_path: Path, mark: str, number: signal.Signals, code: int
) -> None:
    process, leg = under_way(tmp_path, mark)
    process.send_signal(number)
    ended = end(process, 40)
    assert ended.code == code
    assert f"not finished; what was measured so far is kept in {leg.parent.relative_to(tmp_path)}\n" in ended.err
    assert "Traceback" not in ended.err
    eventually(lambda: not marked(mark), "all processes ended", 5)
    json.loads((leg / "run.json").read_text())
    records = list(decode_records(leg / "requests.jsonl"))
    assert records
    assert len({record.index for record in records}) == len(records)
    assert not (leg.parent / "2-B1").exists()
    assert not (leg.parent / "report.html").exists()


def test_a_killed_experiment_takes_engine_and_locust_with_it(tmp_path: Path, mark: str) -> None:
    process, _ = under_way(tmp_path, mark)
    assert len(marked(mark)) >= 5, "experiment, guard, engine, master, workers"
    process.kill()
    process.communicate()
    eventually(lambda: not marked(mark), "the guard ended them", 15)


def test_an_engine_that_dies_under_load_ends_the_experiment_at_once(tmp_path: Path, mark: str) -> None:
    process, leg = under_way(tmp_path, mark)
    engines = [p for p in marked(mark) if "serve" in p.cmdline()]
    assert len(engines) == 1
    engines[0].kill()
    ended = end(process, 40)
    log = leg.parent / "logs" / "1-A1-engine.log"
    assert ended.code == 2
    assert ended.err.splitlines()[-1] == (
        f"vllm_launch: the engine ended by itself (signal 9); its log is {log.relative_to(tmp_path)}"
    )
    assert "  engine| Ready on http://127.0.0.1:" in ended.err
    eventually(lambda: not marked(mark), "all processes ended", 5)


def test_a_leg_that_is_not_valid_is_measured_once_more_until_that_has_not_helped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, EXPERIMENT.replace("order: AB", "order: ABBA"))
    codes = iter([Exit.GOOD, Exit.NOT_VALID, Exit.GOOD, Exit.NOT_VALID, Exit.NOT_VALID, Exit.NOT_VALID])

    def run_leg(_: Experiment, leg: Leg, directory: Path, *__: object) -> tuple[Exit, str]:
        (directory / leg.name).mkdir()
        code = next(codes)
        return code, f"{code.name}"

    monkeypatch.setattr(run, "_run_leg", run_leg)
    asked = load_experiment(str(tmp_path / "wait.yaml"))
    state = State.open(asked.path, identity(asked), tmp_path / "results", None)
    found = run._run_legs(asked, state, None, Progress(4))
    assert found == [Exit.GOOD, Exit.GOOD, Exit.NOT_VALID, Exit.NOT_VALID]
    kept = sorted(path.name for path in state.directory.iterdir() if path.is_dir())
    assert kept == ["1-A1", "2-B1", "2-B1-not-valid", "3-B2", "3-B2-not-valid", "4-A2"]
    assert "[2/4] B narrow: NOT_VALID; measuring it once more\n" in capsys.readouterr().err
