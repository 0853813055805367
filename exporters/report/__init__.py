"""The report: one HTML file without scripts or network, readable on screen (light and dark) and on paper; or Markdown.

Nothing here computes a figure: it shows what summaries and comparisons hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exporters.compare import Comparison, Measurement
from exporters.run import Run
from exporters.run_store import replace_file
from tailgate.exits import BadInput
from tailgate.thresholds import Gate


def write_report(
    path: Path | str,
    base: Sequence[Run | Measurement],
    candidate: Sequence[Run] = (),
    comparison: Comparison | None = None,
    command: str | None = None,
    gate: Gate | None = None,
) -> None:
    """Writes the HTML report of two sides, or of one (`candidate` empty, and `base` whole runs). `command` repeats it.

    `gate` is what runs without a comparison are held against.

    Raises `BadInput` where the file cannot be written.
    """
    from exporters.report.page import render

    write_page_text(Path(path), render(list(base), list(candidate), comparison, command, gate))


def write_markdown(
    path: Path | str,
    base: Sequence[Run | Measurement],
    candidate: Sequence[Run] = (),
    comparison: Comparison | None = None,
    gate: Gate | None = None,
) -> None:
    """Writes the same in short as Markdown, for a pull request. Raises `BadInput` as `write_report`."""
    from exporters.report.markdown import markdown

    write_page_text(Path(path), markdown(list(base), list(candidate), comparison, gate))


def write_page_text(path: Path, text: str) -> None:
    """Writes a page in one step. Raises `BadInput` where the file cannot be written."""
    try:
        replace_file(path, text.encode("utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "name a file that can be written with -o") from None
