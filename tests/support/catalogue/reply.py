"""One reply: its script and its one right reading; and the short ways of writing one down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from locustfiles.client.reading import Asked, Reading
from tests.support.replies import DONE, Steps, usage, usage_chunk, words


@dataclass(frozen=True)
class Reply:
    """A script and its right reading. `limits` are the client's timeouts in seconds that the reply has to run into."""

    steps: Steps
    error: str | None = None
    events: int = 0
    tokens: int | None = 0
    source: str = "events"
    finish: str | None = None
    message: str | None = None
    status: int | None = 200
    retry_after_s: float | None = None
    counts: list[int] | None = None
    cached: int | None = None
    short: bool = False
    answer: str | None = None
    asked: Asked = field(default_factory=Asked)
    limits: dict[str, float] = field(default_factory=dict)

    def check(self, reading: Reading) -> None:
        """Everything that does not depend on time."""
        assert (reading.error, reading.error_message is None) == (self.error, self.error is None)
        if self.message is not None:
            assert reading.error_message == self.message
        if self.events >= 0:
            assert reading.events == self.events
            assert reading.output_tokens == self.tokens
        assert reading.tokens_source == self.source
        assert reading.finish_reason == self.finish
        assert reading.http_status == self.status
        assert reading.retry_after_s == self.retry_after_s
        assert reading.token_counts == self.counts
        assert reading.cached_tokens == self.cached
        assert reading.short_output == self.short
        assert reading.text == self.answer or not self.asked.keep_text
        assert reading.token_ends == sorted(reading.token_ends)
        assert all(reading.head_end < end <= reading.end for end in reading.token_ends)


REPLIES: dict[str, Reply] = {}

EVENTS = [*words(5), usage_chunk(5), DONE]
"""The answer that most scripts give: five tokens, their usage, the end."""
ERROR = {
    "message": "EngineCore encountered an issue.",
    "type": "InternalServerError",
    "param": None,
    "code": 500,
}
ERROR_SAID = "InternalServerError: EngineCore encountered an issue."
ANSWER: dict[str, Any] = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": usage(2),
}
"""A plain reply."""
COMPLETIONS = Asked("/v1/completions")
RESPONSES = Asked("/v1/responses")
PLAIN = Asked(stream=False)


def good(name: str, steps: Steps, events: int, tokens: int | None = None, **right: Any) -> None:
    """A good reply; its tokens are reported where they are given and counted otherwise."""
    source = "usage" if tokens is not None else "events"
    right = {"finish": "length", "source": source, **right}
    REPLIES[name] = Reply(steps, events=events, tokens=events if tokens is None else tokens, **right)


def bad(name: str, error: str, steps: Steps, events: int = 0, **right: Any) -> None:
    REPLIES[name] = Reply(steps, error=error, events=events, **{"tokens": events, **right})


def refused(name: str, steps: Steps, status: int, message: str | None = None, **right: Any) -> None:
    REPLIES[name] = Reply(
        steps, error=f"http_{status}", status=status, message=message, tokens=None, source="none", **right
    )


def plain(name: str, steps: Steps, error: str | None = None, tokens: int | None = None, **right: Any) -> None:
    """A reply to a request that asked for no stream."""
    source = "usage" if tokens is not None else "none"
    REPLIES[name] = Reply(steps, error=error, tokens=tokens, source=source, **{"asked": PLAIN, **right})
