"""Progress bars for long computations. Without tqdm, no bar is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

# A bar for a few seconds of work would be a distraction.
_SECONDS_WITHOUT_BAR = 20


def long_work_bar(
    description: str, queries: int
) -> contextlib.AbstractContextManager[Callable[[int], object]]:
    """Show a tqdm bar over queries that appears after 20 seconds, only on a terminal.

    The context is a function that advances the bar by a number of queries.
    """
    return _bar(
        desc=description,
        total=queries,
        unit=" queries",
        delay=_SECONDS_WITHOUT_BAR,
        leave=False,
        disable=None,
    )


def steps_bar(
    description: str, steps: int, shown: bool
) -> contextlib.AbstractContextManager[Callable[[int], object]]:
    """Show a tqdm bar over training steps. The context advances the bar, as in `long_work_bar`."""
    return _bar(desc=description, total=steps, unit=" steps", disable=not shown)


@contextlib.contextmanager
def _bar(**arguments: Any) -> Iterator[Callable[[int], object]]:
    try:
        from tqdm import tqdm
    except ImportError:  # `pip install keras-dml` does not install tqdm
        yield lambda number: None
        return
    with tqdm(**arguments) as bar:
        yield bar.update
