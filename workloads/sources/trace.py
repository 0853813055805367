"""A trace file as a source: checked once from end to end, then read again in small pieces as requests are due.

What is kept is a byte offset for every few hundred rows, so that memory does not grow with the trace's text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tailgate.exits import BadInput
from workloads.sources import Design
from workloads.sources.azure import azure_rows
from workloads.sources.mooncake import mooncake_rows
from workloads.sources.rows import Row, RowError

_STRIDE = 256
_FORMATS: dict[str, Callable[[bytes], Callable[[bytes], Row]]] = {"azure": azure_rows, "mooncake": mooncake_rows}


class _Mark(NamedTuple):
    """Where in the file a piece of `_STRIDE` rows begins."""

    byte: int
    line: int


class Trace:
    """The rows of one file, in the file's order; times are offsets from the first row's."""

    def __init__(self, path: Path, format_name: str, request_class: str) -> None:
        self._path = path
        self._class = request_class
        self._marks: list[_Mark] = []
        self._pieces: OrderedDict[int, list[Row]] = OrderedDict()
        self.shortest_input = 0
        self.longest = 0
        self.span_s = 0.0
        self.notes: tuple[str, ...] = ()
        try:
            with path.open("rb") as file:
                self._parse, self._data_start = self._open(file, _FORMATS[format_name], format_name)
                self.length = self._scan(file)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}", "give the path of a trace file that can be read") from None

    def design(self, index: int) -> Design:
        if not 0 <= index < self.length:
            raise IndexError(index)
        piece, within = divmod(index, _STRIDE)
        row = self._piece(piece)[within]
        return Design(
            request_class=self._class,
            input_tokens=max(row.input_tokens, 1),
            output_tokens=max(row.output_tokens, 1),
            blocks=row.blocks,
            offset_s=row.time_s - self._first_s,
        )

    def _open(
        self, file: BinaryIO, make: Callable[[bytes], Callable[[bytes], Row]], format_name: str
    ) -> tuple[Callable[[bytes], Row], _Mark]:
        """The row parser, made from the first line, and where the rows begin."""
        first = file.readline()
        try:
            parse = make(first)
        except RowError as error:
            raise BadInput(f"{self._path}:1: {error}", f"give a trace in the {format_name} format") from None
        start = _Mark(0, 1) if first.lstrip()[:1] == b"{" else _Mark(len(first), 2)
        file.seek(start.byte)
        return parse, start

    def _scan(self, file: BinaryIO) -> int:
        """Checks every row, sets the marks and the figures, returns the number of rows."""
        count, silent, last = 0, 0, float("-inf")
        shortest, longest = 1 << 62, 0
        for mark, row in self._rows(file, self._data_start):
            if count % _STRIDE == 0:
                self._marks.append(mark)
            if count == 0:
                self._first_s = row.time_s
            if row.time_s < last:
                raise BadInput(f"{self._path}:{mark.line}: earlier than the row before it", "sort the trace by time")
            last = row.time_s
            shortest = min(shortest, row.input_tokens)
            longest = max(longest, row.input_tokens + max(row.output_tokens, 1))
            silent += row.output_tokens < 1
            count += 1
        if not count:
            raise BadInput(f"{self._path}: the trace has no rows", "give a trace with at least one request")
        self.shortest_input, self.longest, self.span_s = shortest, longest, last - self._first_s
        if silent:
            self.notes = (f"{silent} rows of the trace ask for no output tokens; they are sent with 1",)
        return count

    def _piece(self, number: int) -> list[Row]:
        rows = self._pieces.get(number)
        if rows is None:
            try:
                with self._path.open("rb") as file:
                    mark = self._marks[number]
                    file.seek(mark.byte)
                    rows = [row for (_, row), _ in zip(self._rows(file, mark), range(_STRIDE), strict=False)]
            except OSError as error:
                raise BadInput(
                    f"{self._path}: {error.strerror}", "keep the trace file in place during the run"
                ) from None
            self._pieces[number] = rows
            if len(self._pieces) > 4:
                self._pieces.popitem(last=False)
        return rows

    def _rows(self, file: BinaryIO, start: _Mark) -> Iterator[tuple[_Mark, Row]]:
        byte, line = start
        for text in file:
            if text.strip():
                try:
                    yield _Mark(byte, line), self._parse(text)
                except RowError as error:
                    raise BadInput(f"{self._path}:{line}: {error}", "mend or remove that line") from None
            byte += len(text)
            line += 1


def open_trace(path: Path, format_name: str, request_class: str) -> Trace:
    """The trace, checked. Raises `BadInput` naming file and line of the first fault."""
    return Trace(path, format_name, request_class)
