"""Random permutations that compute their items by position and are never stored.

A 64-bit key defines a permutation. One NumPy call computes items of many permutations. Samplers
therefore need no state, and a batch of any epoch takes the same time.
"""

import numpy as np

SORTED_UP_TO = 64
"""Largest size of an exactly uniform permutation. Sorting larger ones would take too long."""

_ROUNDS = 4
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def seed_key(seed: int) -> np.ndarray:
    """Return the uint64 key `[1]` of an integer seed. Seeds are equal modulo 2^64."""
    return derive_keys(np.array([seed % 2**64], np.uint64), np.zeros(1, np.uint64))


def derive_keys(keys: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return keys for the streams `numbers` inside the streams `keys`, uint64 (both are broadcast).

    The mixing function is SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
    generators, OOPSLA 2014).
    """
    mixed = keys + (numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


def permuted(keys: np.ndarray, sizes: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the items at `positions` of random permutations of `range(size)`, one permutation per
    row.

    Args:
        keys: uint64 `[rows]`, the key of each permutation.
        sizes: int64 `[rows]`, 1 or more.
        positions: int64 `[rows, columns]`, in `0..size-1` of the row.

    Returns:
        int64 `[rows, columns]`.
    """
    small = sizes <= SORTED_UP_TO
    if small.all():
        return _by_sorting(keys, sizes, positions)
    items = np.empty_like(positions)
    large = ~small
    items[large] = _by_feistel(keys[large], sizes[large], positions[large])
    if small.any():
        items[small] = _by_sorting(keys[small], sizes[small], positions[small])
    return items


def _by_sorting(keys: np.ndarray, sizes: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Sort `range(size)` by random numbers."""
    candidates = np.arange(sizes.max())
    order = derive_keys(keys[:, None], candidates[None, :])
    order[candidates[None, :] >= sizes[:, None]] = np.iinfo(np.uint64).max
    return np.take_along_axis(np.argsort(order, axis=1, kind="stable"), positions, axis=1)


def _by_feistel(keys: np.ndarray, sizes: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Permute a grid slightly larger than `range(size)`, again and again while outside the range.

    A generalized Feistel network with cycle walking (Black, Rogaway: Ciphers with arbitrary finite
    domains, CT-RSA 2002). Each of the four rounds adds a random function of the column to the row,
    and a random function of the row to the column.
    """
    shape = positions.shape
    keys = np.broadcast_to(keys[:, None], shape).ravel()
    sizes = np.broadcast_to(sizes[:, None].astype(np.uint64), shape).ravel()
    heights = np.sqrt(sizes).astype(np.uint64) + np.uint64(1)
    widths = (sizes + heights - np.uint64(1)) // heights
    items = positions.ravel().astype(np.uint64)
    outside = np.arange(items.size)
    while outside.size:
        key, height, width = keys[outside], heights[outside], widths[outside]
        row, column = np.divmod(items[outside], width)
        for half in range(0, 2 * _ROUNDS, 2):
            row = (row + derive_keys(key, column + np.uint64(half << 40)) % height) % height
            column = (column + derive_keys(key, row + np.uint64((half + 1) << 40)) % width) % width
        items[outside] = row * width + column
        outside = outside[items[outside] >= sizes[outside]]
    return items.astype(np.int64).reshape(shape)
