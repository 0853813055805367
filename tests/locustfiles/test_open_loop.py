"""Open loop: requests leave when they are due, at the fleet's rate, whatever -u says and however many are in flight."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.locust_runs import Ended, end, free_port, run, start
from tests.support.openai_server import Running, serve
from workloads import ArrivalSpec, load_workload, make_plan

RATE = 30
SEED = 5


@pytest.fixture(scope="module")
def ended(server: Running, small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    base = tmp_path_factory.mktemp("runs")
    options = ("--workload", small, "--request-rate", RATE, "--num-requests", 90, "--seed", SEED)
    poisson = (*options, "--arrival", "poisson")
    with ThreadPoolExecutor(5) as pool:
        started = {
            "poisson": pool.submit(run, server.url, base / "poisson", *poisson, "--processes", 2),
            "poisson-1": pool.submit(run, server.url, base / "poisson-1", *poisson),
            "poisson-5": pool.submit(run, server.url, base / "poisson-5", *poisson, "--processes", 5),
            "constant": pool.submit(run, server.url, base / "constant", *options, "--arrival", "constant", "-u", 40),
            "capped": pool.submit(
                run, server.url, base / "capped", *options, "--arrival", "constant", "--max-in-flight", 1
            ),
        }
        return {name: future.result() for name, future in started.items()}


def test_every_request_is_due_when_the_plan_says_on_any_number_of_workers(ended: dict[str, Ended], small: Path) -> None:
    plan = make_plan(
        load_workload(str(small)),
        seed=SEED,
        model="tiny",
        counter=None,
        arrival=ArrivalSpec(kind="poisson", request_rate=RATE),
    )
    start_ns = ended["poisson"].meta["window"]["start_ns"]
    records = {record.index: record for record in ended["poisson"].records}
    assert sorted(records) == list(range(90))
    assert {record.worker for record in records.values()} == {"worker-0", "worker-1"}
    for index, record in records.items():
        due_s = plan.arrival_s(index)
        assert due_s is not None
        assert record.scheduled_ns is not None
        assert record.scheduled_ns - start_ns == pytest.approx(due_s * 1e9, abs=2)
        assert record.sent_ns >= record.scheduled_ns


def test_the_same_seed_sends_the_same_bytes_at_the_same_times_from_one_two_and_five_workers(
    ended: dict[str, Ended],
) -> None:
    metas = [ended[name].meta for name in ("poisson-1", "poisson", "poisson-5")]
    assert [len(meta["workers"]) for meta in metas] == [1, 2, 5]
    assert metas[0]["sent"] == metas[1]["sent"] == metas[2]["sent"]
    assert metas[0]["sent"]["count"] == 90
    assert metas[0]["schedule"]["sha256"] == metas[1]["schedule"]["sha256"] == metas[2]["schedule"]["sha256"]
    offsets = [
        {r.index: (r.scheduled_ns or 0) - ended[name].meta["window"]["start_ns"] for r in ended[name].records}
        for name in ("poisson-1", "poisson-5")
    ]
    assert offsets[0] == pytest.approx(offsets[1], abs=2)


def test_requests_leave_on_time_and_the_lag_has_a_row(ended: dict[str, Ended]) -> None:
    # The least: this machine is shared, and its stalls are not what is tested.
    lags_ms = [(r.sent_ns - (r.scheduled_ns or 0)) / 1e6 for r in ended["poisson"].records]
    assert 0 <= min(lags_ms) < 5
    rows = {(row["Type"], row["Name"]): int(row["Request Count"]) for row in ended["poisson"].csv_rows()}
    assert rows["LAG", "short"] + rows["LAG", "long"] == 90
    assert rows["", "Aggregated"] == 90


def test_the_rate_does_not_depend_on_users(ended: dict[str, Ended]) -> None:
    assert ended["constant"].meta["users"] == 40
    times = sorted(record.sent_ns for record in ended["constant"].records)
    assert (times[-1] - times[0]) / 1e9 == pytest.approx(89 / RATE, rel=0.1)


def test_a_limit_of_flights_turns_into_send_lag(ended: dict[str, Ended]) -> None:
    capped = ended["capped"]
    spans = sorted((record.sent_ns, record.end_ns) for record in capped.records)
    assert all(begins >= ends for (_, ends), (begins, _) in itertools.pairwise(spans))
    summary = capped.summary
    assert summary["metrics"]["send_lag_s"]["max"] > 0.5
    assert summary["metrics"]["e2e_scheduled_s"]["max"] > summary["metrics"]["e2e_s"]["max"] + 0.5
    assert summary["valid"] is False
    assert capped.code == 4
    assert "send lag" in capped.out


def test_replay_sends_a_traces_rows_at_its_own_times(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:17:{second:02d}.5000000,{20 + second},{5 + second}" for second in range(0, 12, 2)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    directory, port = tmp_path / "run", free_port()
    with serve() as server:
        ended = end(
            start(
                *("-f", "locustfiles/replay.py", "--headless", "-H", server.url, "--processes", 2),
                *("--master-bind-port", port, "--master-port", port),
                *("--trace", trace, "--time-scale", 5, "--results", directory),
            ),
            directory,
        )
    records = sorted(ended.records, key=lambda record: record.index)
    assert [record.output_tokens for record in records] == [5, 7, 9, 11, 13, 15]
    offsets = [((record.scheduled_ns or 0) - (records[0].scheduled_ns or 0)) / 1e9 for record in records]
    assert offsets == pytest.approx([0, 0.4, 0.8, 1.2, 1.6, 2.0], abs=1e-6)
    assert ended.meta["arrival"]["kind"] == "trace"
