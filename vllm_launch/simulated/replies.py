"""What the engine answers: text drawn from a seed, so that the same prompt and seed give the same reply.

The seed of a reply is made of the engine's seed, the request's own `seed` and the prompt. Without `ignore_eos` a reply
ends at its natural length, drawn from the same seed: log-normal with a median of 200 tokens and a sigma of 0.8.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import overload

from vllm_launch.simulated.tokenizer import block_hashes

_ENGLISH = """
time year people way day thing world life hand part child eye woman place work week case point company number
group problem fact water house light river stone paper table garden window letter morning evening winter summer
market road bridge island ocean forest mountain valley village city street corner engine wheel metal glass
copper silver iron cotton leather butter bread coffee sugar pepper apple lemon orange onion potato chicken horse
sheep tiger eagle sparrow flower petal branch shadow silence music rhythm answer question reason method figure
pattern signal station the of and to in is that for it as was with be by on not he his but at are this have from
or had an they which one two all were when we there can more if
""".split()  # noqa: SIM905
_CHINESE = (
    "天地人山水火木金土日月星风云雨雪春夏秋冬东西南北中上下左右前后里外大小多少长短高低远近新旧早晚明亮白黑红黄蓝绿"
    "心手口目耳足头身家门窗桌书笔纸字文语言音乐画城市道路桥河海湖岛石沙田园花草树叶果鸟鱼马牛羊学生老师朋友时间今年"
)
_MASK = (1 << 64) - 1
_NORMAL = NormalDist()

WORDS = [f" {word}" for word in _ENGLISH[:128]]
CHARACTERS = [*_CHINESE, *_CHINESE][:128]


def _inside_json(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()


_JSON = {text: _inside_json(text) for text in (*WORDS, *CHARACTERS)}


class Reply:
    """One reply, token by token: `piece(i)` is the text of token i, `json_piece(i)` the same inside a JSON string."""

    __slots__ = ("_json", "_pieces", "seed")

    def __init__(self, seed: int, chinese: bool) -> None:
        self.seed = seed
        self._pieces = CHARACTERS if chinese else WORDS
        self._json = _JSON

    def piece(self, i: int) -> str:
        return self._pieces[_mix(self.seed + i) >> 57]

    def json_piece(self, i: int) -> bytes:
        return self._json[self._pieces[_mix(self.seed + i) >> 57]]

    def natural_length(self) -> int:
        """Tokens after which the reply ends by itself."""
        share = (_mix(self.seed ^ 0xE05) + 0.5) / 2.0**64
        return max(1, round(200.0 * math.exp(0.8 * _NORMAL.inv_cdf(share))))


def reply_seed(engine_seed: int, request_seed: int | None, prompt: bytes, choice: int) -> int:
    """64 bits that name one reply; the same in every process."""
    text = b"%d %d %d " % (engine_seed, -1 if request_seed is None else request_seed, choice)
    return int.from_bytes(hashlib.blake2b(text + prompt, digest_size=8).digest())


def _mix(x: int) -> int:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): spreads consecutive integers over 64 bits."""
    x = (x * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class ReplyHashes(Sequence[int]):
    """The block hashes of a prompt followed by a reply, the reply's part made when it is first asked for.

    So the next turn of a conversation, which repeats both, finds them in the prefix cache.
    """

    __slots__ = ("_block_size", "_hashes", "_length", "_reply", "_tail", "_told")

    def __init__(
        self, prompt: Sequence[object], hashes: list[int], block_size: int, reply: Reply, output_tokens: int
    ) -> None:
        self._block_size = block_size
        self._hashes = hashes
        self._tail: list[object] = list(prompt[len(hashes) * block_size :])
        self._reply = reply
        self._told = 0
        self._length = (len(prompt) + output_tokens) // block_size

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, i: int) -> int: ...
    @overload
    def __getitem__(self, i: slice) -> list[int]: ...
    def __getitem__(self, i: int | slice) -> int | list[int]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(self._length))]
        if not 0 <= i < self._length:
            raise IndexError(i)
        while len(self._hashes) <= i:
            while len(self._tail) < self._block_size:
                self._tail.append(self._reply.piece(self._told))
                self._told += 1
            before = self._hashes[-1] if self._hashes else 0
            # A copy of its own: the choices of one request share the prompt's hashes, not their replies'.
            self._hashes = [*self._hashes, *block_hashes(self._tail, self._block_size, before)]
            self._tail = []
        return self._hashes[i]
