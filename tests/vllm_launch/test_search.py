"""The search: right where the truth is known, sure of itself as often as it says, and real from end to end once."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tailgate.exits import BadInput
from tailgate.objectives import parse_objectives
from tests.vllm_launch.commands import launch
from vllm_launch.experiments.state import State
from vllm_launch.search.file import load_search
from vllm_launch.search.rate import Crossing, Judged, Probe, RateSearch, probe_of
from vllm_launch.search.run import identity, run_search
from vllm_launch.search.screening import Screen, predict
from vllm_launch.search.virtual_run import VirtualLoad, virtual_run
from vllm_launch.simulated.settings import EngineSettings
from workloads import load_workload

# Few requests a second fill the engine, so that virtual time is quick.
LONG = "name: long\nclasses:\n  long: {input-tokens: 4000, output-tokens: 200}\n"
ONE = """\
kind: search
engine: simulated
baseline: h100-llama-8b-baseline
workload: long.yaml
slo: ttft_p95<2s
run-time: 4s
warm-up: 1s
workers: 1
most-runs: 2
start-rate: 2
"""
SPACE = """\
kind: search
engine: simulated
baseline: h100-llama-8b-baseline
flags: {max-num-seqs: [4, 8, 1024]}
workload: long.yaml
slo: ttft_p95<2s
run-time: 40s
warm-up: 5s
tolerance: 0.1
measure: 1
"""


def noisy(limit: float, steepness: float, noise: float, seed: int) -> RateSearch:
    """A search for a limit that is known: the margin bends upwards beyond it, every probe is off by some noise."""
    rng = np.random.default_rng(seed)

    def measure(rate: float, number: int) -> Probe:
        distance = math.log(rate / limit)
        margin = steepness * distance * (1.5 if distance > 0 else 1.0)
        return Probe(rate, {"ttft_p95<1s": Judged(margin + float(rng.normal(0, noise)), noise, None)})

    search = RateSearch(1.0, tolerance=0.03, most_runs=40)
    search.run(measure)
    return search


@pytest.mark.parametrize("limit", [0.02, 1.0, 37.0, 900.0])
def test_a_known_limit_is_found_from_far_off_and_within_the_tolerance(limit: float) -> None:
    found = [noisy(limit, 3.0, 0.05, seed) for seed in range(20)]
    misses = [abs(search.best / limit - 1) for search in found]
    assert np.quantile(misses, 0.9) < 0.03
    assert np.mean([len(search.probes) for search in found]) < 16


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    held = []
    for seed in range(150):
        crossing = noisy(10.0, 3.0, 0.12, seed).crossing
        assert crossing is not None
        held.append(crossing.low <= 10.0 <= crossing.high)
    assert np.mean(held) > 0.88


def test_a_margin_that_hardly_depends_on_the_rate_has_no_crossing_and_no_overflow() -> None:
    search = RateSearch(1.0, tolerance=0.03, most_runs=40)
    margins = (-0.1, 0.1, -0.1001, 0.1001, 0.1, -0.0999)
    for number, margin in enumerate(margins):
        search.probes.append(Probe(10 * 1.001 ** (number % 3), {"x": Judged(margin, 0.05, None)}))
    assert search.crossing is None or search.crossing.high < 1e6
    assert noisy(10.0, 0.001, 0.3, 1).best >= 0


def test_one_unlucky_probe_does_not_decide() -> None:
    unlucky = iter([False, False, True])

    def measure(rate: float, number: int) -> Probe:
        margin = 3 * math.log(rate / 10)
        if next(unlucky, False):
            margin = 0.5
        return Probe(rate, {"x": Judged(margin, 0.05, None)})

    search = RateSearch(1.0, tolerance=0.03, most_runs=40)
    search.run(measure)
    assert search.best == pytest.approx(10.0, rel=0.06)


def test_an_engine_that_falls_behind_carries_no_load_whatever_its_gaps() -> None:
    """With two sequences at a time ITL never suffers: only that requests pile up tells of the limit."""
    settings, _ = EngineSettings.from_flags("llama-3.1-8b", "h100-sxm", {"max-num-seqs": 2})
    workload, objectives = load_workload("chat-short"), parse_objectives("itl_p95<100ms")

    def verdict(rate: float) -> tuple[str, str]:
        run = virtual_run(settings, workload, VirtualLoad(None, rate, 60.0, 10.0, 1), slo=None, label="x")
        probe = probe_of(run, rate, objectives)
        return probe.verdict, probe.decided_by

    assert verdict(1.0)[0] == "met"
    assert verdict(50.0) == ("missed", "done>90%")


def test_the_best_of_a_flag_space_is_found_with_few_real_runs(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SPACE)
    (tmp_path / "long.yaml").write_text(LONG)
    search = load_search(str(tmp_path / "s.yaml"))
    assert [arm.name for arm in search.arms] == ["baseline", "max-num-seqs-4", "max-num-seqs-8"], "1024 is the default"
    said: list[str] = []
    result = run_search(search, tmp_path / "results", virtual=True, say=said.append)
    found = result.to_dict()
    rates = {c["config"]: c["predicted_requests_per_s"] for c in found["configs"]}
    assert rates["max-num-seqs-4"] < rates["max-num-seqs-8"] < rates["baseline"]
    assert found["best"] == "baseline"
    assert found["configs"][0]["prediction_held"] is True, "the same engine was predicted and measured"
    measured = [c["config"] for c in found["configs"] if c["probes"]]
    assert measured == ["baseline"], "it is the best predicted, and the baseline"
    assert found["real_runs"] == 1 + len(found["configs"][0]["probes"])
    assert found["saved_runs"] == 2 * len(found["configs"][0]["probes"]) - 1
    (directory,) = (tmp_path / "results").iterdir()
    assert json.loads((directory / "search.json").read_text()) == json.loads(json.dumps(found))
    assert "SIMULATED" in result.text()


def test_a_search_from_end_to_end_and_again_without_measuring_twice(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(LONG)
    (tmp_path / "s.yaml").write_text(ONE)
    ended = launch("search", "s.yaml", "--results", "results", "--json", cwd=tmp_path)
    found = ended.json
    assert ended.code in (0, 3, 4), ended
    (config,) = found["configs"]
    assert found["real_runs"] == len(config["probes"]) == 2
    assert config["predicted_requests_per_s"] is None, "where to begin was said"
    (directory,) = (tmp_path / "results").iterdir()
    for probe in config["probes"]:
        meta = json.loads((directory / probe["run"] / "run.json").read_text())
        assert meta["arrival"]["rate"] == pytest.approx(probe["rate"])
        assert meta["slo"] == "ttft_p95<2s"
    again = launch("search", "s.yaml", "--resume", directory, "--json", cwd=tmp_path)
    assert "[1/1]" not in again.err
    assert again.json["configs"][0]["probes"] == config["probes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--results", "/dev/null/x"], "Not a directory; name a directory that can be written with --results"),
        (["--resume", "nowhere"], "nowhere/experiment.json: No such file or directory; name the directory of one"),
    ],
)
def test_a_directory_that_cannot_be_is_refused_in_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "long.yaml").write_text(LONG)
    (tmp_path / "s.yaml").write_text(ONE)
    ended = launch("search", "s.yaml", "--virtual", *words, "--json", cwd=tmp_path)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert said in ended.err
    assert not (tmp_path / "nowhere").exists()


def test_runs_of_another_plan_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(LONG)
    (tmp_path / "s.yaml").write_text(ONE)
    search = load_search(str(tmp_path / "s.yaml"))
    directory = State.open(search.path, identity(search, virtual=True), tmp_path / "results", None).directory
    (tmp_path / "s.yaml").write_text(ONE.replace("run-time: 4s", "run-time: 5s"))
    with pytest.raises(BadInput, match=r"holds one whose duration differs from what .*s\.yaml says now"):
        run_search(load_search(str(tmp_path / "s.yaml")), tmp_path, virtual=True, resume=directory)


def test_a_limit_at_a_cliff_is_found_though_noise_hides_it_from_near() -> None:
    """One gap in a hundred meets a document from some rate on: ITL p99 jumps by a factor of ten there."""
    search = load_search("search-demo")
    found = predict(search, Screen(), search.arms[0].config, 1.0)
    assert found.crossing is not None
    assert found.crossing.half_width < 0.5
    assert found.crossing.low < found.bracket[0] < found.crossing.high


def test_where_no_reach_tells_well_the_one_that_tells_best_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {1: Crossing(10, 5, 20), 2: Crossing(10, 6, 18), 4: Crossing(11, 3, 30)}
    monkeypatch.setattr(RateSearch, "_told", lambda self, widened=1: told.get(widened))
    assert RateSearch(1.0, tolerance=0.1).crossing == told[2]


def test_a_slo_that_no_rate_meets_is_called_that(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(LONG)
    (tmp_path / "s.yaml").write_text(SPACE.replace("<2s", "<1ms"))
    with pytest.raises(BadInput, match="in virtual time h100-llama-8b-baseline meets the slo at no rate; loosen"):
        run_search(load_search(str(tmp_path / "s.yaml")), tmp_path, virtual=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ONE.replace("slo: ttft_p95<2s\n", ""), "a search needs an 'slo' to meet, like ttft_p95<1s,itl_p95<100ms"),
        (ONE.replace("<2s", "<2"), "'ttft_p95<2' names no unit"),
        (ONE.replace("ttft_p95", "ttft"), "'ttft<2s' bounds no quantile of the run; write it like ttft_p95<2s"),
        (ONE.replace("kind: search", "kind: sweep"), "this is no search; write 'kind: search'"),
        (ONE + "flags: {max-num-sequences: [1]}\n", "flags.max-num-sequences: unknown to vLLM 0.32; did you mean"),
        (ONE.replace("long.yaml", "chat-shrt"), "unknown workload 'chat-shrt'; did you mean 'chat-short'?"),
    ],
)
def test_a_mistake_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    ended = launch("search", "s.yaml", "--dry-run", cwd=tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1


def test_the_plan_says_how_many_runs_it_takes_at_most() -> None:
    ended = launch("search", "search-demo", "--dry-run", "--json")
    planned = ended.json
    assert planned["simulated"] is True
    assert planned["most_real_runs"] == 2 * 8 + 1
    assert len(planned["configs"]) == 4
