"""An order of 0..n-1 of which any part can be computed alone: for datasets whose whole order is too large to hold.

Shuffling an array of ten million numbers takes half a second and 80 MB in every rank at every start. This takes nothing
at the start, and well below a microsecond for each sample.

A number is split in two halves, and each half in turn is changed by a keyed hash of the other. That maps the numbers of
this many bits onto themselves, one to one. A result outside 0..n-1 is mapped again until it is inside. What is computed
here decides which sample is trained when: changing it makes a new kind of cursor (perdure.loop.data.sampling).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.int64]]
_Words = np.ndarray[Any, np.dtype[np.uint64]]

ROUNDS: Final = 8
_ADD_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_FACTOR: Final = np.uint64(0xD6E8FEB86659FD93)
_FOLD: Final = np.uint64(32)


def permuted(positions: Numbers, size: int, *key: int) -> Numbers:
    """The values at `positions` in the order of 0..size-1 that belongs to `key`."""
    rounds = np.random.SeedSequence(list(key)).generate_state(ROUNDS, np.uint64).astype(np.uint64)
    bits = max(2, (size - 1).bit_length())
    values = _scattered(positions.astype(np.uint64), bits, rounds)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        values[outside] = _scattered(values[outside], bits, rounds)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _scattered(numbers: _Words, bits: int, rounds: _Words) -> _Words:
    """Maps numbers of `bits` bits, one to one."""
    high_bits = bits // 2
    low_bits = bits - high_bits
    high = numbers >> np.uint64(low_bits)
    low = numbers & np.uint64((1 << low_bits) - 1)
    for number, key in enumerate(rounds):
        if number % 2:
            low ^= _hashed(high, key, low_bits)
        else:
            high ^= _hashed(low, key, high_bits)
    high <<= np.uint64(low_bits)
    high |= low
    return high


def _hashed(half: _Words, key: np.uint64, bits: int) -> _Words:
    mixed = half * _ADD_FACTOR
    mixed += key
    mixed ^= mixed >> _FOLD
    mixed *= _MIX_FACTOR
    mixed >>= np.uint64(64 - bits)
    return mixed
