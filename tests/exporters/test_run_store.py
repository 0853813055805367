"""Nothing measured is lost: appended as it goes, torn or doubled lines, an earlier run, a killed process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.record import decode_record, decode_records, encode_record
from exporters.run_store import Journal, Run, RunStore, append_engine_sample, recover
from tailgate.exits import BadInput
from tests.support.runs import failed, meta, queueing_records, record, store


@given(
    st.lists(st.integers(0, 10**12), max_size=50),
    st.text(max_size=50),
    st.one_of(st.none(), st.integers(0, 10**9)),
)
def test_a_record_survives_its_line(gaps: list[int], text: str, tokens: int | None) -> None:
    made = record(7, worker=text, error_message=text, gaps_ns=gaps, output_tokens=tokens, gap_tokens=[1] * len(gaps))
    line = encode_record(made)
    assert line.count(b"\n") == 1
    assert decode_record(line) == made


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    records = [*queueing_records(1, seconds=10), failed(900)]
    run = store(tmp_path / "run", records, label="mine")
    assert list(decode_records(run.path / "requests.jsonl")) == records
    assert run.facts.label == "mine"
    assert json.loads((run.path / "summary.json").read_text())["requests"] == run.summary["requests"]


def test_records_reach_the_disk_with_each_append(tmp_path: Path) -> None:
    run = RunStore.create(tmp_path / "run", meta())
    run.append([record(0), record(1)])
    assert len((tmp_path / "run" / "requests.jsonl").read_bytes().splitlines()) == 2
    run.append_engine({"time_ns": 1, "running": 3})
    append_engine_sample(tmp_path / "run", {"time_ns": 2, "running": 4})
    run.update_meta(note="late")
    run.finish()
    loaded = Run.load(tmp_path / "run")
    assert [s["running"] for s in loaded.engine] == [3, 4]
    assert loaded.meta["note"] == "late"


def test_a_run_that_goes_on_is_not_moved_away_from_under_its_writer(tmp_path: Path) -> None:
    going_on = RunStore.create(tmp_path / "run", meta())
    with pytest.raises(BadInput, match="a run is still being written here; name another directory with --results"):
        RunStore.create(tmp_path / "run", meta())
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]
    going_on.finish()
    assert RunStore.create(tmp_path / "run", meta()).earlier is not None


def test_an_earlier_run_is_moved_aside_not_overwritten(tmp_path: Path) -> None:
    store(tmp_path / "run", [record(0)], label="first", started_utc="2026-11-29T10:00:00Z")
    for number, expected in enumerate(("run.20261129T100000Z", "run.20261129T100000Z-2")):
        again = RunStore.create(tmp_path / "run", meta(label=f"later {number}", started_utc="2026-11-29T10:00:00Z"))
        assert again.earlier == tmp_path / expected
        again.finish()
    assert Run.load(tmp_path / "run.20261129T100000Z").facts.label == "first"
    assert Run.load(tmp_path / "run.20261129T100000Z-2").facts.label == "later 0"
    assert Run.load(tmp_path / "run").facts.label == "later 1"


def test_a_torn_last_line_costs_that_line_only(tmp_path: Path) -> None:
    run = store(tmp_path / "run", [record(i) for i in range(30)])
    path = run.path / "requests.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    torn = Run.load(run.path)
    assert len(torn.columns) == 29
    assert torn.unreadable_lines == [30]
    with RunStore(run.path, dict(run.meta), None) as more:
        more.append([record(77)])
    assert [r.index for r in decode_records(path)] == [*range(29), 77]


def test_recovering_takes_each_record_once_from_wherever_it_is(tmp_path: Path) -> None:
    run = RunStore.create(tmp_path / "run", meta())
    one, other = Journal(tmp_path / "run", "w1"), Journal(tmp_path / "run", "w 2/../x")
    mine = [record(i, worker="w1", sequence=i) for i in range(40)]
    theirs = [record(i, worker="w2", sequence=i) for i in range(30)]
    for r in mine:
        one.append(r)
    for r in theirs:
        other.append(r)
    run.append(mine[:25])
    run.close()
    (tmp_path / "run" / "requests.jsonl").open("ab").write(encode_record(mine[25])[:50])
    recovered = recover(tmp_path / "run")
    assert recovered.summary["requests"]["sent"] == 70
    assert recovered.meta["recovered"] is True
    assert recovered.meta["seed"] == 1
    again = recover(tmp_path / "run")
    assert again.summary["requests"]["sent"] == 70
    assert all(p.parent == tmp_path / "run" / "journals" for p in (one.path, other.path))


def test_a_run_that_was_broken_off_is_measured_from_its_warm_up_on_and_says_so(tmp_path: Path) -> None:
    start_ns = meta()["window"]["start_ns"]
    run = RunStore.create(tmp_path / "run", meta() | {"window": {"start_ns": start_ns, "end_ns": None}})
    records = [record(i, at_s=i * 0.1, sequence=i) for i in range(100)]
    run.append(records)
    run.close()
    for _ in range(2):
        recovered = recover(tmp_path / "run")
        assert recovered.window.start_ns == start_ns
        assert recovered.window.end_ns == max(r.end_ns for r in records)
        assert recovered.summary["valid"] is False
        assert any(reason.startswith("the run was broken off") for reason in recovered.summary["quality"]["reasons"])


def test_a_run_that_ended_is_not_called_broken_off(tmp_path: Path) -> None:
    run = store(tmp_path / "run", [record(i) for i in range(30)])
    assert "broken_off" not in recover(run.path).meta


def test_a_run_still_being_written_is_left_alone(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", meta()) as run:
        run.append([record(1)])
        with pytest.raises(BadInput, match=r"a run is still being written here; wait for its end, or end it"):
            recover(tmp_path / "run")
        run.append([record(2)])
    assert len(recover(tmp_path / "run").columns) == 2


def test_records_without_a_sequence_are_told_apart_by_what_they_are(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", meta()) as run:
        run.append([record(i, at_s=i, sequence=None, attempt=a) for i in range(5) for a in (0, 1)] * 2)
    assert len(recover(tmp_path / "run").columns) == 10


def test_a_killed_process_loses_nothing_that_it_appended(tmp_path: Path) -> None:
    code = (
        "import sys, time; from exporters.run_store import Journal; from tests.support.runs import record\n"
        "journal = Journal(sys.argv[1], 'w')\n"
        "for i in range(500): journal.append(record(i))\n"
        "print('written', flush=True); time.sleep(60)\n"
    )
    root = Path(__file__).parents[2]
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=root)
    assert child.stdout is not None
    assert child.stdout.readline() == b"written\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert recover(tmp_path).summary["requests"]["sent"] == 500


def test_mistakes_are_named_with_their_mend(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"run.json: No such file or directory; a run directory holds run.json and"):
        Run.load(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(BadInput, match=r"run.json: not valid JSON"):
        Run.load(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(
        BadInput, match=r"no requests.jsonl; make it from the journals with: python -m exporters recover"
    ):
        Run.load(tmp_path)
    with pytest.raises(BadInput, match=r"neither requests.jsonl nor journals"):
        recover(tmp_path)
    with pytest.raises(BadInput, match="name another directory with --results"):
        RunStore.create(tmp_path / "run.json" / "x", {})
