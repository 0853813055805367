"""`baseline show`, and mistakes on the command line, each one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exporters import baseline
from exporters.__main__ import main
from exporters.compare import compare
from tailgate.exits import run_command
from tests.support.runs import queueing_records, store

MARGIN = "argument --margin: 'x' is no share; write 0.05 or 5%; see: python -m exporters compare --help"


def _call(*words: str | Path) -> int:
    return run_command(lambda: main([str(word) for word in words]), "exporters")


def test_show_says_what_the_run_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = store(tmp_path / "r", queueing_records(1), simulated=True)
    baseline.save([run], "night", tmp_path)
    assert _call("baseline", "show", "night", "--directory", tmp_path, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown[0]["metrics"] == run.summary["metrics"]
    assert _call("baseline", "show", "night", "--directory", tmp_path) == 0
    text = capsys.readouterr().out
    assert text.startswith("SIMULATED:")
    assert f"{run.summary['metrics']['itl_s']['count']}" in text


def test_a_seed_that_nobody_asked_for_stays_comparable_in_a_file(tmp_path: Path) -> None:
    drawn = store(tmp_path / "r", queueing_records(1), seed=7, seed_drawn=True)
    asked = store(tmp_path / "s", queueing_records(2), seed=5)
    kept = baseline.load(baseline.save([drawn], "night", tmp_path))
    assert not compare(kept, [asked]).refused
    assert compare([asked], [store(tmp_path / "t", queueing_records(3), seed=6)]).refused


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("baseline", "show", "nigth"), "no baseline 'nigth' in {where}; did you mean 'night'?"),
        (("baseline", "show", "x"), "no baseline 'x' in {where}; known: night"),
        (("compare", "a", "b", "--margin", "x"), MARGIN),
        ((), "the following arguments are required: COMMAND; see: python -m exporters --help"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], line: str
) -> None:
    baseline.save([store(tmp_path / "r", queueing_records(1, seconds=20), seconds=20.0)], "night", tmp_path)
    given = (*words, "--directory", tmp_path) if "show" in words else words
    assert _call(*given) == 2
    assert capsys.readouterr().err == f"exporters: {line.format(where=tmp_path)}\n"
