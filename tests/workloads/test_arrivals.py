"""One schedule from the seed: the right process, and the same numbers for every reader."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tailgate.exits import BadInput
from workloads.arrivals import ArrivalSpec, parse_stages, parse_wave
from workloads.schedule import make_schedule


def gaps(spec: ArrivalSpec, count: int, seed: int = 1) -> np.ndarray:
    schedule = make_schedule(spec, seed)
    return np.diff([0.0] + [schedule.at(index) for index in range(count)])


@pytest.mark.parametrize("rate", [0.5, 50, 500])
def test_poisson_gaps_are_exponential(rate: float) -> None:
    found = gaps(ArrivalSpec(kind="poisson", request_rate=rate), 30_000)
    assert stats.kstest(found, stats.expon(scale=1 / rate).cdf).pvalue > 0.01
    assert 1 / found.mean() == pytest.approx(rate, rel=0.02)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.02


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_asked_shape(burstiness: float) -> None:
    found = gaps(ArrivalSpec(kind="gamma", request_rate=20, burstiness=burstiness), 20_000)
    assert stats.kstest(found, stats.gamma(burstiness, scale=1 / (20 * burstiness)).cdf).pvalue > 0.01
    assert found.std() / found.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_constant_is_evenly_spaced_without_drift() -> None:
    schedule = make_schedule(ArrivalSpec(kind="constant", request_rate=7), 1)
    assert schedule.at(0) == 0
    assert schedule.at(7_000_000) == 1_000_000.0


@pytest.mark.parametrize(
    "spec", [ArrivalSpec(kind="poisson", request_rate=9), ArrivalSpec(kind="gamma", request_rate=9)]
)
def test_any_reader_sees_the_same_times(spec: ArrivalSpec) -> None:
    count = 20_000
    schedule = make_schedule(spec, 3)
    whole = [schedule.at(index) for index in range(count)]
    assert whole == sorted(whole)
    workers = [make_schedule(spec, 3) for _ in range(5)]
    assert whole == [workers[index % 5].at(index) for index in range(count)]
    assert make_schedule(spec, 3).at(count - 1) == whole[-1], "straight to the end"
    backwards = make_schedule(spec, 3)
    assert [backwards.at(index) for index in range(count - 1, -1, -997)] == whole[::-1][::997]


def test_seeds_give_unrelated_schedules() -> None:
    spec = ArrivalSpec(kind="poisson", request_rate=10)
    one, two = gaps(spec, 5000, seed=1), gaps(spec, 5000, seed=2)
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "poison"}, "--arrival: unknown kind 'poison'; choose one of closed, constant, poisson, gamma, trace"),
        ({"kind": "gamma"}, "--arrival gamma needs a rate; add --request-rate with the fleet's requests per second"),
        (
            {"request_rate": -1.0},
            "--request-rate: -1 is not a rate; give requests per second, above 0 (to 1,000,000)",
        ),
        (
            {"request_rate": float("nan")},
            "--request-rate: nan is not a rate; give requests per second, above 0 (to 1,000,000)",
        ),
        (
            {"kind": "gamma", "request_rate": 1.0, "burstiness": 0.0},
            "--burstiness: 0 is out of range; give a number above 0; 1 is poisson",
        ),
        (
            {"request_rate": 1.0, "burstiness": 0.5},
            "--burstiness does not go with poisson arrivals; choose --arrival gamma",
        ),
        ({"burstiness": 0.5}, "--burstiness does not go with closed arrivals; choose --arrival gamma"),
        (
            {"kind": "closed", "request_rate": 1.0},
            "--request-rate does not go with closed arrivals; choose --arrival poisson, say",
        ),
    ],
)
def test_overrides_that_do_not_fit_are_named(keys: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        ArrivalSpec().overridden(**keys)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_rate_alone_means_poisson() -> None:
    assert ArrivalSpec(users=4).overridden(request_rate=3).kind == "poisson"
    assert ArrivalSpec(kind="constant", request_rate=1).overridden(request_rate=3).kind == "constant"
    assert ArrivalSpec(kind="poisson", request_rate=1).overridden(kind="closed").request_rate is None


def test_a_workloads_burstiness_goes_with_its_gamma() -> None:
    own = ArrivalSpec(kind="gamma", request_rate=1, burstiness=0.5)
    assert own.overridden(request_rate=3).burstiness == 0.5
    assert own.overridden(kind="poisson").burstiness == 1
    assert own.overridden(burstiness=0.25).burstiness == 0.25


@pytest.mark.parametrize("text", ["99999999999s:5", "60s:9999999", "60s", "60s:-1", ","])
def test_stages_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadInput, match=r"^--rate-stages: .*; write LENGTH:RATE"):
        parse_stages(text)


@pytest.mark.parametrize("text", ["99999999999s:50%", "0s:50%", "24h:101%", "24h"])
def test_waves_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadInput, match=r"^--rate-wave: cannot read"):
        parse_wave(text)
