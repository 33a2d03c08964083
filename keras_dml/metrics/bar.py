"""Progress bars for long computations. Without tqdm, no bar is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

# A bar for a few seconds of work would be a distraction.
_SECONDS_WITHOUT_BAR = 20


@contextlib.contextmanager
def long_work_bar(description: str, queries: int) -> Iterator[Callable[[int], object]]:
    """Show a tqdm bar over queries that appears after 20 seconds, only on a terminal.

    The context is a function that advances the bar by a number of queries.
    """
    try:
        from tqdm import tqdm
    except ImportError:  # `pip install keras-dml` does not install tqdm
        yield lambda number: None
        return
    with tqdm(
        desc=description,
        total=queries,
        unit=" queries",
        delay=_SECONDS_WITHOUT_BAR,
        leave=False,
        disable=None,
    ) as bar:
        yield bar.update
