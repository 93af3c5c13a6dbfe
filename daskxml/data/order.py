"""A seeded order of n rows, computed for any stretch of it without storing the rest.

The permutation is a balanced Feistel network (M. Luby and C. Rackoff, "How to construct
pseudorandom permutations from pseudorandom functions", 1988) over the smallest even number of bits
that holds n, with cycle walking: a value of n or more is permuted again until it falls below n
(J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", 2002). The round function is the
64-bit finaliser of SplitMix64 (G. Steele, D. Lea and C. Flood, "Fast splittable pseudorandom number
generators", 2014). It shuffles; it is not meant for encryption.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.jit import njit

ROUNDS = 6
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: SplitMix64's increment
MASK = 2**64 - 1


@njit(nogil=True, inline="always")
def mix_bits(word):  # type: ignore[no-untyped-def]
    """SplitMix64's finaliser: a bijection of uint64; every input bit moves every output bit."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@njit(nogil=True)
def encrypt(value, half, keys):  # type: ignore[no-untyped-def]
    """One pass of the network over ``2 * half`` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = value >> half, value & mask
    for i in range(keys.size):
        left, right = right, left ^ (mix_bits(right ^ keys[i]) & mask)
    return (left << half) | right


@njit(nogil=True, inline="always")
def exchanged(value, half):  # type: ignore[no-untyped-def]
    """The two halves of ``2 * half`` bits, exchanged."""
    return ((value & ((np.uint64(1) << half) - np.uint64(1))) << half) | (value >> half)


@njit(nogil=True)
def walk(n, half, keys, start, inverse, out):  # type: ignore[no-untyped-def]
    """Permute start, start + 1, ... into `out`, walking each cycle until it is below n.

    With the keys in reverse order and the halves exchanged, the network is its own inverse.
    """
    for i in range(out.size):
        value = np.uint64(start + i)
        while True:
            value = encrypt(exchanged(value, half) if inverse else value, half, keys)
            value = exchanged(value, half) if inverse else value
            if value < n:
                break
        out[i] = np.int64(value)


def permute(n: int, key: int, start: int, stop: int, *, inverse: bool) -> Array:
    """Check the range and run the network over it."""
    if not 0 <= start <= stop <= n:
        raise ValueError(f"the range {start} to {stop} is not in 0 to {n}")
    half = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
    keys = round_keys(key)[::-1].copy() if inverse else round_keys(key)
    out = np.empty(stop - start, np.int64)
    walk(np.uint64(n), np.uint64(half), keys, start, inverse, out)
    return out


@lru_cache(maxsize=256)  # computed for every batch, with the same key throughout an epoch
def round_keys(key: int) -> Array:
    """The key of every round, ``(ROUNDS,)`` uint64."""
    return np.array([derive_key(key, i) for i in range(ROUNDS)], np.uint64)


def shuffled_positions(n: int, key: int, start: int = 0, stop: int | None = None) -> Array:
    """Positions of the items `start` to `stop` of n in the order given by `key`.

    Parameters
    ----------
    n
        Number of items, below 2**62.
    key
        Chooses the order; see `derive_key`.
    start, stop
        The items wanted, by default all.

    Returns
    -------
    array
        ``(stop - start,)`` int64, distinct, in 0 to n - 1.

    Raises
    ------
    ValueError
        Unless ``0 <= start <= stop <= n``.

    Examples
    --------
    >>> sorted(shuffled_positions(5, key=7).tolist())
    [0, 1, 2, 3, 4]
    """
    return permute(n, key, start, n if stop is None else stop, inverse=False)


def shuffled_sources(n: int, key: int, start: int = 0, stop: int | None = None) -> Array:
    """Items at the positions `start` to `stop`: the inverse of `shuffled_positions`.

    Examples
    --------
    >>> shuffled_positions(9, 7)[shuffled_sources(9, 7, 2, 5)]
    array([2, 3, 4])
    """
    return permute(n, key, start, n if stop is None else stop, inverse=True)


def derive_key(*parts: int) -> int:
    """Mix integers (a seed, an epoch, a stream...) into one 64-bit key, 0 to 2**64 - 1.

    Examples
    --------
    >>> derive_key(0, 1) != derive_key(1, 0)
    True
    """
    state = len(parts)
    for part in parts:
        state = mix_bits_exactly((mix_bits_exactly((state + GOLDEN) & MASK) ^ part) & MASK)
    return state


def mix_bits_exactly(word: int) -> int:
    """`mix_bits` in Python integers, for keys: the first call needs no compilation."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)
