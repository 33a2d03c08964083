"""Draws of items as evenly as possible: all items appear equally often over the draws."""

import numpy as np

from pipelines.permutation import derive_keys, permuted


def choose(keys: np.ndarray, sizes: np.ndarray, count: int, numbers: np.ndarray) -> np.ndarray:
    """Draw `count` items of `range(size)` as evenly as possible, one independent sequence per row.

    Over the draws 0, 1, 2, … of a row, all items appear equally often (±1). Each item appears at
    most `ceil(count / size)` times in one draw.

    Args:
        keys: uint64 `[rows]`.
        sizes: int64 `[rows]`.
        count: Items in a draw, one integer for all rows.
        numbers: int64 `[rows]`, the number of the draw.

    Returns:
        int64 `[rows, count]`.
    """
    rest = count % sizes
    complement = draws_complement(sizes, rest)
    drawn = np.where(complement, sizes - rest, rest)
    items = _window(keys, sizes, drawn, numbers)
    chosen = np.empty((len(sizes), count), np.int64)
    for row, size in enumerate(sizes.tolist()):
        remaining = items[row, : drawn[row]]
        if complement[row]:
            remaining = np.setdiff1d(np.arange(size), remaining)
        # First, each item count // size times, then the remaining ones.
        chosen[row] = np.concatenate([np.tile(np.arange(size), count // size), remaining])
    return chosen


def draws_complement(sizes: np.ndarray | int, wanted: np.ndarray | int) -> np.ndarray:
    """Return whether to draw the items to leave out. `_window` needs sizes ≥ 2·drawn - 1."""
    return np.asarray(sizes < 2 * wanted - 1)


def _window(
    keys: np.ndarray, sizes: np.ndarray, drawn: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """Return window `number` of `drawn` items on a walk through permutations of `range(size)`.

    The walk of a row joins random permutations (its cycles), so all items appear equally often. If
    a window spans two cycles, the second cycle could repeat items of the first. To prevent this,
    the first `drawn` items of each cycle are sorted stably: items in the tail of the previous
    cycle, which is in the same window, come last. With `size ≥ 2·drawn - 1`, the tail is never in
    the sorted part, so only one previous cycle is needed.

    Args:
        keys: uint64 `[rows]`.
        sizes, drawn, numbers: int64 `[rows]`.

    Returns:
        int64 `[rows, max(1, largest drawn)]`. Only the first `drawn` items of a row are valid.
    """
    column = np.arange(max(1, drawn.max()))[None, :]
    drawn = np.maximum(drawn, 1)
    last_cycle = (numbers * drawn + drawn - 1) // sizes
    tail_length = (last_cycle * sizes % drawn)[:, None]
    cycles, positions = np.divmod((numbers * drawn)[:, None] + column, sizes[:, None])
    within = (sizes - 1)[:, None]
    wanted = np.concatenate([np.broadcast_to(column, positions.shape), positions], axis=1)
    head, here = np.split(
        permuted(derive_keys(keys, last_cycle), sizes, np.minimum(wanted, within)), 2, axis=1
    )
    tail_positions = np.minimum(within + 1 - tail_length + column, within)
    tail = permuted(derive_keys(keys, last_cycle - 1), sizes, tail_positions)
    in_tail = (head[:, :, None] == tail[:, None, :]) & (column < tail_length)[:, None, :]
    order = np.argsort(in_tail.any(axis=2) + 2 * (column >= drawn[:, None]), axis=1, kind="stable")
    head = np.take_along_axis(head, order, axis=1)
    from_head = np.take_along_axis(head, np.minimum(positions, column[0, -1]), axis=1)
    here = np.where(positions < drawn[:, None], from_head, here)
    # If a window spans two cycles, it starts with the tail.
    return np.where(cycles < last_cycle[:, None], tail, here)


def occurrences(
    key: np.ndarray, size: int, drawn: int, number: int, items: np.ndarray
) -> np.ndarray:
    """Return how many of the windows before window `number` contain each item, int64 `[items]`.

    An item is in each cycle of the walk once, so only windows of the last cycle need a look.
    """
    cycle = number * drawn // size
    draws = np.arange(cycle * size // drawn, number)
    if not len(draws):
        return np.full(len(items), cycle)
    walk = _window(
        np.repeat(key, len(draws)),
        np.full(len(draws), size),
        np.full(len(draws), drawn),
        draws,
    )
    slots = draws[:, None] * drawn + np.arange(drawn)
    return cycle + np.isin(items, walk[slots >= cycle * size])
