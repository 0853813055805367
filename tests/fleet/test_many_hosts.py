"""A fleet on hosts of its own (network namespaces) through what befalls fleets: delay, loss, death, partition, restart.

In every case: a request that a worker finished is in the run, but for the last report interval of one that died; none
is in it twice; the run says what happened and ends by itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from exporters.record import RequestRecord
from exporters.run_store import recover
from tests.support.lab import DELAY_S, FleetRun, Lab
from tests.support.locust_runs import Ended, end
from tests.support.require import need

# Scenarios run side by side, and a test may wait for its own: a busy machine takes half a minute to start four Locusts.
pytestmark = pytest.mark.timeout(600)

TOKENS = 20
WORKLOAD = f"name: lab\nclasses:\n  chat: {{input-tokens: 32, output-tokens: {TOKENS}}}\n"
REQUESTS = 150
REPORT_S, SLACK_S = 1.0, 1.0
"""A report's interval, and what a busy machine may add to it and its way."""


@dataclass
class Played:
    """What became of a scenario: the master's end, its workers', and moments in it."""

    run: FleetRun
    master: Ended
    workers: list[Ended] = field(default_factory=list)
    at_ns: int = 0
    earlier: Ended | None = None


def _play(
    run: FleetRun, url: str, workload: Path, *options: object, program: dict[int, list[str]] | None = None
) -> Played:
    master = run.start_master(url, "--workload", workload, "--seed", 5, "--warmup", 0, "-r", 50, *options)
    workers = [run.start_worker(number, (program or {}).get(number, ())) for number in range(run.workers)]
    return _ends(run, master, workers)


def _ends(run: FleetRun, master: subprocess.Popen[str], workers: list[subprocess.Popen[str]]) -> Played:
    masters = end(master, run.masters_copy, timeout_s=180)
    return Played(run, masters, [end(worker, run.masters_copy, timeout_s=90) for worker in workers])


def plain(lab: Lab, workload: Path) -> Played:
    return _play(FleetRun(lab, "plain", 3), lab.engine_url, workload, "-u", 6, "--num-requests", REQUESTS)


def far(lab: Lab, workload: Path) -> Played:
    return _play(FleetRun(lab, "far", 3), lab.far_url, workload, "-u", 6, "--num-requests", REQUESTS)


def killed(lab: Lab, workload: Path) -> Played:
    run = FleetRun(lab, "killed", 3)
    master = run.start_master(
        lab.engine_url, "--workload", workload, "--seed", 5, "--warmup", 0, "-u", 6, "-r", 50, "-t", "8s"
    )
    workers = run.start_workers()
    run.wait_for_records(60)
    workers[1].send_signal(signal.SIGKILL)
    at_ns = time.time_ns()
    workers[1].communicate()
    played = _ends(run, master, [workers[0], workers[2]])
    played.at_ns = at_ns
    return played


def cut_off(lab: Lab, workload: Path) -> Played:
    run = FleetRun(lab, "cut", 2)
    master = run.start_master(
        lab.engine_url, "--workload", workload, "--seed", 5, "--warmup", 0, "-u", 4, "-r", 50, "-t", "22s"
    )
    workers = run.start_workers()
    run.wait_for_records(20)
    run.hosts[0].cut()
    at_ns = time.time_ns()
    # Longer than the ten seconds after which a worker is given up.
    time.sleep(12)
    run.hosts[0].mend()
    played = _ends(run, master, workers)
    played.at_ns = at_ns
    return played


def restarted(lab: Lab, workload: Path) -> Played:
    run = FleetRun(lab, "again", 2)
    options = ("--workload", workload, "--seed", 5, "--warmup", 0, "-u", 4, "-r", 50)
    first = run.start_master(lab.engine_url, *options, "-t", "60s")
    workers = run.start_workers()
    run.wait_for_records(40)
    first.send_signal(signal.SIGKILL)
    at_ns = time.time_ns()
    out, err = first.communicate()
    second = run.start_master(lab.engine_url, *options, "--num-requests", REQUESTS)
    played = _ends(run, second, workers)
    played.at_ns = at_ns
    played.earlier = Ended(first.returncode, out, err, next(run.master_host.disk.glob("run.*")))
    return played


def slow(lab: Lab, workload: Path) -> Played:
    run = FleetRun(lab, "slow", 2)
    master = run.start_master(
        lab.engine_url, "--workload", workload, "--seed", 5, "--warmup", 0, "-u", 4, "-r", 50, "-t", "6s"
    )
    workers = run.start_workers()
    run.wait_for_records(4)
    over = threading.Event()

    def hold_back() -> None:
        while not over.wait(0.1) and workers[0].poll() is None:
            workers[0].send_signal(signal.SIGSTOP)
            time.sleep(0.4)
            workers[0].send_signal(signal.SIGCONT)

    holding = threading.Thread(target=hold_back)
    holding.start()
    time.sleep(5)
    over.set()
    holding.join()
    return _ends(run, master, workers)


def skewed(lab: Lab, workload: Path) -> Played:
    # The kernel's stamps are not faked: only the user clock has all its times from the clock that is.
    options = ("--clock", "user", "--request-rate", 25, "-u", 1, "--num-requests", 100)
    faked = ["env", "FAKETIME_DONT_FAKE_MONOTONIC=1", "faketime", "-f", "+30s"]
    return _play(FleetRun(lab, "skewed", 2), lab.engine_url, workload, *options, program={0: faked})


def other_version(lab: Lab, workload: Path) -> Played:
    run = FleetRun(lab, "other", 2)
    master = run.start_master(lab.engine_url, "--workload", workload, "-u", 4, "--num-requests", 20)
    script = (
        "import sys, tailgate; tailgate.__version__ = '0.0.9'; from locust.main import main; "
        "sys.argv[0] = 'locust'; sys.exit(main())"
    )
    old = run.hosts[1].start(
        *("-c", script, "-f", "locustfiles/chat.py", "--worker", "--master-host", run.master_host.address),
        results=run.results,
    )
    return _ends(run, master, [run.start_worker(0), old])


QUIET: tuple[Callable[[Lab, Path], Played], ...] = (plain, far)
ROUGH: tuple[Callable[[Lab, Path], Played], ...] = (cut_off, killed, restarted, slow, skewed, other_version)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Callable[[Lab, Path], Played]], Played]]:
    """Every scenario, played in one lab: the two whose times are compared first, then the others three at a time."""
    need(os.geteuid() == 0 and shutil.which("ip"), "root and iproute2, for network namespaces")
    need(shutil.which("faketime"), "faketime")
    folder = tmp_path_factory.mktemp("lab")
    workload = folder / "lab.yaml"
    workload.write_text(WORKLOAD)
    lab = Lab(folder)
    pool = ThreadPoolExecutor(3)
    futures: dict[Callable[[Lab, Path], Played], Future[Played]] = {}
    try:
        lab.open()
        futures |= {scenario: pool.submit(scenario, lab, workload) for scenario in QUIET}
        for future in futures.values():
            future.exception()
        futures |= {scenario: pool.submit(scenario, lab, workload) for scenario in ROUGH}
        yield lambda scenario: futures[scenario].result()
    finally:
        pool.shutdown(cancel_futures=True)
        lab.close()


Play = Callable[[Callable[[Lab, Path], Played]], Played]


def _name(one: Played, host: int) -> str:
    """What the run calls the worker on that host: they are numbered as they connect."""
    return next(record.worker for number, record in one.run.journals() if number == host)


def _identities(records: list[RequestRecord]) -> list[tuple[object, ...]]:
    return [(record.identity, record.index, record.sent_ns) for record in records]


def _check_accounts(one: Played, lost_after_ns: int | None = None) -> list[RequestRecord]:
    """None twice, none invented, and none missing but what a dead worker had not yet reported; those missing."""
    kept = one.master.records
    assert len({record.identity for record in kept}) == len(kept), "counted twice"
    really = [record for _, record in one.run.journals()]
    assert len({record.identity for record in really}) == len(really)
    there = set(_identities(kept))
    assert there <= set(_identities(really)), "in the run, but in nobody's journal"
    missing = [record for record in really if _identities([record])[0] not in there]
    if lost_after_ns is None:
        assert missing == []
    assert all(record.end_ns > (lost_after_ns or 0) for record in missing)
    requests = one.master.summary["requests"]
    counts = {kind: sum(record.outcome == kind for record in kept) for kind in ("ok", "failed", "cancelled")}
    assert {kind: requests[kind] for kind in counts} == counts
    assert requests["sent"] == len(kept)
    assert "Traceback" not in one.master.err
    return missing


def test_merged_quantiles_are_those_of_all_records(played: Play) -> None:
    one = played(plain)
    _check_accounts(one)
    assert one.master.code in (0, 4), one.master.err
    assert all(worker.code == 0 for worker in one.workers)
    really = [record for _, record in one.run.journals()]
    assert len(really) == REQUESTS
    assert {number for number, _ in one.run.journals()} == {0, 1, 2}
    gaps = np.concatenate([record.gaps_ns for record in really]) / 1e9
    metrics = one.master.summary["metrics"]
    assert metrics["itl_s"]["count"] == len(gaps) == REQUESTS * (TOKENS - 1)
    for level, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert metrics["itl_s"][level] == pytest.approx(float(np.quantile(gaps, share)), rel=1e-9)
    ttfts = [(record.first_ns - record.sent_ns) / 1e9 for record in really if record.first_ns is not None]
    assert metrics["ttft_s"]["p50"] == pytest.approx(float(np.quantile(ttfts, 0.5)), rel=1e-9)
    workers = one.master.meta["workers"].values()
    assert all(worker["clock"] == "wire" for worker in workers)


def test_delay_and_loss_show_as_the_network_has_them(played: Play) -> None:
    near, one = played(plain), played(far)
    _check_accounts(one)
    requests = one.master.summary["requests"]
    # TCP makes good what the wire loses: nothing fails, and the seed makes both runs send the same.
    assert (requests["ok"], requests["failed"]) == (REQUESTS, 0)
    assert near.master.meta["sent"]["bodies_sum"] == one.master.meta["sent"]["bodies_sum"]
    medians = [run.master.summary["metrics"]["ttft_s"]["p50"] for run in (near, one)]
    assert DELAY_S * 0.9 < medians[1] - medians[0] < DELAY_S * 1.6
    assert min(min(record.gaps_ns) for record in one.master.records) >= 0
    # A packet lost holds back all that came after it: the longest gap is a retransmission's, not a decoding step's.
    assert one.master.summary["metrics"]["itl_s"]["max"] > 2 * near.master.summary["metrics"]["itl_s"]["p99"]


def test_a_killed_worker_loses_its_last_second_and_its_journal_has_it(played: Play) -> None:
    one = played(killed)
    missing = _check_accounts(one, lost_after_ns=one.at_ns - round((REPORT_S + SLACK_S) * 1e9))
    dead = _name(one, 1)
    assert {record.worker for record in missing} <= {dead}
    assert one.master.code == 4, one.master.err
    reasons = " ".join(one.master.summary["quality"]["reasons"])
    assert f"{dead} " in reasons
    assert "python -m exporters recover" in reasons
    assert one.master.meta["workers"][dead]["lost"]
    assert f"{dead} " in one.master.out
    # The others took on what it would have sent.
    assert any(record.sent_ns > one.at_ns for record in one.master.records)

    one.run.gather_journals(one.run.masters_copy)
    whole = recover(one.run.masters_copy)
    assert len(whole.columns) == len(list(one.run.journals()))


def test_a_worker_that_was_cut_off_and_is_back_has_lost_nothing(played: Play) -> None:
    one = played(cut_off)
    _check_accounts(one)
    mine = [record for record in one.master.records if record.worker == _name(one, 0)]
    assert max(record.sent_ns for record in mine) > one.at_ns + 12 * 10**9, "it took part again"
    assert one.master.code in (0, 1, 4), one.master.err
    assert all(worker.code == 0 for worker in one.workers), "they end with the run"
    assert max(record.end_ns - record.sent_ns for record in one.master.records) > 8e9, "a stream waited the cut out"


def test_a_master_that_comes_anew_has_its_workers_again(played: Play) -> None:
    one = played(restarted)
    assert one.master.code in (0, 4), one.master.err
    assert all(worker.code == 0 for worker in one.workers)
    kept = one.master.records
    assert len(kept) == one.master.summary["requests"]["ok"] == REQUESTS
    assert min(record.sent_ns for record in kept) > one.at_ns
    assert sorted(record.index for record in kept) == list(range(REQUESTS))
    assert one.master.err.count("is told to begin anew") >= 2

    # What the first one had is where it was, and whole once the journals are there.
    assert one.earlier is not None
    directory = one.earlier.directory
    before = {record.identity for record in one.earlier.records}
    one.run.gather_journals(directory)
    whole = recover(directory)
    assert whole.meta["broken_off"]
    records = Ended(0, "", "", directory).records
    assert before <= {record.identity for record in records}
    assert not {_identities([record])[0] for record in records} & set(_identities(kept))
    assert len(records) + len(kept) == len(list(one.run.journals()))


def test_a_slow_worker_is_told_of(played: Play) -> None:
    one = played(slow)
    _check_accounts(one)
    assert one.master.code == 4, one.master.out
    assert one.master.meta["workers"][_name(one, 0)]["loop_lag_p99_s"] > 0.1
    assert one.master.summary["quality"]["reasons"]


def test_a_skewed_clock_is_set_right(played: Play) -> None:
    one = played(skewed)
    _check_accounts(one)
    requests = one.master.summary["requests"]
    assert (requests["ok"], requests["failed"]) == (100, 0), one.master.err
    wrong = _name(one, 0)
    offset = one.master.meta["workers"][wrong]["clock_offset_s"]
    assert offset == pytest.approx(30, abs=1.5)
    assert any("wall clock is" in note and wrong in note for note in one.master.meta["notes"])
    # All on one line of time: 100 requests at 25/s take about four seconds, whoever sent them.
    sent = {name: [r.sent_ns for r in one.master.records if r.worker == name] for name in ("worker-0", "worker-1")}
    assert abs(min(sent["worker-0"]) - min(sent["worker-1"])) < 4e9, "whichever of them is wrong"
    assert max(map(max, sent.values())) - min(map(min, sent.values())) < 12e9
    assert one.master.summary["metrics"]["send_lag_s"]["p50"] < 1


def test_another_version_is_refused_in_one_line(played: Play) -> None:
    one = played(other_version)
    assert one.master.code == 2
    told = [line for line in one.master.err.splitlines() if line.startswith("locust: ")]
    assert len(told) == 1
    assert "runs Tailgate 0.0.9, this master" in told[0]
    assert told[0].endswith("; install the same one on both")
    assert "Traceback" not in one.master.err
    assert all(worker.code == 0 for worker in one.workers)
    assert list(one.run.journals()) == []
