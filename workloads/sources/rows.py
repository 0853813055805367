"""What every file format yields: one row per request, or per conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from workloads.sources import Message


class RowError(ValueError):
    """A line that does not hold what its format promises; says what is wrong with it."""


class Said(NamedTuple):
    """A later turn as it was recorded: what was said (by a `user`, or as a `tool`'s result)."""

    text: str
    role: str = "user"


class Conversation(NamedTuple):
    """Recorded texts. `opening` is said before the first answer, `later[i]` after answer i; `answers` as recorded.

    A recorded answer's only use is its length: what is repeated to the server is what it answered itself.
    """

    opening: tuple[Message, ...]
    later: tuple[Said, ...] = ()
    answers: tuple[str | int | None, ...] = (None,)


class Row(NamedTuple):
    """`time_s` on the trace's own clock; `blocks` are content hashes of the prompt's blocks, where there are any.

    A row of texts has a `conversation` and counts no tokens.
    """

    time_s: float | None
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] | None = None
    conversation: Conversation | None = None


MOST_TOKENS = 10_000_000
"""Of one prompt or one answer, as in a workload's file."""

Parse = Callable[[bytes], Row | None]
"""One row's bytes read; None for a row that holds nothing to send. Raises `RowError`."""


def count_of(text: str, column: str) -> int:
    """A number of tokens, in digits (`12`, or `12.0` as spreadsheets write it). Raises `RowError`."""
    digits = text.removesuffix(".0")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
        raise RowError(f"{column}: '{text[:40]}' is no number of tokens")
    if int(digits) > MOST_TOKENS:
        raise RowError(f"{column}: {digits} tokens are more than any model takes")
    return int(digits)


def plain(error: Any) -> str:
    """A library's message as part of a sentence of ours."""
    message = str(error)
    return message if message[:4] == "JSON" else message[:1].lower() + message[1:]
