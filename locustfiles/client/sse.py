"""Server-sent events: body bytes → events, each with the offset of the byte that completed it.

The grammar is the WHATWG HTML standard's, section 9.2.6: lines end in LF, CRLF or a lone CR in any mixture, one blank
after the colon is dropped, `data` lines are joined by LF, lines starting with a colon are comments, a blank line
dispatches, an event the stream's end cuts off is dropped. An event that ends in CRLF is complete with its CR: whether
an LF follows changes nothing.

`sseclient-py` reads the same events and is the independent parser of the tests. It is not used here: it hands out no
offsets, and its events alone cost what the whole reading, JSON included, costs here (`benchmarks/reading.py`).
"""

from __future__ import annotations

import re

Event = tuple[int, bytes, bytes]
"""(end, event type or empty, data): the end is the offset just past the byte that completed the event."""

LARGEST_EVENT = 64 * 2**20
"""About how many bytes an unfinished event may hold: memory is bounded whatever a server sends."""

_BREAK = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data", b"event", b"id", b"retry", b"")


class EventSplitter:
    """Splits one body, handed over in any pieces."""

    __slots__ = (
        "_after_cr",
        "_at_start",
        "_between",
        "_data",
        "_dispatched",
        "_held",
        "_partial",
        "_strange",
        "_type",
    )

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._data: list[bytes] = []
        self._type = b""
        self._held = 0
        self._after_cr = False
        self._at_start = True
        # No event has begun, and no LF of a CRLF is due: the next byte starts a line of a new event.
        self._between = True
        self._dispatched = False
        self._strange = False

    @property
    def unfinished(self) -> bool:
        """Whether an event has begun that no blank line has ended."""
        return bool(self._partial or self._data or self._type)

    @property
    def between_events(self) -> bool:
        """Whether events have come, and the next byte begins another."""
        return self._between and self._dispatched

    @property
    def foreign(self) -> bool:
        """Whether the bytes so far are no event stream at all: no event, and lines that no event has."""
        begun = b"".join(self._partial).removeprefix(_BOM).partition(b":")[0]
        return not self._dispatched and (self._strange or not any(field.startswith(begun) for field in _FIELDS))

    @property
    def overgrown(self) -> bool:
        """Whether an unfinished event holds more than `LARGEST_EVENT`: nothing that long is an answer."""
        return self._held > LARGEST_EVENT

    def feed(self, buffer: bytes, spans: list[tuple[int, int]]) -> list[Event]:
        """Reads buffer[start:stop] of each span, in order; the events' ends are offsets in `buffer`."""
        events: list[Event] = []
        between = self._between
        for start, stop in spans:
            # A piece that is one whole event of one `data: ` line, as nearly all are, needs no reading line by line.
            piece = buffer[start:stop]
            if between and piece[:6] == b"data: " and piece[-2:] == b"\n\n" and b"\r" not in piece:
                data = piece[6:-2]
                if b"\n" not in data:
                    events.append((stop, b"", data))
                    continue
            if events:
                self._at_start = False
            self._read_lines(buffer, start, stop, events)
            between = self._between
        if events:
            self._at_start = False
            self._dispatched = True
        return events

    def _read_lines(self, buffer: bytes, start: int, stop: int, events: list[Event]) -> None:
        """Reads line by line, whatever stands there."""
        if self._after_cr and start < stop:
            self._after_cr = False
            if buffer[start] == 0x0A:
                start += 1
        for found in _BREAK.finditer(buffer, start, stop):
            line = buffer[start : found.start()]
            start = found.end()
            self._after_cr = start == stop and buffer[start - 1] == 0x0D
            if self._partial:
                line = b"".join((*self._partial, line))
                self._partial.clear()
            if self._at_start:
                line = line.removeprefix(_BOM)
                self._at_start = False
            if line:
                self._field(line)
                continue
            if self._data:
                events.append((found.start() + 1, self._type, b"\n".join(self._data)))
                self._data.clear()
            self._type = b""
            self._held = 0
        if start < stop:
            self._partial.append(buffer[start:stop])
            self._held += stop - start
        self._between = not (self._after_cr or self.unfinished)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._held += len(line)
        elif name == b"event":
            self._type = value.removeprefix(b" ")
        elif name not in _FIELDS:
            self._strange = True
