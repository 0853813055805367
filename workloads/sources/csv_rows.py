"""CSV with a header, its columns found by name, whatever their order."""

from __future__ import annotations

import csv
from collections.abc import Callable

from workloads.sources.rows import Row, RowError, count_of


def parser(
    header: bytes, time: str, prompt: str, answer: str, seconds: Callable[[str], float]
) -> Callable[[bytes], Row]:
    """The parser of the lines below `header`, given the names of three columns. Raises `RowError`."""
    names = _cells(header.removeprefix(b"\xef\xbb\xbf"))
    missing = [column for column in (time, prompt, answer) if column not in names]
    if missing:
        raise RowError(f"the column {missing[0]} is missing from the header")
    time_at, prompt_at, answer_at = (names.index(column) for column in (time, prompt, answer))

    def parse(line: bytes) -> Row:
        cells = _cells(line)
        if len(cells) != len(names):
            raise RowError(f"{len(cells)} cells where the header has {len(names)}")
        return Row(seconds(cells[time_at]), count_of(cells[prompt_at], prompt), count_of(cells[answer_at], answer))

    return parse


def _cells(line: bytes) -> list[str]:
    try:
        text = line.decode("utf-8").strip()
        if '"' not in text:
            return [cell.strip() for cell in text.split(",")]
        return [cell.strip() for cell in next(csv.reader([text], strict=True), [])]
    except UnicodeDecodeError:
        raise RowError("not UTF-8 text") from None
    except csv.Error as error:
        raise RowError(f"not CSV: {error}") from None
