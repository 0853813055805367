"""What belongs beside a comparison without standing against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exporters import baseline
from exporters.compare import compare
from exporters.formats import vllm_bench
from exporters.report import write_markdown, write_report
from tests.support.runs import queueing_records, store

SAME_LAUNCH = "both sides ran one and the same launch config: whatever differs is chance"
OTHER_SEEDS = (
    "the sides sent other requests of the same kind, since their seeds differ; one --seed for both tells smaller "
    "differences apart"
)
ITSELF = "the same run stands on both sides: what is compared with itself cannot differ"
OTHER_OBJECTIVES = "goodput is left out: the runs were held to different objectives"


def test_one_launch_config_on_both_sides_is_compared_and_said_everywhere(tmp_path: Path) -> None:
    base, again = (store(tmp_path / name, queueing_records(i)) for i, name in enumerate(("a", "b")))
    found = compare([base], [again])
    assert (found.notes, int(found.exit_code)) == ([SAME_LAUNCH], 0)
    assert f"Note: {SAME_LAUNCH}." in found.text()
    assert found.to_dict()["notes"] == [SAME_LAUNCH]
    for write, path in ((write_report, tmp_path / "r.html"), (write_markdown, tmp_path / "r.md")):
        write(path, [base], [again], found)
        assert f"Note: {SAME_LAUNCH}." in path.read_text()


def test_seeds_that_nobody_asked_for_may_differ(tmp_path: Path) -> None:
    base = store(tmp_path / "a", queueing_records(1), seed=11, seed_drawn=True)
    other = store(tmp_path / "b", queueing_records(2), seed=12, seed_drawn=True, launch={"args": {"max-num-seqs": 8}})
    found = compare([base], [other])
    assert not found.refused
    assert found.notes == [OTHER_SEEDS]


def test_a_run_beside_itself_is_told_even_from_its_baseline(tmp_path: Path) -> None:
    run = store(tmp_path / "a", queueing_records(1), launch=None, run_id="5c1f")
    kept = baseline.load(baseline.save([run], "kept", tmp_path))
    for base in ([run], kept):
        assert compare(base, [run]).notes == [ITSELF]
    assert compare([run], [store(tmp_path / "b", queueing_records(1), launch=None, run_id="77aa")]).notes == []


def test_nothing_is_said_of_seeds_that_an_import_does_not_tell(tmp_path: Path) -> None:
    run = store(tmp_path / "a", queueing_records(1), arrival={"kind": "closed"})
    (tmp_path / "bench.json").write_text(vllm_bench.dump(run))
    notes = compare(baseline.load(tmp_path / "bench.json"), [run]).notes
    assert OTHER_SEEDS not in notes
    assert any("import from vllm bench serve" in note for note in notes)


def test_repeats_hold_the_same_seeds_in_any_order(tmp_path: Path) -> None:
    base = [store(tmp_path / f"a{seed}", queueing_records(seed), seed=seed) for seed in (1, 2)]
    other = [store(tmp_path / f"b{seed}", queueing_records(seed), seed=seed, launch=None) for seed in (2, 1)]
    found = compare(base, other)
    assert (found.refused, found.notes) == (False, [])


def test_goodput_under_another_objective_is_no_comparison(tmp_path: Path) -> None:
    base = store(tmp_path / "a", queueing_records(1), slo="ttft<200ms", launch=None)
    other = store(tmp_path / "b", queueing_records(1), slo="ttft<500ms", launch=None)
    found = compare([base], [other])
    assert found.notes == [OTHER_OBJECTIVES]
    assert "goodput" not in {m.name for m in found.metrics}
    assert "goodput" in {m.name for m in compare([base], [base]).metrics}


def test_engines_that_say_they_are_the_same_are_refused(tmp_path: Path) -> None:
    told = {"max-num-seqs": 256, "max-num-batched-tokens": 2048}

    def launched(**changes: Any) -> dict[str, Any]:
        return {"engine": "vllm", "name": "n", "args": {}, "effective": told, **changes}

    one = store(tmp_path / "a", queueing_records(1), launch=launched())
    same = store(tmp_path / "b", queueing_records(1), launch=launched(name="m", args={"max-num-seqs": 256}))
    found = compare([one], [same])
    assert [reason for reason in found.refusals if "resolve to the same engine config (2 settings" in reason]
    assert found.exit_code == 4
    assert not compare([one], [same], force=True).refused
    again = store(tmp_path / "again", queueing_records(2), launch=launched())
    assert not compare([one], [again]).refused, "one launch on both sides is a check for drift"
    for name, other in {
        "flag": launched(effective={**told, "max-num-seqs": 128}),
        "address": launched(url="http://gateway"),
        "silent": launched(effective={}),
    }.items():
        run = store(tmp_path / name, queueing_records(1), launch=other)
        assert not compare([one], [run]).refused, name
    newer = {"name": "vllm", "version": "0.33.0", "simulated": False}
    assert not compare([one], [store(tmp_path / "c", queueing_records(1), launch=launched(), engine=newer)]).refused
