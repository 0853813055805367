"""Timed traces: JSON Lines with a timestamp, an input length, an output length and, where known, hash_ids.

Sources of the format: Mooncake's traces (github.com/kvcache-ai/Mooncake, FAST25-release/traces: milliseconds, blocks of
512 tokens) and the `timed_trace` data set of `vllm bench serve` (seconds unless a multiplier says otherwise, blocks of
16 tokens, keys by any name). Each hash id stands for one block of the prompt together with all before it; requests
whose ids begin alike share those blocks in the KV cache.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from workloads.sources.rows import MOST_TOKENS, Parse, Row, RowError, plain
from workloads.spec import TraceLabels

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
_MASK64 = (1 << 64) - 1


def timed_rows(seconds_per_unit: float, labels: TraceLabels) -> Parse:
    """The parser of the file's lines; the format has no header."""
    fields: list[Any] = [
        ("timestamp", Annotated[float, msgspec.Meta(ge=0)]),
        ("input_length", _Count),
        ("output_length", _Count),
        ("hash_ids", tuple[int, ...] | None, None),
    ]
    line: Any = msgspec.defstruct("Line", fields, rename=labels.model_dump())
    decode = msgspec.json.Decoder(line).decode

    def parse(text: bytes) -> Row:
        try:
            item: Any = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RowError(plain(error)) from None
        # Hashes may be signed or not; what counts is which are the same.
        blocks = None if item.hash_ids is None else tuple([number & _MASK64 for number in item.hash_ids])
        return Row(item.timestamp * seconds_per_unit, item.input_length, item.output_length, blocks)

    return parse
