"""Server-sent events: body bytes → events, each with the offset of the byte that completed it.

The grammar is the WHATWG HTML standard's, section 9.2.6: lines end in LF, CRLF or a lone CR in any mixture, one blank
after the colon is dropped, `data` lines are joined by LF, lines starting with a colon are comments, a blank line
dispatches, an event the stream's end cuts off is dropped. An event that ends in CRLF is complete with its CR: whether
an LF follows changes nothing.

`sseclient-py` reads the same events and is the independent parser of the tests; it is not used here because it hands
out no offsets and costs about 8 µs an event.
"""

from __future__ import annotations

import re

Event = tuple[int, bytes, bytes]
"""(end, event type or empty, data): the end is the offset just past the byte that completed the event."""

LARGEST_EVENT = 64 * 2**20
"""Bytes an unfinished event may hold before the stream is given up: memory is bounded whatever a server sends."""

_BREAK = re.compile(rb"[\r\n]")
_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """An event has grown past `LARGEST_EVENT` without an end."""


class EventSplitter:
    """Splits one body, handed over in any pieces."""

    __slots__ = (
        "_after_cr",
        "_at_start",
        "_between",
        "_data",
        "_held",
        "_partial",
        "_type",
        "dispatched",
        "strange_lines",
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
        self.dispatched = 0
        self.strange_lines = 0

    @property
    def unfinished(self) -> bool:
        """Whether an event has begun that no blank line has ended."""
        return bool(self._partial or self._data or self._type)

    def feed(self, buffer: bytes, spans: list[tuple[int, int]]) -> list[Event]:
        """Reads buffer[start:stop] of each span, in order; the events' ends are offsets in `buffer`.

        Raises `EventTooLarge`.
        """
        events: list[Event] = []
        for start, stop in spans:
            while start < stop:
                # A whole event of one `data: ` line, as nearly all are, needs no reading line by line.
                if self._between and buffer.startswith(b"data: ", start, stop):
                    end = buffer.find(b"\n\n", start, stop)
                    data = buffer[start + 6 : end]
                    if end > 0 and b"\r" not in data and b"\n" not in data:
                        start = end + 2
                        events.append((start, b"", data))
                        self._at_start = False
                        continue
                start = self._read_lines(buffer, start, stop, events)
        self.dispatched += len(events)
        return events

    def _read_lines(self, buffer: bytes, start: int, stop: int, events: list[Event]) -> int:
        """Reads lines up to and with the next blank one; returns the position past them."""
        if self._after_cr:
            self._after_cr = False
            if buffer[start] == 0x0A:
                start += 1
        line = b"-"
        while line and start < stop:
            found = _BREAK.search(buffer, start, stop)
            if found is None:
                self._partial.append(buffer[start:stop])
                self._hold(stop - start)
                start = stop
                break
            line = buffer[start : found.start()]
            start = end = found.end()
            if buffer[end - 1] == 0x0D:
                if end == stop:
                    self._after_cr = True
                elif buffer[end] == 0x0A:
                    start += 1
            if self._partial:
                line = b"".join((*self._partial, line))
                self._partial.clear()
            if self._at_start:
                line = line.removeprefix(_BOM)
                self._at_start = False
            if line:
                self._field(line)
            else:
                if self._data:
                    events.append((end, self._type, b"\n".join(self._data)))
                    self._data.clear()
                self._type = b""
                self._held = 0
        self._between = not (self._after_cr or self.unfinished)
        return start

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._hold(len(value))
        elif name == b"event":
            self._type = value.removeprefix(b" ")
        elif name not in (b"", b"id", b"retry"):
            self.strange_lines += 1

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > LARGEST_EVENT:
            raise EventTooLarge
