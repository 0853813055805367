"""Lengths follow their distributions and stay within their bounds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scipy import stats

from workloads import Workload
from workloads.lengths import Length
from workloads.sources.mix import Mix

ADAPTER: TypeAdapter[Any] = TypeAdapter(Length)


def length(**keys: Any) -> Any:
    return ADAPTER.validate_python(keys)


def drawn(count: int, **keys: Any) -> list[int]:
    workload = Workload.model_validate({"name": "w", "classes": {"a": {"input-tokens": keys, "output-tokens": 1}}})
    source = Mix(workload, seed=11)
    return [source.design(index).input_tokens for index in range(count)]


@given(u=st.floats(0, 1, exclude_min=True, exclude_max=True), low=st.integers(1, 5000), width=st.integers(0, 5000))
@settings(max_examples=200, deadline=None)
def test_every_length_lies_within_its_bounds(u: float, low: int, width: int) -> None:
    centre = low + width / 2
    for chosen in (
        length(distribution="uniform", min=low, max=low + width),
        length(distribution="normal", mean=centre, stddev=max(width, 1), min=low, max=low + width),
        length(distribution="lognormal", median=centre, sigma=1.0, min=low, max=low + width),
    ):
        assert low <= chosen.at(u) <= low + width


@given(u=st.lists(st.floats(1e-6, 1 - 1e-6), min_size=2, max_size=2))
@settings(max_examples=100, deadline=None)
def test_quantiles_grow(u: list[float]) -> None:
    chosen = length(distribution="lognormal", median=200, sigma=0.8)
    assert chosen.at(min(u)) <= chosen.at(max(u))


def test_normal_is_cut_off_not_piled_up() -> None:
    values = drawn(20_000, distribution="normal", mean=500, stddev=200, min=300, max=900)
    expected = stats.truncnorm((299.5 - 500) / 200, (900.5 - 500) / 200, loc=500, scale=200)
    assert stats.kstest(np.array(values) + np.linspace(-0.5, 0.5, len(values)), expected.cdf).pvalue > 0.01
    assert Counter(values)[300] < 100, "clamping would put a sixth of all at the bound"


def test_lognormal_has_its_median_and_spread() -> None:
    values = np.log(drawn(20_000, distribution="lognormal", median=200, sigma=0.8))
    assert np.exp(np.median(values)) == pytest.approx(200, rel=0.02)
    assert values.std() == pytest.approx(0.8, rel=0.02)


def test_uniform_reaches_both_ends_equally() -> None:
    counts = Counter(drawn(12_000, distribution="uniform", min=7, max=12))
    assert sorted(counts) == [7, 8, 9, 10, 11, 12]
    assert stats.chisquare(list(counts.values())).pvalue > 0.01


def test_choices_follow_their_weights() -> None:
    counts = Counter(drawn(12_000, distribution="choices", values=[10, 20, 30], weights=[1, 2, 1]))
    assert stats.chisquare([counts[10], counts[20], counts[30]], [3000, 6000, 3000]).pvalue > 0.01


def test_choices_grow_with_their_quantile_however_they_are_listed() -> None:
    chosen = length(distribution="choices", values=[30, 10, 20], weights=[1, 1, 2])
    assert [chosen.at(u) for u in (0.1, 0.3, 0.7, 0.9)] == [10, 20, 20, 30]


def test_classes_follow_their_weights() -> None:
    sizes = {"input-tokens": 1, "output-tokens": 1}
    workload = Workload.model_validate({"name": "w", "classes": {"a": {**sizes, "weight": 3}, "b": sizes}})
    source = Mix(workload, seed=1)
    counts = Counter(source.design(index).request_class for index in range(12_000))
    assert stats.chisquare([counts["a"], counts["b"]], [9000, 3000]).pvalue > 0.01


def test_the_stated_mean_is_the_drawn_mean() -> None:
    keys: dict[str, Any] = {"distribution": "lognormal", "median": 180, "sigma": 0.8, "min": 48, "max": 2000}
    assert length(**keys).mean() == pytest.approx(np.mean(drawn(40_000, **keys)), rel=0.02)


def test_a_bare_number_is_a_fixed_length() -> None:
    assert {ADAPTER.validate_python(128).at(u) for u in (0.01, 0.5, 0.99)} == {128}
