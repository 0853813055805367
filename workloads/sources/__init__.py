"""Where a request's design comes from: one module per source, each answering what request i is to be.

A source knows lengths, classes, sharing and, where it has any, times. It makes no text and no body.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Design(NamedTuple):
    """One request before it has words. `group` numbers a shared-prefix group, `blocks` a trace's hashed blocks."""

    request_class: str
    input_tokens: int
    output_tokens: int
    group: int | None = None
    blocks: tuple[int, ...] | None = None
    offset_s: float | None = None


class Source(Protocol):
    """A pure function of the index, so that any worker can ask for any request."""

    @property
    def length(self) -> int | None:
        """How many requests there are; None for no end."""

    def design(self, index: int) -> Design:
        """Request `index`. Raises IndexError past the end."""
