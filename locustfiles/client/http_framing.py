"""HTTP/1.x framing of one response: raw bytes → status, headers, and where in them the body's bytes lie.

Every event's time is looked up by its offset in the raw stream, chunk framing included, so framing must tell *where* a
body byte stood. httptools (llhttp) hands out bodies without offsets, and chunk extensions make them unrecoverable from
its callbacks. So llhttp reads the head, where the grammar is rich and speed is nothing, and the body's framing (RFC
9112, sections 6.3 and 7.1: a length, the close, or chunks) is read here, and tested against llhttp byte for byte.
"""

from __future__ import annotations

import re

import httptools

Span = tuple[int, int]
"""Body bytes, as buffer[start:stop]."""

LARGEST_HEAD = 64 * 2**10
"""Bytes a response's head, or its trailer, may hold."""
LARGEST_SIZE_LINE = 4096
"""Bytes a chunk's size line may hold, extensions included."""

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\Z")
_sizes: dict[bytes, int] = {}
"""Size lines seen, read: a stream's chunks have few lengths, and a look-up costs a third of reading one."""


class Framing:
    """Framing of one response, fed in any pieces. Results do not depend on how the bytes were split.

    `head_end` is the raw offset just past the head (0 before it came), `end` that of the last byte that belongs to the
    response; `complete` says that it ended by its own rules, `fault` which rule it broke (nothing is read after that).
    """

    __slots__ = (
        "_expects",
        "_keep_alive",
        "_left",
        "_line",
        "_trailer_left",
        "complete",
        "end",
        "fault",
        "head_end",
        "headers",
        "reason",
        "status",
        "surplus",
    )

    def __init__(self) -> None:
        self.status: int | None = None
        self.reason = ""
        self.headers: dict[str, str] = {}
        self.head_end = 0
        self.end = 0
        self.complete = False
        self.fault: str | None = None
        self.surplus = b""
        self._keep_alive = False
        self._line = b""
        self._left = 0
        self._trailer_left = LARGEST_HEAD
        self._expects = "head"  # then: length | close | size, data, data_end (of a chunk), trailer

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request: it stays open, and nothing is left over on it."""
        return self.complete and self._keep_alive and not self.surplus

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return self._expects not in ("head", "length", "close")

    @property
    def between_chunks(self) -> bool:
        """Whether the next byte begins a chunk's size line."""
        return self._expects == "size" and not self._line and self.fault is None

    def pass_over(self, end: int) -> None:
        """Whole chunks up to the raw offset `end` have been read elsewhere."""
        self.end = end

    def feed(self, raw: bytes) -> list[Span]:
        """Reads the next bytes; returns where in `raw` the body's are."""
        spans: list[Span] = []
        if self.fault is not None:
            return spans
        if self.complete:
            self.surplus += raw
            return spans
        position, stop = 0, len(raw)
        while position < stop and not self.complete and self.fault is None:
            if self._expects == "size" and not self._line:
                position = self._read_whole_chunks(raw, position, spans)
                if position == stop:
                    break
            position = self._read_part(raw, position, spans)
        self.end += position
        if self.complete:
            self.surplus = raw[position:]
        return spans

    def abandon(self, fault: str, end: int) -> None:
        """A layer above has found that nothing past the raw offset `end` can be read."""
        self.fault, self.end = fault, end
        self.complete, self.surplus = False, b""

    def eof(self) -> bool:
        """The other end has closed; returns whether the response is whole."""
        if self._expects == "close":
            self.complete = True
        return self.complete

    def _read_whole_chunks(self, raw: bytes, position: int, spans: list[Span]) -> int:
        """The quick way through chunks that lie whole in `raw`; stops before anything else, faults included."""
        while (line_end := raw.find(b"\r\n", position)) >= 0:
            line = raw[position:line_end]
            size = _sizes.get(line) or _read_size(line)
            data = line_end + 2
            data_end = data + (size or 0)
            if not size or raw[data_end : data_end + 2] != b"\r\n":
                break
            spans.append((data, data_end))
            position = data_end + 2
        return position

    def _read_part(self, raw: bytes, position: int, spans: list[Span]) -> int:
        """Reads as much of the part now expected as `raw` holds; returns the position past it."""
        stop = len(raw)
        expects = self._expects
        if expects == "close":
            spans.append((position, stop))
            return stop
        if expects in ("length", "data"):
            taken = min(self._left, stop - position)
            spans.append((position, position + taken))
            self._left -= taken
            if not self._left:
                if expects == "length":
                    self.complete = True
                else:
                    self._expects = "data_end"
            return position + taken
        if expects == "head":
            return self._read_head(raw, position)
        line_end = raw.find(b"\n", position)
        taken = (stop if line_end < 0 else line_end + 1) - position
        return self._read_line(raw[position : position + taken], whole=line_end >= 0, position=position)

    def _read_line(self, piece: bytes, *, whole: bool, position: int) -> int:
        """Reads a line of chunk framing, or a piece of it; a fault leaves the position where the line began."""
        began = position - len(self._line)
        self._line += piece
        line, expects = self._line, self._expects
        if expects == "data_end":
            if not b"\r\n".startswith(line):
                return self._break("chunk longer than its size", began)
            if whole:
                self._expects, self._line = "size", b""
            return position + len(piece)
        limit = LARGEST_SIZE_LINE if expects == "size" else self._trailer_left
        if len(line) > limit + 2 or (whole and not line.endswith(b"\r\n")):
            return self._break("bad chunk framing", began)
        if not whole:
            return position + len(piece)
        self._line = b""
        if expects == "trailer":
            self._trailer_left -= len(line)
            self.complete = line == b"\r\n"
        else:
            size = _read_size(line[:-2])
            if size is None:
                return self._break("bad chunk framing", began)
            self._left = size
            self._expects = "data" if size else "trailer"
        return position + len(piece)

    def _read_head(self, raw: bytes, position: int) -> int:
        """Reads heads up to the final one's end; interim ones (`100 Continue`) are passed over."""
        began = position - len(self._line)
        head = self._line + raw[position:]
        if not b"HTTP/1.".startswith(head[:7]):
            return self._break("not HTTP/1.x", began)
        length = head.find(b"\r\n\r\n") + 4
        if length < 4 and len(head) <= LARGEST_HEAD:
            self._line = head
            return len(raw)
        if length < 4 or length > LARGEST_HEAD:
            return self._break("endless response head", began)
        self._line = b""
        if not self._take_head(head[:length]):
            return self._break("bad response head", began)
        if self._expects != "head":
            # `end` still counts what came before `raw`.
            self.head_end = self.end + began + length
        return began + length

    def _take_head(self, head: bytes) -> bool:
        fields = _Fields()
        parser = httptools.HttpResponseParser(fields)
        try:
            parser.feed_data(head)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return False
        status = int(parser.get_status_code())
        if status == 101:
            return False
        if status < 200:
            return True
        self.status = status
        self.reason = fields.reason
        self.headers = fields.headers
        self._keep_alive = bool(parser.should_keep_alive())
        coding = fields.headers.get("transfer-encoding")
        length = fields.headers.get("content-length")
        if status in (204, 304):
            self._expects, self.complete = "length", True
        elif coding is not None:
            if coding.lower() != "chunked" or length is not None:
                return False
            self._expects = "size"
        elif length is not None:
            if not (length.isascii() and length.isdigit()):
                return False
            self._expects, self._left = "length", int(length)
            self.complete = self._left == 0
        else:
            self._expects, self._keep_alive = "close", False
        return True

    def _break(self, fault: str, position: int) -> int:
        self.fault = fault
        return position


class _Fields:
    """What llhttp says of a head: names in lower case; a header given twice is joined by a comma (RFC 9110, 5.3)."""

    def __init__(self) -> None:
        self.reason = ""
        self.headers: dict[str, str] = {}

    def on_status(self, status: bytes) -> None:
        self.reason += status.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text


def _read_size(line: bytes) -> int | None:
    """The size a chunk's first line states, None where it is no such line."""
    match = _SIZE_LINE.match(line) if len(line) <= LARGEST_SIZE_LINE else None
    if match is None:
        return None
    size = int(match[1], 16)
    if len(_sizes) < 4096 and size and len(line) < 8:
        _sizes[line] = size
    return size
