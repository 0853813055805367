"""How a good stream may be wrapped: line ends, comments, chunks, lengths, encodings, splits."""

from __future__ import annotations

import zlib

from locustfiles.client.reading import Asked
from tests.support.catalogue.reply import EVENTS, good
from tests.support.replies import (
    DONE,
    LAST_CHUNK,
    STREAM,
    UNFRAMED,
    Close,
    Reset,
    Send,
    Steps,
    Wait,
    chunk,
    chunked,
    delta,
    event,
    head,
    timed,
    usage_chunk,
    words,
)

_FLAT = b"".join(EVENTS)


def _rewritten(old: bytes, new: bytes) -> Steps:
    return chunked([piece.replace(old, new) for piece in EVENTS])


good("crlf", _rewritten(b"\n", b"\r\n"), 5, 5)
good("cr", _rewritten(b"\n", b"\r"), 5, 5)
good(
    "mixed_line_ends",
    chunked(
        [
            piece[:-2] + ending
            for piece, ending in zip(
                EVENTS,
                [b"\r\n\n", b"\n\r\n", b"\r\r", b"\n\r", b"\r\n\r\n", b"\n\n", b"\r\r\n"] * 2,
                strict=False,
            )
        ]
    ),
    5,
    5,
)
good("no_space_after_colon", _rewritten(b"data: ", b"data:"), 5, 5)
good("comments", chunked([b": keep-alive\n\n", *(piece + b":\n: ping\n\n" for piece in EVENTS)]), 5, 5)
good("fields", chunked([b"id: 7\nretry: 3000\nevent: message\n" + piece for piece in EVENTS]), 5, 5)
good(
    "several_data_lines",
    chunked([piece.replace(b'"choices":', b'\ndata: "choices"\ndata: :') for piece in EVENTS]),
    5,
    5,
)
good("byte_order_mark", chunked([b"\xef\xbb\xbf" + EVENTS[1], *EVENTS[2:]]), 5, 5)
good(
    "empty_data_as_keep_alive",
    chunked([b"data:\n\n", b"data: \n\n", b"event: ping\ndata: ping\n\n", *EVENTS]),
    5,
    5,
)
good("joined", (Wait(0.06), Send(STREAM + b"".join(chunk(piece) for piece in EVENTS) + LAST_CHUNK)), 5, 5)
_RAW = (
    b"".join(chunk(piece) for piece in [words(0)[0], delta(content="é漢😀"), delta(content="字", finish="stop"), DONE])
    + LAST_CHUNK
)
good("split_anywhere", timed(STREAM, [_RAW[i : i + 61] for i in range(0, len(_RAW), 61)]), 2, finish="stop")
_at = _RAW.index("漢".encode()) + 1
good(
    "split_in_a_character",
    timed(STREAM, [_RAW[:_at], _RAW[_at:]]),
    2,
    finish="stop",
    asked=Asked(keep_text=True),
    answer="é漢😀字",
)
good(
    "chunks_across_events",
    timed(STREAM, [chunk(_FLAT[i : i + 333]) for i in range(0, len(_FLAT), 333)], Send(LAST_CHUNK)),
    5,
    5,
)
good("large_event", chunked([delta(content="x" * 2**20), *words(1)[1:], usage_chunk(9), DONE]), 2, 9)
good(
    "chunk_extensions",
    timed(STREAM, [chunk(piece, b';name="a\\";b";x') for piece in EVENTS], Send(LAST_CHUNK)),
    5,
    5,
)
good("trailers", chunked(EVENTS, Send(b"0\r\nx-checksum: 1\r\nx-more: 2\r\n\r\n")), 5, 5)
good(
    "upper_case_sizes",
    timed(STREAM, [b"%X \r\n%s\r\n" % (len(piece), piece) for piece in EVENTS], Send(b"000\r\n\r\n")),
    5,
    5,
)
good("http10_until_close", timed(head(version="1.0", content_type="text/event-stream"), EVENTS, Close()), 5, 5)
good("until_close", timed(UNFRAMED, EVENTS, Close()), 5, 5)
good("with_length", timed(head(content_type="text/event-stream", content_length=str(len(_FLAT))), EVENTS), 5, 5)
good(
    "continue_first",
    timed(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + STREAM,
        [chunk(piece) for piece in EVENTS],
        Send(LAST_CHUNK),
    ),
    5,
    5,
)
good(
    "no_content_type",
    timed(head(transfer_encoding="chunked"), [chunk(piece) for piece in EVENTS], Send(LAST_CHUNK)),
    5,
    5,
)


def _gzipped() -> Steps:
    squeeze = zlib.compressobj(wbits=31)
    pieces = [squeeze.compress(piece) + squeeze.flush(zlib.Z_SYNC_FLUSH) for piece in EVENTS] + [squeeze.flush()]
    opening = head(content_type="text/event-stream", transfer_encoding="chunked", content_encoding="gzip")
    return timed(opening, [chunk(piece) for piece in pieces], Send(LAST_CHUNK))


good("gzip", _gzipped(), 5, 5)
good("data_after_done", chunked([*EVENTS, *words(2), event({"error": "late"})]), 5, 5)
good("no_done", chunked([*words(5), usage_chunk(5)]), 5, 5)
good("no_done_until_close", timed(UNFRAMED, words(5), Close()), 5)
good("done_then_closed_without_last_chunk", chunked([*words(5), DONE], Close()), 5)
good("done_then_reset", chunked([*words(5), DONE], Wait(0.05), Reset()), 5)
good("done_without_finish_reason", chunked([*words(5, None), DONE]), 5, finish=None)
good("closes_after_announcing_keep_alive", (*chunked(EVENTS), Close()), 5, 5)
good(
    "connection_close",
    timed(
        head(content_type="text/event-stream", transfer_encoding="chunked", connection="close"),
        [chunk(piece) for piece in EVENTS],
        Send(LAST_CHUNK),
        Close(),
    ),
    5,
    5,
)
