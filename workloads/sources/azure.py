"""Azure's public LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

Source of the format: github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023 and 2024 (described in
"Splitwise", ISCA 2024, and "DynamoLLM", HPCA 2025). Times are UTC, to 100 ns; microseconds are kept.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import UTC, datetime

from workloads.sources.rows import Row, RowError

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def azure_rows(header: bytes) -> Callable[[bytes], Row]:
    """The parser of the lines below this header, whatever the columns' order. Raises `RowError`."""
    names = _cells(header.removeprefix(b"\xef\xbb\xbf"))
    missing = [column for column in _COLUMNS if column not in names]
    if missing:
        raise RowError(f"the column {missing[0]} is missing from the header")
    time_at, input_at, output_at = (names.index(column) for column in _COLUMNS)

    def parse(line: bytes) -> Row:
        cells = _cells(line)
        if len(cells) != len(names):
            raise RowError(f"{len(cells)} cells where the header has {len(names)}")
        return Row(
            _seconds(cells[time_at]),
            _count(cells[input_at], "ContextTokens"),
            _count(cells[output_at], "GeneratedTokens"),
        )

    return parse


def _cells(line: bytes) -> list[str]:
    try:
        text = line.decode("utf-8").strip()
        return [cell.strip() for cell in next(csv.reader([text], strict=True), [])]
    except UnicodeDecodeError:
        raise RowError("not UTF-8 text") from None
    except csv.Error as error:
        raise RowError(f"not CSV: {error}") from None


def _seconds(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise RowError(f"TIMESTAMP: '{text[:40]}' is no date and time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH).total_seconds()


def _count(text: str, column: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise RowError(f"{column}: '{text[:40]}' is no number of tokens")
    return int(text)
