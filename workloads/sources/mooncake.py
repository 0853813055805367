"""Mooncake's traces: JSON Lines with timestamp (ms), input_length, output_length, hash_ids.

Source of the format: github.com/kvcache-ai/Mooncake, FAST25-release/traces. Each hash id stands for one block of 512
tokens of the prompt together with all before it; requests whose ids begin alike share those blocks in the KV cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from workloads.sources.rows import Row, RowError

_Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
_Hash = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: _Count
    output_length: _Count
    hash_ids: tuple[_Hash, ...] | None = None


_DECODER = msgspec.json.Decoder(_Line)


def mooncake_rows(first: bytes) -> Callable[[bytes], Row]:
    """The parser of the file's lines; the format has no header. Raises `RowError`."""
    return _parse


def _parse(line: bytes) -> Row:
    try:
        item = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RowError(_plain(str(error))) from None
    return Row(item.timestamp / 1000, item.input_length, item.output_length, item.hash_ids)


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:]
