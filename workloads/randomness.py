"""Numbers that depend on (key, index) alone, so that any worker can make request i without having made the others.

Counter-based by hashing (BLAKE2b, SHAKE-128): the same on every platform and with every version of numpy.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_MASK64 = (1 << 64) - 1


def key_of(*parts: object) -> bytes:
    """A 32-byte key for one purpose; different parts give unrelated keys."""
    return hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=32).digest()


def uniforms(key: bytes, index: int, count: int) -> list[float]:
    """`count` numbers in the open interval (0, 1) for this index. At most 8."""
    digest = hashlib.blake2b(index.to_bytes(8, "little"), digest_size=8 * count, key=key).digest()
    return [((int.from_bytes(digest[i : i + 8], "little") >> 11) + 0.5) * 2.0**-53 for i in range(0, 8 * count, 8)]


def uniform_array(key: bytes, index: int, count: int) -> npt.NDArray[np.float64]:
    """As `uniforms`, for any count."""
    words = np.frombuffer(hashlib.shake_128(key + index.to_bytes(8, "little")).digest(8 * count), dtype="<u8")
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def choices(key: bytes, index: int, count: int, below: int) -> npt.NDArray[np.int64]:
    """`count` integers in [0, below), below <= 65536; the bias is at most below/65536 of each one's share."""
    draws = np.frombuffer(hashlib.shake_128(key + index.to_bytes(8, "little")).digest(2 * count), dtype="<u2")
    return (draws.astype(np.int64) * below) >> 16


def scramble64(key: bytes, number: int) -> int:
    """A bijection of the 64-bit numbers chosen by the key: two numbers never give the same result.

    The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) between two key-dependent shifts.
    """
    first, second = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:16], "little")
    x = (number + first) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return (x ^ (x >> 31)) ^ second
