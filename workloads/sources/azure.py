"""Azure's public LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

Source of the format: github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023 and 2024 (described in
"Splitwise", ISCA 2024, and "DynamoLLM", HPCA 2025). Times are UTC, to 100 ns; microseconds are kept.
"""

from __future__ import annotations

from datetime import UTC, datetime

from workloads.sources.csv_rows import parser
from workloads.sources.rows import Parse, RowError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def azure_rows(header: bytes) -> Parse:
    """The parser of the lines below this header, whatever the columns' order. Raises `RowError`."""
    return parser(header, "TIMESTAMP", "ContextTokens", "GeneratedTokens", _seconds)


def _seconds(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise RowError(f"TIMESTAMP: '{text[:40]}' is no date and time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH).total_seconds()
