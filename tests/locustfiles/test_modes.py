"""The same sixty requests by one process, by --processes and by master and workers: the same bytes, the same counts."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.locust_runs import Ended, run, run_distributed
from tests.support.openai_server import Running

REQUESTS = 60
MODES = ("alone", "processes", "distributed")


@pytest.fixture(scope="module")
def ended(server: Running, small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    base = tmp_path_factory.mktemp("runs")
    options = ("--workload", small, "-u", 6, "-r", 100, "--num-requests", REQUESTS, "--seed", 7)
    with ThreadPoolExecutor(3) as pool:
        started = {
            "alone": pool.submit(run, server.url, base / "alone", *options),
            "processes": pool.submit(run, server.url, base / "processes", *options, "--processes", 2),
            "distributed": pool.submit(run_distributed, server.url, base / "distributed", 3, *options),
        }
        return {mode: future.result() for mode, future in started.items()}


@pytest.mark.parametrize("mode", MODES)
def test_the_run_ends_by_itself_and_says_where_it_is(ended: dict[str, Ended], mode: str) -> None:
    # 4 where this machine was too busy for the run to be valid; nothing else can go wrong here.
    assert ended[mode].code in (0, 4), ended[mode].err
    assert f"run directory: {ended[mode].directory}" in ended[mode].out
    assert "SIMULATED" in ended[mode].out
    assert "Traceback" not in ended[mode].err


@pytest.mark.parametrize("mode", MODES)
def test_everything_sent_is_accounted_for(ended: dict[str, Ended], mode: str) -> None:
    run_of_mode = ended[mode]
    requests = run_of_mode.summary["requests"]
    assert requests["sent"] == REQUESTS == requests["ok"]
    workers = run_of_mode.meta["workers"]
    assert len(workers) == {"alone": 1, "processes": 2, "distributed": 3}[mode]
    for worker in workers.values():
        assert worker["sent"] == worker["ok"] + worker["failed"] + worker["cancelled"]
    assert sum(worker["sent"] for worker in workers.values()) == REQUESTS
    assert sorted(record.index for record in run_of_mode.records) == list(range(REQUESTS))


@pytest.mark.parametrize("mode", MODES)
def test_gaps_are_events_less_one_a_request(ended: dict[str, Ended], mode: str) -> None:
    records = ended[mode].records
    gaps = sum(record.events for record in records) - len(records)
    assert ended[mode].summary["metrics"]["itl_s"]["count"] == gaps
    rows = {(row["Type"], row["Name"]): int(row["Request Count"]) for row in ended[mode].csv_rows()}
    assert rows["ITL", "short"] + rows["ITL", "long"] == gaps


@pytest.mark.parametrize("mode", MODES)
def test_aggregated_counts_requests_only(ended: dict[str, Ended], mode: str) -> None:
    rows = {(row["Type"], row["Name"]): int(row["Request Count"]) for row in ended[mode].csv_rows()}
    for kind in ("POST", "TTFT", "TPOT"):
        assert rows[kind, "short"] + rows[kind, "long"] == REQUESTS
    assert rows["", "Aggregated"] == REQUESTS


@pytest.mark.parametrize("mode", MODES)
def test_locusts_percentiles_are_those_of_the_records(ended: dict[str, Ended], mode: str) -> None:
    gaps_ms = sorted(g / 1e6 for r in ended[mode].records if r.request_class == "long" for g in r.gaps_ns)
    row = next(row for row in ended[mode].csv_rows() if (row["Type"], row["Name"]) == ("ITL", "long"))
    for level in (50, 90, 95, 99):
        # Locust's own definition: the value with at least that share of the values at or below it.
        exact = gaps_ms[min(math.floor(len(gaps_ms) * level / 100), len(gaps_ms) - 1)]
        below = gaps_ms[min(math.floor(len(gaps_ms) * level / 100), len(gaps_ms) - 1) - 1]
        assert below * 0.995 <= float(row[f"{level}%"]) <= exact * 1.005
    assert float(row["Average Response Time"]) == pytest.approx(sum(gaps_ms) / len(gaps_ms), rel=1e-6)


def test_the_same_seed_sends_the_same_bodies_however_many_workers_share_them(ended: dict[str, Ended]) -> None:
    metas = [run_of_mode.meta for run_of_mode in ended.values()]
    assert len({meta["bodies_sha256"] for meta in metas}) == 1
    assert metas[0]["sent"]["count"] == REQUESTS
    assert metas[0]["sent"] == metas[1]["sent"] == metas[2]["sent"]


def test_the_server_saw_each_body_once_from_each_run(ended: dict[str, Ended], server: Running) -> None:
    prompts = Counter(seen["prompt"] for seen in server.seen()["seen"])
    assert len(prompts) == REQUESTS
    assert set(prompts.values()) == {len(MODES)}


def test_another_seed_sends_other_bodies(ended: dict[str, Ended], server: Running, small: Path, tmp_path: Path) -> None:
    other = run(server.url, tmp_path / "other", "--workload", small, "-u", 6, "--num-requests", 12, "--seed", 8)
    assert other.meta["bodies_sha256"] != ended["alone"].meta["bodies_sha256"]


def test_run_json_repeats_the_run_and_names_its_parts(ended: dict[str, Ended]) -> None:
    meta = ended["distributed"].meta
    assert meta["seed"] == 7
    assert meta["model"] == "tiny"
    assert meta["engine"] == {"name": "test-engine", "version": "0.32.0", "simulated": True}
    assert meta["simulated"] is True
    assert meta["arrival"]["kind"] == "closed"
    assert meta["workload"]["name"] == "small"
    assert meta["clock"] in ("wire", "kernel", "user")
    assert meta["prompt_lengths"] == "prompt lengths are exact (server /tokenize)"
    for worker in meta["workers"].values():
        assert worker["host"]
        assert worker["version"]


def test_prompts_have_the_designed_length(ended: dict[str, Ended]) -> None:
    assert all(record.planned_prompt_tokens == record.prompt_tokens + 5 for record in ended["alone"].records)


def test_each_worker_keeps_a_journal_of_its_own(ended: dict[str, Ended]) -> None:
    journals = sorted((ended["distributed"].directory / "journals").glob("*.jsonl"))
    assert len(journals) == 3
    assert sum(len(journal.read_text().splitlines()) for journal in journals) == REQUESTS
