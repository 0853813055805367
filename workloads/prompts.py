"""Prompts of exact length from calibrated words, of which no two begin alike unless they are meant to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workloads.randomness import choices, key_of, scramble64
from workloads.tokens import Calibration, Lexicon, Message, Shape
from workloads.vocabulary import LEADS, SYSTEM_LEAD


class Passage(NamedTuple):
    """A run of words and its designed length."""

    text: str
    tokens: int


@dataclass(frozen=True)
class Prompt:
    """A prompt ready to be put into a body: `messages` for chat, `text` for completions."""

    tokens: int | None
    messages: Sequence[Message] | None = None
    text: str | None = None


class _Pool:
    """A lexicon laid out for fast picking."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.texts: npt.NDArray[np.object_] = np.array(lexicon.texts, dtype=object)
        self.costs = np.array(lexicon.costs, dtype=np.int64)
        self.cheapest = int(self.costs.min())
        self.size = len(lexicon.texts)


class Prompter:
    """Makes any prompt on its own from (seed, salt, what it is for, its number).

    The salt changes every text and no length: a second run with another salt finds nothing of the first one in the
    engine's prefix cache, and a run with the same seed and salt repeats every byte.
    """

    def __init__(self, calibration: Calibration, seed: int, salt: str = "") -> None:
        self.calibration = calibration
        self._seed = seed
        self._salt = salt
        self._pools = {name: _Pool(lexicon) for name, lexicon in calibration.lexicons.items()}
        self._opening = calibration.opening
        self._bits = max(1, min(len(calibration.opening.texts).bit_length() - 1, 16))
        self._opening_words = math.ceil(64 / self._bits)
        self._keys: dict[str, tuple[bytes, bytes]] = {}
        self._shared = lru_cache(maxsize=128)(self.passage)

    def base(self, shape: Shape) -> int:
        """Tokens of the shape's fixed part: template, leads."""
        return self.calibration.bases[shape.key]

    def passage(self, language: str, tokens: int, purpose: str, number: int) -> Passage:
        """Words of `tokens` tokens, the same for the same arguments; a shorter one is the longer one's beginning.

        The first 64 bits' worth of words (seven or eight of them) are `number` scrambled one to one, so two passages
        of a purpose always differ within them; across purposes, seeds and salts they differ but for chance (2^-64).
        Where no word costs one token, up to the cheapest word's cost less one can be missing: `Passage.tokens` tells.
        """
        opening_key, text_key = self._keys_of(purpose)
        start, used = self._open(scramble64(opening_key, number), tokens)
        pool = self._pools[language]
        rest = tokens - used
        picks = choices(text_key, number, max(rest, 0) // pool.cheapest, pool.size)
        ends = np.cumsum(pool.costs[picks])
        fitting = int(np.searchsorted(ends, rest, side="right"))
        words = pool.texts[picks[:fitting]].tolist()
        if fitting:
            used += int(ends[fitting - 1])
        filler, cost = self._opening.texts, self._opening.costs[0]
        while used + cost <= tokens:
            words.append(filler[(number + used) % len(filler)])
            used += cost
        return Passage(start + "".join(words), used)

    def prompt(
        self,
        shape: Shape,
        tokens: int,
        index: int,
        *,
        request_class: str,
        system_tokens: int = 0,
        shared: tuple[int, int] | None = None,
        documents: tuple[int, ...] = (),
        document_tokens: int = 0,
    ) -> Prompt:
        """Request `index`'s prompt of `tokens` tokens in all; `shared` is (group, tokens) of a text it begins with.

        `documents` are the numbers of texts of `document_tokens` tokens each that come next, before its own words.
        Where the fixed and shared parts leave no room, the prompt is longer than asked: one word of its own at least.
        """
        system = None
        used = self.base(shape)
        if shape.system:
            own = max(self._nominal(system_tokens) - len(SYSTEM_LEAD.split()), 0)
            system = self._shared(shape.language, own, f"system {request_class}", 0)
            used += system.tokens
        prefix = Passage("", 0)
        if shared:
            prefix = self._shared(shape.language, self._nominal(shared[1]), f"shared {request_class}", shared[0])
        size = self._nominal(document_tokens)
        found = [self._shared(shape.language, size, f"document {request_class}", number) for number in documents]
        given = prefix.tokens + sum(document.tokens for document in found)
        own_tokens = max(self._nominal(tokens - used) - given, 1)
        rest = self.passage(shape.language, own_tokens, "request", index)
        words = prefix.text + "".join(document.text for document in found) + rest.text
        return self._compose(shape, system, words, used, given + rest.tokens)

    def turn(self, shape: Shape, tokens: int, index: int, turn: int) -> str:
        """The words of a later turn of the conversation that request `index` began, `tokens` tokens of them."""
        return self.passage(shape.language, max(self._nominal(tokens), 1), f"turn {turn}", index).text

    def block_prompt(self, shape: Shape, tokens: int, index: int, blocks: tuple[int, ...], block_tokens: int) -> Prompt:
        """A prompt of `tokens` tokens whose text is that of the numbered blocks, one after another, cut at the end.

        Prompts whose block numbers begin alike begin alike over those blocks' `block_tokens` tokens each. What the
        blocks do not fill are words of request `index`'s own.
        """
        used = self.base(shape)
        left = max(self._nominal(tokens - used), 1)
        parts: list[Passage] = []
        size = self._nominal(block_tokens)
        for block in blocks:
            parts.append(self._shared(shape.language, min(size, left), "block", block))
            left -= parts[-1].tokens
            if left <= 0:
                break
        else:
            parts.append(self.passage(shape.language, left, "request", index))
        return self._compose(shape, None, "".join(p.text for p in parts), used, sum(p.tokens for p in parts))

    def _compose(self, shape: Shape, system: Passage | None, words: str, used: int, nominal: int) -> Prompt:
        text = LEADS[shape.language] + words
        total = used + round(nominal * self.calibration.scale)
        if shape.endpoint == "completions":
            return Prompt(total, text=text)
        messages: list[Message] = [{"role": "user", "content": text}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": SYSTEM_LEAD + system.text})
        return Prompt(total, messages=messages)

    def _nominal(self, tokens: int) -> int:
        return tokens if self.calibration.scale == 1 else round(tokens / self.calibration.scale)

    def _open(self, number: int, tokens: int) -> tuple[str, int]:
        texts, cost = self._opening.texts, self._opening.costs[0]
        count = min(self._opening_words, tokens // cost)
        mask = (1 << self._bits) - 1
        return "".join([texts[(number >> (self._bits * i)) & mask] for i in range(count)]), count * cost

    def _keys_of(self, purpose: str) -> tuple[bytes, bytes]:
        keys = self._keys.get(purpose)
        if keys is None:
            keys = self._keys[purpose] = (
                key_of("opening", self._seed, self._salt, purpose),
                key_of("text", self._seed, self._salt, purpose),
            )
        return keys
