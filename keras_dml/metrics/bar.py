"""The progress bar of work that may take long; none where tqdm is not installed."""

from __future__ import annotations

from typing import Any, Protocol

# A bar for work of seconds would only be noise.
_SECONDS_WITHOUT_BAR = 20


class Bar(Protocol):
    """What is asked of a bar, in a `with` statement."""

    def __enter__(self) -> Bar: ...

    def __exit__(self, *error: object) -> bool | None: ...

    def update(self, n: int = 1) -> object:
        """So many more are done."""


class _NoBar:
    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, n: int = 1) -> None:
        """Nothing to draw on."""


def long_work_bar(description: str, queries: int) -> Bar:
    """A tqdm bar over queries that shows after 20 seconds, on a terminal alone."""
    return _bar(
        desc=description,
        total=queries,
        unit=" queries",
        delay=_SECONDS_WITHOUT_BAR,
        leave=False,
        disable=None,
    )


def steps_bar(description: str, steps: int, shown: bool) -> Bar:
    """A tqdm bar over training steps."""
    return _bar(desc=description, total=steps, unit=" steps", disable=not shown)


def _bar(**arguments: Any) -> Bar:
    # Not of the library's own needs: `pip install keras-dml` brings no tqdm.
    try:
        from tqdm import tqdm
    except ImportError:
        return _NoBar()
    return tqdm(**arguments)
