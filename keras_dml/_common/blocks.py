"""Blocks of rows."""

from collections.abc import Iterator


def slices(count: int, size: int) -> Iterator[slice]:
    """Return slices of `size` numbers, at least 1, that cover `count` numbers."""
    step = max(1, size)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))
