"""A rate that ramps, steps, swings or is changed: its integral, the inverse, and requests that arrive accordingly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tailgate.exits import BadInput
from workloads import rates
from workloads.arrivals import ArrivalSpec, Stage, Wave, parse_stages, parse_wave
from workloads.schedule import Schedule, make_schedule

CURVES = {
    "flat": rates.flat(20),
    "ramp": rates.stages(0, [(10, 40), (5, 10)]),
    "steps": rates.stages(5, [(0, 20), (4, 20), (0, 0), (3, 0), (0, 10)]),
    "down to rest": rates.stages(30, [(10, 0)]),
    "wave": rates.wave(20, 1.0, 8),
}


@pytest.mark.parametrize("name", CURVES)
@given(at_s=st.floats(0.01, 30))
def test_the_inverse_finds_the_time_of_every_count(name: str, at_s: float) -> None:
    curve = CURVES[name]
    count = curve.count(at_s)
    found = curve.seconds(count)
    assert found <= at_s + 1e-6, "the first time that it is reached"
    assert curve.count(found) == pytest.approx(count, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "until_s", "count"),
    [
        ("flat", 10, 200),
        ("ramp", 10, 200),
        ("ramp", 15, 325),
        ("ramp", 20, 375),
        ("steps", 4, 80),
        ("steps", 7, 80),
        ("steps", 8, 90),
        ("down to rest", 50, 150),
        ("wave", 8, 160),
        ("wave", 4, 80 + 2 * 20 * 8 / (2 * math.pi)),
    ],
)
def test_as_many_are_due_as_the_areas_say(name: str, until_s: float, count: float) -> None:
    assert CURVES[name].count(until_s) == pytest.approx(count)


def test_after_the_last_rest_nothing_is_due_until_the_rate_is_changed() -> None:
    curve = rates.stages(30, [(10, 0)])
    assert curve.seconds(151) == math.inf
    curve.change(20, 10)
    assert curve.seconds(151) == pytest.approx(20.1)


def test_a_change_moves_what_is_yet_to_come_and_nothing_else() -> None:
    spec = ArrivalSpec(kind="poisson", request_rate=10)
    before, after = make_schedule(spec, 1), make_schedule(spec, 1)
    after.change_rate(5.0, 40)
    cut = before.due_before(5.0)
    assert [after.at(i) for i in range(cut)] == [before.at(i) for i in range(cut)]
    for index in range(cut, cut + 200):
        assert after.at(index) == pytest.approx(5.0 + (before.at(index) - 5.0) / 4)
    later = make_schedule(spec, 1)
    later.change_rate(7.0, 3)
    later.change_rate(5.0, 40)
    assert [later.at(i) for i in range(200)] == pytest.approx([after.at(i) for i in range(200)])


@pytest.mark.parametrize("kind", ["constant", "poisson", "gamma"])
def test_due_before_counts_those_that_are_due_before(kind: str) -> None:
    for spec in (
        ArrivalSpec(kind=kind, request_rate=7),  # type: ignore[arg-type]
        ArrivalSpec(kind=kind, stages=(Stage(seconds=5, to=9), Stage(seconds=5, to=0))),  # type: ignore[arg-type]
    ):
        schedule: Schedule = make_schedule(spec, 3)
        for at_s in (0.0, 0.001, 1.0, 4.99, 12.0):
            count = schedule.due_before(at_s)
            assert schedule.at(count) >= at_s
            assert count == 0 or schedule.at(count - 1) < at_s


def test_a_swinging_poisson_process_is_one_in_its_own_time() -> None:
    """Rescaled by the integral of its rate the gaps are exponential again; over a period the counts follow the wave."""
    spec = ArrivalSpec(kind="poisson", request_rate=50, wave=Wave(period=20, swing=0.8))
    schedule = make_schedule(spec, 4)
    times = np.array([schedule.at(index) for index in range(20_000)])
    curve = rates.wave(50, 0.8, 20)
    gaps = np.diff([curve.count(at) for at in times])
    assert stats.kstest(gaps, stats.expon().cdf).pvalue > 0.01
    high = ((times % 20 > 2.5) & (times % 20 < 7.5)).sum()
    low = ((times % 20 > 12.5) & (times % 20 < 17.5)).sum()
    assert high / low == pytest.approx((1 + 0.72) / (1 - 0.72), rel=0.1)


def test_the_hash_tells_schedules_apart() -> None:
    spec = ArrivalSpec(kind="poisson", request_rate=10)
    assert make_schedule(spec, 1).sha256() == make_schedule(spec, 1).sha256()
    assert make_schedule(spec, 1).sha256() != make_schedule(spec, 2).sha256()


def test_stages_and_waves_are_read() -> None:
    assert parse_stages("60s:200, 0s:50,2m:50") == (
        Stage(seconds=60, to=200),
        Stage(seconds=0, to=50),
        Stage(seconds=120, to=50),
    )
    assert parse_wave("24h:80%") == parse_wave("86400:0.8") == Wave(period=86400, swing=0.8)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (parse_stages, "60s", "cannot read the stage '60s'; write LENGTH:RATE, such as 60s:200 or 0s:50"),
        (parse_stages, "", "no stage in ''"),
        (parse_wave, "24h:180%", "cannot read '24h:180%'; write PERIOD:SWING, such as 24h:80% (at most 100%)"),
        (parse_wave, "0s:10%", "cannot read '0s:10%'"),
    ],
)
def test_what_cannot_be_read_is_named(read: object, text: str, message: str) -> None:
    assert callable(read)
    with pytest.raises(BadInput) as caught:
        read(text)
    assert message in str(caught.value)


STAGES, WAVE = (Stage(seconds=1, to=5),), Wave(period=9, swing=0.5)


def test_the_command_lines_rate_takes_the_place_of_the_workloads() -> None:
    staged = ArrivalSpec(kind="constant", stages=STAGES)
    assert ArrivalSpec().overridden(stages=STAGES).kind == "poisson"
    assert ArrivalSpec(kind="poisson", request_rate=9).overridden(stages=STAGES).request_rate is None
    assert staged.overridden(request_rate=3).stages == STAGES, "where the first stage begins"
    assert staged.overridden(request_rate=3, wave=WAVE).stages is None
    assert staged.overridden(rate_per_user=2).stages is None
    assert ArrivalSpec(kind="poisson", request_rate=9).overridden(wave=WAVE).request_rate == 9
    assert ArrivalSpec(kind="poisson", request_rate=9).overridden(rate_per_user=2).request_rate is None
    assert ArrivalSpec(kind="poisson", request_rate=9).overridden(kind="closed").request_rate is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"stages": STAGES, "wave": WAVE}, "--rate-stages and --rate-wave do not go together; keep one of them"),
        ({"kind": "closed", "wave": WAVE}, "--rate-wave does not go with closed arrivals"),
        ({"wave": WAVE}, "--arrival poisson needs a rate"),
        ({"request_rate": 3.0, "rate_per_user": 2.0}, "--request-rate and --rate-per-user do not go together"),
        ({"stages": (Stage(seconds=3, to=0),)}, "--arrival poisson: the stages never leave the rate 0"),
    ],
)
def test_what_does_not_go_together_is_named(keys: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        ArrivalSpec().overridden(**keys)  # type: ignore[arg-type]
    assert message in str(caught.value)
