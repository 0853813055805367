"""Rows of a big file, found again without keeping them: marks every few hundred rows, and pieces read between them.

A file is lines, or one JSON array whose elements are the rows; both are read in small parts, from any mark on.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_MOST_ROWS = 256
_MOST_BYTES = 64 * 1024
_CHUNK = 128 * 1024
LONGEST_ROW = 64 * 2**20
"""Bytes of a row at most; a longer one is no row of any format here."""

# A whole string, one that the chunk cuts off, or a bracket: all that tells where an element ends.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(?P<cut>"[^"\\]*(?:\\.[^"\\]*)*\\?\Z)|[{}\[\]]', re.DOTALL)
_SKIPPED = re.compile(rb"[ \t\r\n,]*")
_QUOTE, _OPENING = ord('"'), b"{["


class Mark(NamedTuple):
    """Where a row begins: byte in the file and line, both as a reader needs them to go on from there."""

    byte: int
    line: int


class BadRow(ValueError):
    """What stands at `line` cannot be cut into rows."""

    def __init__(self, line: int, problem: str) -> None:
        self.line = line
        super().__init__(problem)


class Marks:
    """Where every few rows begin; some bytes for each 256 rows or 64 KiB, whichever comes first."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._bytes = array("q")
        self._lines = array("q")

    def note(self, row: int, mark: Mark) -> None:
        """Row number `row` begins at `mark`; called for each row, in order."""
        if not self._rows or row - self._rows[-1] >= _MOST_ROWS or mark.byte - self._bytes[-1] >= _MOST_BYTES:
            self._rows.append(row)
            self._bytes.append(mark.byte)
            self._lines.append(mark.line)

    def piece_of(self, row: int) -> int:
        """The piece that holds this row."""
        return bisect_right(self._rows, row) - 1

    def start(self, piece: int) -> tuple[int, Mark]:
        """(first row, mark) of a piece."""
        return self._rows[piece], Mark(self._bytes[piece], self._lines[piece])

    def size(self, piece: int) -> int | None:
        """Rows in the piece; None for the last one, which goes to the file's end."""
        return self._rows[piece + 1] - self._rows[piece] if piece + 1 < len(self._rows) else None


def lines(file: BinaryIO, start: Mark) -> Iterator[tuple[Mark, bytes]]:
    """The lines from `start` on that are not blank. Raises `BadRow` for one of over 64 MiB."""
    file.seek(start.byte)
    byte, line = start
    while text := file.readline(LONGEST_ROW):
        if len(text) == LONGEST_ROW:
            raise BadRow(line, "a line of over 64 MiB")
        if not text.isspace():
            yield Mark(byte, line), text
        byte += len(text)
        line += 1


def elements(file: BinaryIO, start: Mark) -> Iterator[tuple[Mark, bytes]]:
    """The objects of a JSON array from `start` on, which is inside it and between two. Raises `BadRow`."""
    file.seek(start.byte)
    at, line = start  # of the text's first byte
    text, here = b"", 0
    while True:
        begins = _SKIPPED.match(text, here).end()  # type: ignore[union-attr]  # it matches nothing too
        line += text.count(b"\n", here, begins)
        here = begins
        if text[here : here + 1] == b"]":
            return
        end = _end_of_object(text, here, line) if here < len(text) else None
        if end is None:
            unread = len(text) - here
            if unread > LONGEST_ROW:
                raise BadRow(line, "an element of over 64 MiB")
            more = file.read(max(_CHUNK, unread))
            if not more and unread:
                raise BadRow(line, "the file ends in the middle of this element")
            if not more:
                raise BadRow(line, "the file ends before the array does (no ']')")
            at, text, here = at + here, text[here:] + more, 0
            continue
        yield Mark(at + here, line), text[here:end]
        line += text.count(b"\n", here, end)
        here = end


def _end_of_object(text: bytes, begins: int, line: int) -> int | None:
    """Where the object ends that begins there; None where `text` ends before it does."""
    if text[begins : begins + 1] != b"{":
        raise BadRow(line, "not an object ({…}), as every element of the array must be")
    depth = 0
    for token in _TOKEN.finditer(text, begins):
        first = text[token.start()]
        if first == _QUOTE:
            if token["cut"] is not None:
                return None
        elif first in _OPENING:
            depth += 1
        else:
            depth -= 1
            if not depth:
                return token.end()
    return None
