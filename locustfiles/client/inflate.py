"""Compressed bodies, for servers that compress although nobody asked: compressed bytes → plain bytes, with offsets.

A plain byte's offset is that of the compressed byte that let it be known, so the input goes in one byte at a time: the
answer is then the same however the network split it. That is slow (about 0.2 µs a byte) and rare.
"""

from __future__ import annotations

import zlib

from locustfiles.client.http_framing import Span

CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""The codings that can be read, with zlib's window argument for each."""


class Inflater:
    """Undoes one content coding of `CODINGS`; `whole` once it has ended. Where the bytes turn out not to be in
    it, `broken_at` is the place in the buffer last fed."""

    __slots__ = ("_decompressor", "broken_at", "whole")

    def __init__(self, coding: str) -> None:
        self._decompressor = zlib.decompressobj(CODINGS[coding])
        self.whole = False
        self.broken_at: int | None = None

    def feed(self, buffer: bytes, spans: list[Span]) -> list[tuple[int, bytes]]:
        """(end, plain bytes): what each byte of the spans released."""
        released: list[tuple[int, bytes]] = []
        for start, stop in spans:
            for position in range(start, stop):
                if self.whole:
                    return released
                try:
                    plain = self._decompressor.decompress(buffer[position : position + 1])
                except zlib.error:
                    self.broken_at = position
                    return released
                if plain:
                    released.append((position + 1, plain))
                self.whole = self._decompressor.eof
        return released
