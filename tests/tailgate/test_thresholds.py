"""Thresholds as users write them, and one line for each way to write them wrongly."""

from __future__ import annotations

import pytest

from tailgate.exits import BadInput
from tailgate.thresholds import Change, Floor, parse_gate


def test_the_three_kinds_of_terms() -> None:
    gate = parse_gate("ttft_p99<1s, throughput>900, goodput_share>95%,throughput_drop<20%,ttft_p95_rise<10%,itl_p95")
    assert [bound.text for bound in gate.bounds] == ["ttft_p99<1s", "throughput>900", "goodput_share>95%"]
    assert gate.bounds[0].limit == 1.0
    assert gate.bounds[2] == Floor("goodput_share", 0.95, "goodput_share>95%")
    assert gate.changes == (
        Change("throughput", 0.2, "throughput_drop<20%"),
        Change("ttft_p95", 0.1, "ttft_p95_rise<10%"),
        Change("itl_p95", None, "itl_p95"),
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "--gate: names no threshold; write it like ttft_p99<1s"),
        ("ttft_p96_rise<5%", "--gate: unknown metric 'ttft_p96'; known: ttft_p50, "),
        ("ttft", "--gate: unknown metric 'ttft'; known: ttft_p50, "),
        ("ttft<1s", "--gate: 'ttft<1s' names no statistic; write ttft_p99<"),
        ("ttft_p99<1", "--gate: 'ttft_p99<1' names no unit; write ttft_p99<1ms or ttft_p99<1s"),
        ("ttft_p95_drop<5%", "--gate: 'ttft_p95_drop<5%' bounds what is no loss; write ttft_p95_rise<5%"),
        ("throughput_rise<5%", "--gate: 'throughput_rise<5%' bounds what is no loss; write throughput_drop<5%"),
        ("throughput_drop<100%", "--gate: 'throughput_drop<100%' cannot be told; give a limit above 0%"),
        ("ttft_p95>1", "--gate: 'ttft_p95>1' is no floor; only these have one: throughput, "),
        ("goodput_share>0.9", "--gate: 'goodput_share>0.9' has the wrong unit; write goodput_share>95%"),
        ("throughput>9%", "--gate: 'throughput>9%' has the wrong unit; write a number of tokens/s"),
        ("itl_p95,itl_p95_rise<9%", "--gate: 'itl_p95' is bounded twice; keep one of them"),
        ("TTFT = 5", "--gate: cannot read the threshold 'TTFT = 5'; write it like"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(text: str, line: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_gate(text)
    assert str(caught.value).startswith(line)
