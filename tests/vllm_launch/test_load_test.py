"""Locust is started as a user would start it: the right words, and one line where it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tailgate.exits import BadInput
from tests.support.openai_server import serve
from tests.support.waiting import eventually
from tests.vllm_launch.commands import marked
from vllm_launch.experiments.load_test import Load, options, run

CLOSED = Load("chat-short", users=6, request_rate=None, run_time_s=90.0, warm_up_s=5.0, seed=3, workers=2)


def test_a_closed_loop_is_asked_for_as_one_would_type_it() -> None:
    assert options(CLOSED, "http://h:1", "base", Path("r/1-A1")) == [
        *("-H", "http://h:1", "-u", "6", "-r", "6", "-t", "90s"),
        *("--workload", "chat-short", "--warmup", "5", "--seed", "3", "--label", "base", "--results", "r/1-A1"),
    ]


def test_an_open_loop_is_asked_for_by_its_rate() -> None:
    words = options(dataclasses.replace(CLOSED, users=None, request_rate=2.5), "http://h:1", "base", Path("r"))
    assert words[words.index("--arrival") :][:4] == ["--arrival", "poisson", "--request-rate", "2.5"]
    assert words[words.index("-u") + 1] == "2", "a user for each worker; the rate does not depend on them"


def test_what_locust_refuses_is_said_in_its_own_line(tmp_path: Path) -> None:
    with serve() as server, pytest.raises(BadInput) as caught:
        run(
            dataclasses.replace(CLOSED, workload="chat-shrt", run_time_s=5.0, workers=1),
            server.url,
            "base",
            tmp_path / "1-A1",
            logs=tmp_path / "logs",
            env={},
            tick=lambda elapsed: None,
        )
    assert str(caught.value) == (
        "the load test did not run: unknown workload 'chat-shrt'; did you mean 'chat-short'?; "
        f"its log is {tmp_path / 'logs' / '1-A1-master.log'}"
    )


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", "the load test was ended by signal 9; its log is"),
        ("raise OSError('the disk is full')", "the load test did not run: OSError: the disk is full; its log is"),
    ],
)
def test_a_locust_that_ends_without_a_summary_has_run_no_load_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    (tmp_path / "locust.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(BadInput, match=said):
        run(CLOSED, "http://h:1", "base", tmp_path / "1-A1", logs=tmp_path / "logs", env={}, tick=lambda elapsed: None)


def test_the_shells_own_locust_variables_do_not_reach_a_leg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LOCUST_WORKLOAD", "no-such"), ("LOCUST_ARRIVAL", "frob"), ("LOCUST_USERS", "77")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCUST_MAX_IN_FLIGHT", "1")
    with serve() as server:
        code = run(
            dataclasses.replace(CLOSED, run_time_s=3.0, warm_up_s=0.5, workers=1),
            server.url,
            "base",
            tmp_path / "1-A1",
            logs=tmp_path / "logs",
            env={},
            tick=lambda elapsed: None,
        )
        assert server.seen()["most_in_flight"] == 6
    assert code in (0, 4)


def test_a_load_test_that_is_interrupted_leaves_no_process(tmp_path: Path, mark: str) -> None:
    def interrupt(elapsed_s: float) -> None:
        if (tmp_path / "1-A1" / "run.json").is_file():
            assert marked(mark)
            raise KeyboardInterrupt

    with serve() as server:
        with pytest.raises(KeyboardInterrupt):
            run(
                dataclasses.replace(CLOSED, run_time_s=60.0),
                server.url,
                "base",
                tmp_path / "1-A1",
                logs=tmp_path / "logs",
                env={"TAILGATE_TEST_MARK": mark},
                tick=interrupt,
            )
        eventually(lambda: not marked(mark), "no Locust left", 5)
