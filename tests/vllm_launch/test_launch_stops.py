"""Launches and stops, some of the launchers killed: nothing is left."""

from __future__ import annotations

from benchmarks.launch_stops import run


def test_nothing_is_left_of_six_launches_of_which_two_are_killed() -> None:
    tally = run("simulated", "h100-llama-8b-baseline", launches=6, killed=2)
    assert (tally.launches, tally.killed, tally.left) == (6, 2, [])
