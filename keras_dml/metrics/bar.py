"""Progress bars for long computations. Without tqdm, no bar is shown."""

from __future__ import annotations

from typing import Any, Protocol

# A bar for a few seconds of work would be a distraction.
_SECONDS_WITHOUT_BAR = 20


class Bar(Protocol):
    """The interface of a progress bar, which is a context manager."""

    def __enter__(self) -> Bar: ...

    def __exit__(self, *error: object) -> bool | None: ...

    def update(self, n: int = 1) -> object:
        """Advance the bar by n."""


class _NoBar:
    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, n: int = 1) -> None:
        """Do nothing."""


def long_work_bar(description: str, queries: int) -> Bar:
    """Create a tqdm bar over queries that appears after 20 seconds, only on a terminal."""
    return _bar(
        desc=description,
        total=queries,
        unit=" queries",
        delay=_SECONDS_WITHOUT_BAR,
        leave=False,
        disable=None,
    )


def steps_bar(description: str, steps: int, shown: bool) -> Bar:
    """Create a tqdm bar over training steps."""
    return _bar(desc=description, total=steps, unit=" steps", disable=not shown)


def _bar(**arguments: Any) -> Bar:
    # tqdm is optional: `pip install keras-dml` does not install it.
    try:
        from tqdm import tqdm
    except ImportError:
        return _NoBar()
    return tqdm(**arguments)
