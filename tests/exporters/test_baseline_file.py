"""A baseline's file: its size, its schemas old and new, and results of `vllm bench serve` in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters import baseline
from exporters.baseline_file import BASELINE_SCHEMA
from exporters.compare import compare
from exporters.formats import vllm_bench
from tailgate.exits import BadInput
from tests.support.runs import queueing_records, record, store

DATA = Path(__file__).parent / "data"


def test_a_file_of_the_older_schema_is_read_correctly(tmp_path: Path) -> None:
    """The file was written by the suite when schema 1 was its newest; the run it was made of is made anew here."""
    records = queueing_records(1, seconds=30, rate=12.0, tokens=6, load=0.4)
    about: dict[str, Any] = {"seconds": 30.0, "slo": "ttft<100ms", "arrival": {"kind": "poisson", "rate": 12.0}}
    run = store(tmp_path / "again", records, label="old", **about)
    old, new = baseline.load(DATA / "baseline-schema-1.json"), baseline.load(baseline.save([run], "new", tmp_path))
    slower = store(
        tmp_path / "slower", queueing_records(1, seconds=30, rate=12.0, tokens=6, load=0.4, slower=1.5), **about
    )
    for one, other in zip(compare(old, [slower]).metrics, compare(new, [slower]).metrics, strict=True):
        assert (one.name, one.verdict, one.base) == (other.name, other.verdict, other.base)
        assert (one.low, one.high) == (other.low, other.high)
    for metric, counts in new[0].blocks.latencies.items():
        assert np.array_equal(counts.counts, old[0].blocks.latencies[metric].counts)
        assert np.array_equal(counts.buckets, old[0].blocks.latencies[metric].buckets)
    assert json.loads((tmp_path / "new.json").read_text())["schema"] == BASELINE_SCHEMA


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"schema": "tailgate.baseline/3"},
            "schema tailgate.baseline/3 is newer than this suite, which reads up to tailgate.baseline/2",
        ),
        ({"schema": "tailgate.summary/1"}, "no baseline (schema 'tailgate.summary/1'); save one with"),
        ({"schema": None}, "no baseline (schema None)"),
        ({"schema": "tailgate.baseline/0"}, "no baseline (schema 'tailgate.baseline/0')"),
        ({"runs": [{}]}, "damaged baseline (ValidationError: Object missing required field `meta`); save it anew"),
        ({"runs": []}, "damaged baseline (no run in it)"),
        ({"runs": 5}, "damaged baseline (TypeError: "),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = baseline.save([store(tmp_path / "r", queueing_records(1))], "b", tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BadInput) as caught:
        baseline.load(path)
    assert str(caught.value).startswith(f"{path}: {said}")
    assert "\n" not in str(caught.value)
    assert baseline.listing(tmp_path)[0]["problem"] == str(caught.value)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("meta", "arrival", {"kind": "poisson", "rate": "x"}),
        ("summary", "valid", "perhaps"),
        ("summary", "metrics", "x"),
        ("summary", "requests", {}),
        ("blocks", "seconds", 0),
        ("blocks", "good", [1.0]),
        ("blocks", "latencies", {}),
        ("blocks", "exact", {}),
    ],
)
def test_whatever_part_was_edited_badly_is_told_on_reading(tmp_path: Path, part: str, key: str, value: object) -> None:
    path = baseline.save([store(tmp_path / "r", queueing_records(1))], "b", tmp_path)
    content = json.loads(path.read_text())
    content["runs"][0][part][key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"b.json: damaged baseline \(.*\); save it anew$"):
        baseline.load(path)


@pytest.mark.parametrize("damage", ["cut", "swapped"])
def test_a_damaged_histogram_is_one_line(tmp_path: Path, damage: str) -> None:
    path = baseline.save([store(tmp_path / "r", queueing_records(1))], "b", tmp_path)
    content = json.loads(path.read_text())
    latencies = content["runs"][0]["blocks"]["latencies"]
    latencies["ttft"] = latencies["ttft"][:40] if damage == "cut" else "no histogram at all"
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match="damaged baseline"):
        baseline.load(path)


def test_a_busy_hour_of_several_classes_fits_into_git(tmp_path: Path) -> None:
    """Latencies spread over four decades, the worst there is for the packing, and four repeats in one file."""
    rng = np.random.default_rng(0)
    runs = []
    for k in range(4):
        records = [
            record(
                i,
                at_s=float(rng.uniform(0, 600)),
                ttft_s=float(rng.lognormal(-2, 1.5)),
                gaps_s=tuple(rng.lognormal(-4.5, 1.2, 40)),
                request_class=f"class-{i % 6}",
            )
            for i in range(3000)
        ]
        runs.append(store(tmp_path / f"r{k}", records, seconds=600.0, seed=k, arrival={"kind": "closed"}))
    path = baseline.save(runs, "large", tmp_path)
    assert path.stat().st_size < 300_000
    kept = baseline.load(path)
    assert (
        kept[0].summary["classes"]["class-1"]["metrics"]["ttft_s"]
        == runs[0].summary["classes"]["class-1"]["metrics"]["ttft_s"]
    )


def test_a_result_of_vllm_bench_serves_as_a_baseline(tmp_path: Path) -> None:
    about: dict[str, Any] = {
        "clock": "wire",
        "seed": 4,
        "arrival": {"kind": "poisson", "rate": 20.0, "burstiness": 1.0},
    }
    run = store(tmp_path / "ours", queueing_records(1), **about)
    file = tmp_path / "bench.json"
    file.write_text(vllm_bench.dump(run))
    kept = baseline.load(file)
    same = compare(kept, [run])
    assert not same.refused
    assert same.metric("ttft_p95").ratio == pytest.approx(1.0, rel=1e-6)
    assert any("import from vllm bench serve" in note for note in same.notes)
    slow = store(tmp_path / "slow", queueing_records(2, slower=3.0), **about)
    assert compare(kept, [slow]).verdict == "worse"
    longer = store(tmp_path / "longer", queueing_records(2, tokens=24), **about)
    assert compare(kept, [longer]).refusals == ["another workload: 16 output tokens a request against 24"]
    faster = store(tmp_path / "faster", queueing_records(2), **about | {"arrival": {"kind": "poisson", "rate": 30.0}})
    assert "another arrival: poisson rate=20.0 against poisson rate=30.0" in compare(kept, [faster]).refusals
    saved = baseline.load(baseline.save(kept, "from-bench", tmp_path))
    assert not compare(saved, [run]).refused
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "itls"}))
    with pytest.raises(BadInput, match="holds no itls; it was saved without details"):
        baseline.load(file)
