"""The words prompts are made of: English ones, and Chinese clauses put together from subjects and predicates.

Only data and its reading; which of them a tokenizer counts as what is `workloads.tokens`' business. A unit carries
its own separator in front, so that units are joined without anything between and a tokenizer that splits before
words treats each apart.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_CLAUSES = 150

LEADS = {"en": "Please read this text", "zh": "请阅读下面的内容", "mixed": "Please read this text"}
SYSTEM_LEAD = "You are a helpful assistant"


def _words(name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((_HERE / name).read_text(encoding="utf-8").split()))


@cache
def english() -> tuple[str, ...]:
    """About 1,100 common words, each with a space in front."""
    return tuple(f" {word}" for word in _words("en.txt"))


@cache
def chinese() -> tuple[str, ...]:
    """Clauses, each with a comma in front (it keeps neighbours from being merged into one token)."""
    subjects, predicates = _words("zh_subjects.txt"), _words("zh_predicates.txt")
    pairs = [(s, p) for s in subjects for p in predicates]
    return tuple(f"，{s}{p}" for s, p in pairs[:: len(pairs) // _CLAUSES])
