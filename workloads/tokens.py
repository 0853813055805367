"""What the words cost in a model's tokens: learnt once from any counter, then summed with no further call.

A tokenizer that splits before words (all byte-level BPE ones: Llama 3, Qwen, GPT, Mistral's newer) gives a word the
same tokens wherever it stands. So a text's length is a sum of its words' costs, once those are known. Whether this
one does is checked, not assumed: where the sum is off, the share by which it is off is measured and stated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from workloads.randomness import choices, key_of
from workloads.vocabulary import LEADS, SYSTEM_LEAD, chinese, english

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]
_WANTED = 256  # eight bits a word: eight words make an opening that no other prompt has
_FEW = 64
_MOST_CALLS = 1500


class TokenCounter(Protocol):
    """Counts as the server under test would count, for example over its `/tokenize`."""

    @property
    def description(self) -> str:
        """Where the counts come from, for reports: `server /tokenize`, `tokenizer.json`."""

    def count_text(self, text: str) -> int:
        """Tokens of a completions prompt, the special ones that the server adds included."""

    def count_messages(self, messages: Sequence[Message], tools: Tools = ()) -> int | None:
        """Tokens of a chat prompt with the chat template, the tools that it tells of and the generation prompt.

        None where the template is not known.
        """


@dataclass(frozen=True)
class Shape:
    """What the fixed part of a prompt depends on."""

    endpoint: Literal["chat", "completions"]
    language: Literal["en", "zh", "mixed"]
    system: bool = False
    tools: str = ""
    """JSON of the tools that the template tells the model of; they count as part of the prompt."""

    @property
    def key(self) -> str:
        tools = f"/tools-{hashlib.sha256(self.tools.encode()).hexdigest()[:12]}" if self.tools else ""
        return f"{self.endpoint}/{self.language}{'/system' if self.system else ''}{tools}"


@dataclass(frozen=True)
class Lexicon:
    """Units of text and the tokens of each."""

    texts: tuple[str, ...]
    costs: tuple[int, ...]


@dataclass(frozen=True)
class Calibration:
    """All that exact prompts need to know of a tokenizer; JSON-able, so that one process can learn it for all.

    `bases` are the tokens of a prompt that has its leads but no words yet, template included. `scale` is how many
    tokens a nominal one turned out to be: 1 where costs add up. `error` is the largest share by which a checked text
    missed its designed length, None where nothing could be checked.
    """

    source: str
    lexicons: dict[str, Lexicon]
    opening: Lexicon
    bases: dict[str, int]
    scale: float = 1.0
    error: float | None = None
    template_known: bool = True
    characters_per_token: float | None = None
    """Measured over a sample of a file's own texts; None where none was measured."""
    characters_error: float | None = None

    @property
    def exact(self) -> bool:
        """Whether every checked text had precisely the designed length, chat template included."""
        return self.error == 0 and self.template_known

    @property
    def note(self) -> str:
        """How far prompt lengths can be trusted, as a sentence for people."""
        if self.exact:
            return f"prompt lengths are exact ({self.source})"
        if self.error is None:
            return (
                "prompt lengths are counted in words, not tokens, and leave out the chat template: "
                "no tokenizer was at hand (give --tokenizer PATH, or a server with /tokenize)"
            )
        if not self.template_known:
            return f"prompt lengths leave out the chat template, which {self.source} does not know"
        return f"prompt lengths are off by up to {self.error:.1%}: this tokenizer ({self.source}) merges across words"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Calibration:
        """The inverse of `to_dict`, after a passage through JSON or msgpack."""

        def lexicon(item: dict[str, Any]) -> Lexicon:
            return Lexicon(tuple(item["texts"]), tuple(item["costs"]))

        return cls(
            source=data["source"],
            lexicons={name: lexicon(item) for name, item in data["lexicons"].items()},
            opening=lexicon(data["opening"]),
            bases=dict(data["bases"]),
            scale=data["scale"],
            error=data["error"],
            template_known=data["template_known"],
            characters_per_token=data.get("characters_per_token"),
            characters_error=data.get("characters_error"),
        )


def calibrate(counter: TokenCounter | None, shapes: Iterable[Shape]) -> Calibration:
    """Learns the words' costs for prompts of these shapes: some tens of calls for English, some hundreds for Chinese.

    Deterministic: two workers that ask the same tokenizer learn the same. The counter's own errors pass through.
    """
    wanted = sorted(set(shapes), key=lambda shape: shape.key)
    if counter is None:
        return _in_words(wanted)
    words = _price_words(counter.count_text, english())
    cheapest = min(words.costs)
    singles = [text for text, cost in zip(words.texts, words.costs, strict=True) if cost == cheapest]
    opening = Lexicon(tuple(singles), (cheapest,) * len(singles))
    lexicons = {"en": opening if len(singles) >= _FEW else words}
    if any(shape.language != "en" for shape in wanted):
        lexicons["zh"] = _price_each(counter.count_text, LEADS["zh"], chinese())
        lexicons["mixed"] = _alternating(lexicons["en"], lexicons["zh"])
    bases = {shape.key: _base(counter, shape) for shape in wanted}
    known = all(base is not None for base in bases.values())
    filled = {shape.key: bases[shape.key] or _bare_base(counter, shape) for shape in wanted}
    scale, error = _check_sums(counter.count_text, wanted, lexicons)
    return Calibration(counter.description, lexicons, opening, filled, scale, error, known)


def _price_words(count: Callable[[str], int], words: Sequence[str]) -> Lexicon:
    """Finds single-token words by group testing: a group costs its size only where each of its words is one token."""
    lead = LEADS["en"]
    base = count(lead)
    costs: dict[str, int] = {}
    calls = 0

    def measure(group: Sequence[str]) -> int:
        nonlocal calls
        calls += 1
        return count(lead + "".join(group)) - base

    def price(group: Sequence[str], cost: int) -> None:
        if cost == len(group) or len(group) == 1:
            costs.update({word: 1 if cost == len(group) else max(cost, 1) for word in group})
            return
        half = len(group) // 2
        left = measure(group[:half])
        price(group[:half], left)
        price(group[half:], cost - left)  # what is left over needs no call of its own

    for start in range(0, len(words), 32):
        group = words[start : start + 32]
        price(group, measure(group))
        if sum(cost == 1 for cost in costs.values()) >= _WANTED or calls >= _MOST_CALLS:
            break
    return Lexicon(tuple(costs), tuple(costs.values()))


def _price_each(count: Callable[[str], int], lead: str, units: Sequence[str]) -> Lexicon:
    base = count(lead)
    return Lexicon(tuple(units), tuple(max(count(lead + unit) - base, 1) for unit in units))


def _alternating(one: Lexicon, other: Lexicon) -> Lexicon:
    """Both, weighted so that either language has about half of the tokens."""
    repeat = max(1, round(sum(other.costs) / sum(one.costs)))
    return Lexicon(one.texts * repeat + other.texts, one.costs * repeat + other.costs)


def _base(counter: TokenCounter, shape: Shape) -> int | None:
    lead = LEADS[shape.language]
    if shape.endpoint == "completions":
        return counter.count_text(lead)
    system = [{"role": "system", "content": SYSTEM_LEAD}] if shape.system else []
    return counter.count_messages(
        [*system, {"role": "user", "content": lead}], json.loads(shape.tools) if shape.tools else ()
    )


def _bare_base(counter: TokenCounter, shape: Shape) -> int:
    return counter.count_text(f"{SYSTEM_LEAD}\n{LEADS[shape.language]}" if shape.system else LEADS[shape.language])


def _check_sums(
    count: Callable[[str], int], shapes: Sequence[Shape], lexicons: dict[str, Lexicon]
) -> tuple[float, float]:
    """(scale, error) over random texts of each language that is wanted."""
    ratios = []
    for language in sorted({shape.language for shape in shapes}):
        lexicon, lead = lexicons[language], LEADS[language]
        base = count(lead)
        for trial in range(3):
            picks = choices(key_of("check", language), trial, 400, len(lexicon.texts)).tolist()
            designed = sum(lexicon.costs[pick] for pick in picks)
            ratios.append((count(lead + "".join(lexicon.texts[pick] for pick in picks)) - base) / designed)
    if all(ratio == 1 for ratio in ratios):
        return 1.0, 0.0
    scale = sum(ratios) / len(ratios)
    return scale, max(abs(ratio / scale - 1) for ratio in ratios)


def _in_words(shapes: Sequence[Shape]) -> Calibration:
    """Without a counter: an English word for one token, a Chinese character for 0.7 (near Qwen's and Llama 3's)."""
    words = english()
    opening = Lexicon(words, (1,) * len(words))
    clauses = Lexicon(chinese(), tuple(max(1, round(0.7 * len(text))) for text in chinese()))
    lexicons = {"en": opening, "zh": clauses, "mixed": _alternating(opening, clauses)}
    bases = {}
    for shape in shapes:
        lead = LEADS[shape.language]
        base = len(lead.split()) if shape.language != "zh" else round(0.7 * len(lead))
        bases[shape.key] = base + (len(SYSTEM_LEAD.split()) if shape.system else 0) + len(shape.tools) // 4
    return Calibration("words", lexicons, opening, bases)
