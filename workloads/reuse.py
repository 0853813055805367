"""How much of a plan's prompts an engine can find in its prefix cache, by design.

An unbounded cache of whole KV blocks is filled with the prompts in their order: what a real one finds beyond that, it
must have held from elsewhere (an earlier run with the same seed, somebody else's requests); what it finds less, it has
evicted, or it does not cache.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

BLOCK_TOKENS = 16
"""vLLM's default `--block-size` on GPUs: only whole blocks are shared."""


class Reuse(NamedTuple):
    """Tokens of prompts, and how many of them were in the cache."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def share(self) -> float | None:
        """None where there was no prompt."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


class PrefixCache:
    """An unbounded prefix cache. A prompt is given by its parts in order, each with its length in tokens."""

    def __init__(self) -> None:
        self.prompts = 0
        self._known: set[tuple[Hashable, ...]] = set()
        self._prompt_tokens = 0
        self._cached_tokens = 0

    def add(self, parts: Sequence[tuple[Hashable, int]], prompt_tokens: int) -> None:
        """One prompt of `prompt_tokens`, of which `parts` are those that others may share; the rest is its own."""
        shared, found = 0, True
        path: tuple[Hashable, ...] = ()
        for name, tokens in parts:
            # A part means something only behind the parts before it; two levels of them are told apart by their hash.
            path = (hash(path), name)
            found = found and path in self._known
            shared += tokens if found else 0
            self._known.add(path)
        self.add_known(shared, prompt_tokens)

    def add_known(self, shared_tokens: int, prompt_tokens: int) -> None:
        """One prompt whose first `shared_tokens` are in the cache."""
        # The last token is computed in any case: its result is the first of the answer.
        whole = min(shared_tokens, prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        self.prompts += 1
        self._prompt_tokens += prompt_tokens
        self._cached_tokens += max(whole, 0)

    @property
    def reuse(self) -> Reuse:
        return Reuse(self._prompt_tokens, self._cached_tokens)
