"""Lengths counted from a file: one number a line, a column of a CSV file, or a key of JSON Lines."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

_MOST_VALUES = 4096
_LONGEST = 10_000_000


def read_lengths(path: Path, column: str | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(lengths ascending, how often each), read line by line. Raises `ValueError` naming the line at fault.

    More than 4,096 different lengths are kept as 4,096 equal parts by rank, each by its mean: no quantile moves by more
    than one part.
    """
    counts: Counter[int] = Counter()
    try:
        with path.open("rb") as file:
            for line, length in _lengths(file, column):
                if not 1 <= length <= _LONGEST:
                    raise ValueError(f"{path}:{line}: {length} is no number of tokens (1 to {_LONGEST:,})")
                counts[length] += 1
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give the path of a file of lengths") from None
    except _AtLine as fault:
        raise ValueError(f"{path}:{fault.line}: {fault}") from None
    if not counts:
        raise ValueError(f"{path}: holds no lengths; give a file with one a line")
    values = sorted(counts)
    if len(values) > _MOST_VALUES:
        counts = _thinned(values, counts)
        values = sorted(counts)
    return tuple(values), tuple(counts[value] for value in values)


class _AtLine(ValueError):
    def __init__(self, line: int, problem: str) -> None:
        self.line = line
        super().__init__(problem)


def _lengths(file: io.BufferedReader, column: str | None) -> Iterator[tuple[int, int]]:
    first = True
    cells_at: int | None = None
    for line, raw in enumerate(file, start=1):
        try:
            text = raw.decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise _AtLine(line, "not text; give a file with one length a line") from None
        if not text:
            continue
        if text.startswith("{"):
            yield line, _from_json(text, column, line)
        elif column is None:
            # A header above a single column of numbers is left out.
            if not (first and not _is_number(text)):
                yield line, _number(text, line)
        elif cells_at is None:
            cells_at = _column(text, column, line)
        else:
            yield line, _number(_cell(text, cells_at, line), line)
        first = False


def _from_json(text: str, column: str | None, line: int) -> int:
    if column is None:
        raise _AtLine(line, "JSON Lines need 'column', the key that holds the length; add it")
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise _AtLine(line, f"not JSON: {error}") from None
    if column not in found:
        raise _AtLine(line, f"no key '{column}'; mend 'column' or the line")
    return _number(str(found[column]), line)


def _column(text: str, column: str, line: int) -> int:
    names = [cell.strip() for cell in next(csv.reader([text]))]
    if column not in names:
        raise _AtLine(line, f"no column '{column}'; it has {', '.join(names)[:80]}")
    return names.index(column)


def _cell(text: str, at: int, line: int) -> str:
    cells = next(csv.reader([text]))
    if at >= len(cells):
        raise _AtLine(line, f"{len(cells)} cells, fewer than the header's; mend that line")
    return cells[at].strip()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str, line: int) -> int:
    try:
        value = float(text)
    except ValueError:
        raise _AtLine(line, f"'{text[:40]}' is no number of tokens; mend that line") from None
    if value != value or value in (float("inf"), float("-inf")) or value != int(value):
        raise _AtLine(line, f"'{text[:40]}' is no whole number of tokens; mend that line")
    return int(value)


def _thinned(values: list[int], counts: Counter[int]) -> Counter[int]:
    total = sum(counts.values())
    sums, sizes = [0] * _MOST_VALUES, [0] * _MOST_VALUES
    below = 0
    for value in values:
        part = min(below * _MOST_VALUES // total, _MOST_VALUES - 1)
        sums[part] += value * counts[value]
        sizes[part] += counts[value]
        below += counts[value]
    thinned: Counter[int] = Counter()
    for part_sum, size in zip(sums, sizes, strict=True):
        if size:
            thinned[round(part_sum / size)] += size
    return thinned
