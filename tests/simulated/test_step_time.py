"""Step times against the source's own, kept in each table as probes."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_launch.simulated.make_tables import WANTED
from vllm_launch.simulated.step_time import Overhead, StepTimes, available_tables, load_table

NO_HOST = Overhead(0.0, 0.0, 0.0)


def test_every_table_that_the_script_makes_is_there() -> None:
    assert available_tables() == sorted(WANTED)


@pytest.mark.parametrize("name", sorted(WANTED))
def test_the_factorised_tables_are_true_to_their_source(name: str) -> None:
    arrays = load_table(name)
    times = StepTimes(arrays, NO_HOST)
    errors = []
    for decodes, context, tokens, prefix, source_ms in arrays["probes"].tolist():
        prefills = [(int(tokens), int(prefix))] if tokens else []
        errors.append(abs(1e3 * times.kernels_s(int(decodes), int(decodes * context), prefills) / source_ms - 1))
    assert len(errors) == 300
    assert np.mean(errors) < 0.005
    assert np.quantile(errors, 0.95) < 0.025


def test_known_points_of_the_source() -> None:
    """From aiconfigurator-core 0.12.0: a lone decode, a prompt of 1024 tokens, and two such prompts in one step."""
    times = StepTimes(load_table("qwen3-32b.tp2.h100-sxm"), NO_HOST)
    assert times.kernels_s(1, 1536, []) == pytest.approx(0.01344, rel=0.01)
    assert times.kernels_s(0, 0, [(1024, 0)]) == pytest.approx(0.05549, rel=0.01)
    assert times.kernels_s(0, 0, [(1024, 0)] * 2) == pytest.approx(0.10564, rel=0.01)


def test_the_host_costs_a_constant_and_a_share_for_each_sequence() -> None:
    arrays = load_table("llama-3.1-8b.tp1.h100-sxm")
    bare, hosted = StepTimes(arrays, NO_HOST), StepTimes(arrays, Overhead(0.002, 0.0001, 0.5))
    extra = hosted.step_s(10, 1000, [(16, 0)]) - bare.step_s(10, 1000, [(16, 0)])
    assert extra == pytest.approx(0.002 + 11 * 0.0001)


def test_longer_contexts_and_larger_batches_take_longer() -> None:
    times = StepTimes(load_table("llama-3.1-8b.tp1.h100-sxm"), NO_HOST)
    assert times.kernels_s(64, 64 * 8000, []) > times.kernels_s(64, 64 * 500, []) > times.kernels_s(1, 500, [])
    assert times.kernels_s(0, 0, [(8192, 0)]) > times.kernels_s(0, 0, [(1024, 0)])
    assert times.kernels_s(0, 0, []) == 0.0
