"""A finished run beside a baseline: what --baseline names, and what --save-baseline keeps."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from exporters import baseline
from exporters.compare import Comparison, Measurement, compare
from exporters.gate import decisions_alone, exit_codes, hold
from exporters.run import RUN, Run
from tailgate.exits import BadInput, Exit
from tailgate.thresholds import Gate


def check(compared: str | None, kept: str | None) -> None:
    """Raises `BadInput` where a run could not be compared with `compared`, or kept as `kept`, once it is over.

    For whoever judges the run: the disk of a worker needs to hold neither.
    """
    if compared:
        _check_baseline(compared)
    if kept:
        _check_place()


def _check_baseline(name: str) -> None:
    stored = baseline.find(name)
    if stored is not None:
        baseline.load(stored)
    elif not (Path(name) / RUN).is_file():
        raise BadInput(f"--baseline: no baseline and no run directory '{name}'", baseline.known_instead(name))


def _check_place(directory: Path = baseline.DIRECTORY) -> None:
    """Raises `BadInput` where no baseline could be kept: better told before a run than after it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise BadInput(
            f"--save-baseline: {directory}: {error.strerror}", f"start where {directory}/ can be written"
        ) from None


def baseline_runs(name: str) -> Sequence[Measurement]:
    """The runs of a stored baseline, or the one run directory. Raises `BadInput` where it cannot be read."""
    stored = baseline.find(name)
    return baseline.load(stored) if stored else [Measurement.of(Run.load(name))]


def compare_with(name: str, directory: Path, gate: Gate | None) -> Comparison:
    """The run in `directory` against the baseline. Raises `BadInput` where either cannot be read."""
    return compare(baseline_runs(name), [Run.load(directory)], gate=gate)


def hold_alone(gate: Gate, directory: Path) -> tuple[list[Exit], list[str]]:
    """A gate where there is no baseline: its bounds on the run itself, as exit codes and as lines to read."""
    runs = [Run.load(directory)]
    lines = [f"threshold {one.title}: {one.outcome}, {one.said}" for one in decisions_alone(gate, runs)]
    return exit_codes(hold(gate, runs)), lines


def keep_as(name: str, directory: Path) -> Path:
    """Saves the run as a baseline; its path. Raises `BadInput` where the run is not valid."""
    return baseline.save([Run.load(directory)], name)
