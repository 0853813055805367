"""A tokenizer of this engine's own: fast, deterministic, and additive at word borders.

A token is one CJK character, or up to twelve other characters of a word with the space before them, or one character of
white space. So the count of `a + b` is the sum of theirs wherever b starts with white space or a CJK character, and
prompts of an exact length can be built from words. It is no model's tokenizer: a text has another length there.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence

# Radicals, kana, CJK ideographs, hangul, compatibility and full-width forms, and the supplementary ideographic planes.
_WIDE = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[{_WIDE}]| ?[^\s{_WIDE}]{{1,12}}|\s")
_NARROW_TOKEN = re.compile(r" ?\S{1,12}|\s")  # the same where all is ASCII, and a quarter faster
_IS_WIDE = re.compile(f"[{_WIDE}]")

_START = "<|begin|>"
_END = "<|end|>"
_FIRST_ID = 256


def tokenize(text: str) -> list[str]:
    """The tokens of `text`; joined they give it back."""
    return (_NARROW_TOKEN if text.isascii() else _TOKEN).findall(text)


def chat_tokens(messages: Iterable[tuple[str, str]], generation_prompt: bool = True) -> list[str]:
    """The tokens of (role, content) messages in this engine's chat template: a start, then for each message four tokens
    before and one after its content, and the four that open the assistant's reply."""
    tokens = [_START]
    for role, content in messages:
        tokens += _header(role)
        tokens += tokenize(content)
        tokens.append(_END)
    if generation_prompt:
        tokens += _header("assistant")
    return tokens


def _header(role: str) -> tuple[str, str, str, str]:
    return "<|role|>", role, "<|says|>", "\n"


def token_id(token: str, vocabulary: int) -> int:
    """A stable id below `vocabulary`; different tokens may share one."""
    return _FIRST_ID + zlib.crc32(token.encode()) % (vocabulary - _FIRST_ID)


def is_wide(text: str) -> bool:
    return _IS_WIDE.search(text) is not None


def block_hashes(tokens: Sequence[object], block_size: int, before: int = 0) -> list[int]:
    """A hash for each full block, chained so that it stands for the whole prompt up to the block's end.

    They mean something within this process only, as those of vLLM do by default.
    """
    hashes: list[int] = []
    chain = before
    for start in range(0, len(tokens) - block_size + 1, block_size):
        chain = hash((chain, *tokens[start : start + block_size]))
        hashes.append(chain)
    return hashes
