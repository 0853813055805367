"""The paged KV cache: fixed blocks of tokens, shared by hash where prompts share a prefix, evicted least recently used.

The rules are those of vLLM V1's block pool: a freed block keeps its content and its hash until it is handed out again;
free blocks are handed out from the one freed longest ago; the blocks of one request are freed last block first, so that
the start of a prompt outlives its end. One block is the null block and never handed out. Pure: numbers only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class KVCache:
    """`blocks` blocks of `block_size` tokens. Block hashes are any ints; who makes them decides what is shared."""

    __slots__ = ("_by_hash", "_free", "_hash", "_users", "block_size", "blocks", "caching")

    def __init__(self, blocks: int, block_size: int, caching: bool) -> None:
        self.blocks = blocks - 1
        self.block_size = block_size
        self.caching = caching
        self._users = [0] * blocks
        self._hash: list[int | None] = [None] * blocks
        self._by_hash: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))

    @property
    def free(self) -> int:
        """Blocks nobody uses, cached content or not."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """The share of blocks in use, as `vllm:kv_cache_usage_perc` reports it."""
        return 1.0 - len(self._free) / self.blocks

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def cached_prefix(self, hashes: Sequence[int], tokens: int) -> list[int]:
        """The blocks that hold the longest cached prefix of a prompt of `tokens` tokens with these block hashes.

        The last token is always computed, for its logits are needed: a prompt never hits entirely.
        """
        found: list[int] = []
        if not self.caching:
            return found
        by_hash = self._by_hash
        for i in range(min(len(hashes), (tokens - 1) // self.block_size)):
            block = by_hash.get(hashes[i])
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Sequence[int]) -> int:
        """How many of these cached blocks nobody uses: taking them uses up free blocks."""
        users = self._users
        return sum(1 for block in blocks if not users[block])

    def share(self, blocks: Sequence[int]) -> None:
        """One more user for each of these cached blocks."""
        for block in blocks:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1

    def take(self, count: int) -> list[int]:
        """`count` blocks for new content; whatever they cached is forgotten. There must be as many free."""
        users, hashes, oldest = self._users, self._hash, self._free.popitem
        taken = [oldest(last=False)[0] for _ in range(count)]
        for block in taken:
            users[block] = 1
            known = hashes[block]
            if known is not None:
                del self._by_hash[known]
                hashes[block] = None
        return taken

    def remember(self, block: int, content: int) -> None:
        """The block is full and holds the content of this hash; a second block of the same content stays unknown."""
        if self.caching and content not in self._by_hash:
            self._by_hash[content] = block
            self._hash[block] = content

    def release(self, blocks: Sequence[int]) -> None:
        """One user less for each of a request's blocks, given in the order of its tokens."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None

    def forget(self) -> None:
        """Drops all cached content (vLLM's `/reset_prefix_cache`); only when nothing runs."""
        self._by_hash.clear()
        self._hash = [None] * (self.blocks + 1)
