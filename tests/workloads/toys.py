"""Token counters whose rules a reader can check by eye."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from workloads.tokens import Message, Tools

TEMPLATE_TOKENS = 3  # a start, a role and an end for each message; one more for the generation prompt


class WordTokens:
    """A token is a word with its space (capital or Chinese letters one by one); every call is counted."""

    description = "toy"
    split = re.compile(r" ?[a-z]+|[^a-z]")

    def __init__(self) -> None:
        self.calls = 0

    def tokens(self, text: str) -> list[str]:
        return self.split.findall(text)

    def count_text(self, text: str) -> int:
        self.calls += 1
        return 1 + len(self.tokens(text))

    def count_messages(self, messages: Sequence[Message], tools: Tools = ()) -> int | None:
        self.calls += 1
        told = len(self.tokens(json.dumps(list(tools)))) if tools else 0
        return 1 + told + sum(TEMPLATE_TOKENS + len(self.tokens(message["content"])) for message in messages)


class SplitLongWords(WordTokens):
    """Words of more than four letters fall into pieces of four: many words cost two or three tokens."""

    split = re.compile(r" ?[a-z]{1,4}|[^a-z]")


class Bytes(WordTokens):
    """Every byte is a token: no word costs one."""

    def tokens(self, text: str) -> list[str]:
        return list(map(str, text.encode()))


class MergesAcrossWords(WordTokens):
    """Two short words in a row become one token: the costs of words do not add up."""

    split = re.compile(r" [a-z]{1,3} [a-z]{1,3}\b| ?[a-z]+|[^a-z]")


class NoTemplate(WordTokens):
    """Knows the tokens but not the chat template."""

    def count_messages(self, messages: Sequence[Message], tools: Tools = ()) -> int | None:
        return None
