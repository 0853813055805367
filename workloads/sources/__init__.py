"""Where a request's design comes from: one module per source, each answering what request i is to be.

A source knows lengths, classes, sharing and, where it has any, times and texts. It makes no body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

Message = Mapping[str, Any]


class Design(NamedTuple):
    """One request before it has words. `input_tokens` None: as many as its own texts have, which nobody counted.

    `group` numbers a shared-prefix group, `documents` those put before the question, `blocks` a trace's hashed blocks
    of `block_tokens` each. `messages` are a recorded prompt, as it was said. `turns` counts the requests of the
    conversation that this one begins. `model` is an adapter's name. `text_number` numbers the made text, where that is
    not the request's index.
    """

    request_class: str
    input_tokens: int | None
    output_tokens: int
    group: int | None = None
    blocks: tuple[int, ...] | None = None
    block_tokens: int = 0
    offset_s: float | None = None
    turns: int = 1
    documents: tuple[int, ...] = ()
    model: str | None = None
    messages: tuple[Message, ...] | None = None
    text_number: int | None = None


class TurnDesign(NamedTuple):
    """A later request of a conversation: what it adds. `text` None: `input_tokens` words are made for it."""

    input_tokens: int
    output_tokens: int
    think_s: float
    role: str = "user"
    text: str | None = None


class Source(Protocol):
    """A pure function of the index, so that any worker can ask for any request."""

    @property
    def length(self) -> int | None:
        """How many requests (of conversations: how many of those) there are; None for no end."""

    def design(self, index: int) -> Design:
        """Request `index`. Raises IndexError past the end."""

    def turn(self, index: int, turn: int) -> TurnDesign:
        """What turn `turn` (1 is the second) adds to the conversation that request `index` begins."""
