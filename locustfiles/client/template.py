"""The quick way through a stream: events that equal one read before but for their text, and their counts of tokens.

Nearly all events of an answer differ in one JSON string only. One of them, read by the book, becomes a template: the
bytes before that string and after it. What matches it byte for byte around a well-formed string is known without
decoding: a string's body cannot change what stands outside it. Everything else is read by the book; which of the two
read an event changes no finding (the tests hold them against each other).
"""

from __future__ import annotations

import re
from typing import Any

from locustfiles.client.deltas import Chunk, Tally, decode_chunk

_BODY = rb'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])+'
_STRING = re.compile(rb'"(content|reasoning_content|reasoning|text)": ?"(' + _BODY + rb')"')
_COUNT = re.compile(rb'"(completion|total)_tokens": ?(0|[1-9]\d{0,8})(?=[,}])')
_ANY_COUNT = rb"(0|[1-9]\d{0,8})"
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]+')
_BEFORE, _AFTER = b"data: ", b"\n\n\r\n"
_FRAMING_AFTER = 2  # the CRLF that ends a chunk is no part of its event
_LARGEST = 4096
_MOST_HEADS = 64


class EventTemplate:
    """A chunk of the HTTP response that is one event: size line, `prefix`, a text, `separator`.

    With `counts`, the separator is what follows the last count of tokens, and `rest` matches text and counts.
    """

    __slots__ = ("_completion", "_heads", "_prefix", "_rest", "_usage", "separator")

    def __init__(self, prefix: bytes, separator: bytes, rest: re.Pattern[bytes], usage: Any, completion: int) -> None:
        self.separator = separator
        self._prefix = prefix
        self._rest = rest
        self._usage = usage
        self._completion = completion
        self._heads: dict[int, bytes] = {}

    @classmethod
    def of(cls, data: bytes) -> EventTemplate | None:
        """The template of an event with this data; None where it is none that others will equal."""
        if len(data) > _LARGEST or b"\n" in data or b"\r" in data:
            return None
        chunk = _decoded(data)
        if chunk is None or not chunk.choices or len(chunk.choices) != 1 or chunk.error or chunk.object == "error":
            return None
        if chunk.choices[0].finish_reason:
            return None
        for found in _STRING.finditer(data):
            prefix, suffix = _BEFORE + data[: found.start(2)], data[found.end(2) :]
            if _is_field(chunk, found[1].decode(), _decoded(data[: found.start(2)] + b"~" + suffix)):
                if chunk.usage is None:
                    return cls(prefix, suffix + _AFTER, re.compile(b"(" + _BODY + b")"), None, 0)
                return cls._counting(chunk, data[: found.start(2)], found[2], suffix)
        return None

    @classmethod
    def _counting(cls, chunk: Chunk, before: bytes, text: bytes, suffix: bytes) -> EventTemplate | None:
        """The same where each event tells how many tokens there have been."""
        usage = chunk.usage
        pattern, probe, at, completion = b"(" + _BODY + b")", b"", 0, 0
        for number, found in enumerate(_COUNT.finditer(suffix), start=2):
            pattern += re.escape(suffix[at : found.start(2)]) + _ANY_COUNT
            probe += suffix[at : found.start(2)] + b"%d" % (1000 + number)
            at = found.end(2)
            if found[1] == b"completion":
                completion = number
        tried = _decoded(before + text + probe + suffix[at:])
        if usage is None or not completion or tried is None or tried.usage is None:
            return None
        if tried.usage.completion_tokens != 1000 + completion:
            return None
        tried.usage.completion_tokens = usage.completion_tokens
        if tried != chunk:
            return None
        return cls(_BEFORE + before, suffix[at:] + _AFTER, re.compile(pattern), usage, completion)

    def fits(self, data: bytes) -> bool:
        """Whether an event differs from the template inside its text only: there is no better template for it."""
        return data.startswith(self._prefix[len(_BEFORE) :]) and data.endswith(self.separator[: -len(_AFTER)])

    def take(self, parts: list[bytes], at: int, stop: int, end: int, tally: Tally) -> tuple[int, int]:
        """Reads parts[at:stop], each with a separator after it, until one differs; returns how many matched, and where
        the last of them ended, the first having begun at `end`. `tally` finds what it would have found in each.

        They stand where a chunk may begin and between two events, and the answer has not ended.
        """
        heads, behind = self._heads, len(self.separator)
        texts: list[bytes] = []
        ends: list[int] = []
        for part in parts if not at and stop == len(parts) else parts[at:stop]:
            head = heads.get(len(part)) or self._head(len(part))
            if not part.startswith(head):
                break
            texts.append(part[len(head) :])
            end += len(part) + behind
            ends.append(end)
        counts: list[int] = []
        # The texts do not touch, so that two halves of a character do not make one whole.
        joined = b" ".join(texts)
        if self._usage is not None or not _PLAIN.fullmatch(joined) or not _is_utf8(joined):
            matched = self._matching(texts, counts)
            del ends[matched:]
        if ends:
            tally.token_ends.extend([end - _FRAMING_AFTER for end in ends])
            if counts:
                tally.take_running_counts(self._usage, counts)
        return len(ends), ends[-1] if ends else 0

    def _matching(self, rests: list[bytes], counts: list[int]) -> int:
        """How many of `rests`, from the first on, are as they should be; their counts of tokens go to `counts`."""
        match, completion = self._rest.fullmatch, self._completion
        for number, rest in enumerate(rests):
            found = match(rest)
            if found is None or not _is_utf8(rest):
                return number
            if completion:
                counts.append(int(found[completion]))
        return len(rests)

    def _head(self, length: int) -> bytes:
        """What a part of this length must begin with: the size line that agrees with the length, and the prefix."""
        inside = length + len(self.separator) - _FRAMING_AFTER
        found = b"\0" * (length + 1)  # no part of that length begins so
        for digits in range(1, 6):
            size = b"%x" % max(inside - digits - 2, 0)
            head = size + b"\r\n" + self._prefix
            if len(size) == digits and len(head) < length:
                found = head
        if len(self._heads) < _MOST_HEADS:
            self._heads[length] = found
        return found


def _decoded(data: bytes) -> Chunk | None:
    try:
        return decode_chunk(data)
    except Exception:
        return None


def _is_field(chunk: Chunk, name: str, probed: Chunk | None) -> bool:
    """Whether putting ~ into the string changed that field of the only choice, to ~, and nothing else."""
    assert chunk.choices
    if probed is None or not probed.choices or len(probed.choices) != 1:
        return False
    was: Any = chunk.choices[0] if name == "text" else chunk.choices[0].delta
    now: Any = probed.choices[0] if name == "text" else probed.choices[0].delta
    if was is None or now is None or getattr(now, name) != "~":
        return False
    setattr(now, name, getattr(was, name))
    return probed == chunk


def _is_utf8(raw: bytes) -> bool:
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
