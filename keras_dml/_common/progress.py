"""Progress bars: one line that updates on a terminal, or a new line every minute in a log file.

Without tqdm, no bar is shown.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any, TextIO

try:
    from tqdm import tqdm
except ImportError:  # `pip install keras-dml` does not install tqdm

    class tqdm:  # type: ignore[no-redef]
        """Stands in for a disabled bar."""

        disable = True

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.n = 0

        def __enter__(self) -> tqdm:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def update(self, number: int = 1) -> None:
            """Do nothing."""


__all__ = ["Bar", "long_work_bar"]

_SECONDS_BETWEEN_LINES = 60.0
# Carriage returns, and escape sequences that move the cursor for nested bars.
_CONTROL = re.compile(r"\x1b\[\w+|[\r\n]")


class Bar(tqdm):
    """A tqdm progress bar on standard error, in images.

    In a log file, it writes a line every minute, without control characters, and none if it ends
    earlier.

    Args:
        desc: Text before the bar.
        total: Number of images, or of another unit.
        **options: Other arguments of tqdm, except `file`.

    Examples:

        with Bar("reading", total=100) as bar:
            bar.update(10)
    """

    last_print_t: float

    def __init__(self, desc: str = "", total: int | None = None, **options: Any) -> None:
        # tqdm reads this variable only when it is imported.
        if os.environ.get("TQDM_DISABLE", "0") not in ("", "0"):
            options["disable"] = True
        self._redraws = sys.stderr.isatty()
        if self._redraws:
            options = {"mininterval": 0.2, "dynamic_ncols": True} | options
        else:
            options.setdefault("mininterval", _SECONDS_BETWEEN_LINES)
            options.setdefault("delay", options["mininterval"])
            options["file"] = _Lines(sys.stderr)
        options = {"unit": "image", "leave": False} | options
        super().__init__(desc=desc, total=total, **options)

    def refresh(self, *args: Any, **kwargs: Any) -> Any:
        """Show the bar. In a log file, only if the last line is old enough."""
        if self.disable or self._redraws or not hasattr(self, "last_print_t"):
            return super().refresh(*args, **kwargs)
        # A new description and tqdm's thread call this method at any time.
        if self._time() - self.last_print_t >= self.mininterval:
            super().refresh(*args, **kwargs)
            self.last_print_t = self._time()
        return True

    def begin_counting(self, done: int) -> None:
        """Count `done` finished items, but exclude them from the rate."""
        self.n += done
        if self.disable:  # A disabled bar has no clock.
            return
        self.initial = self.n
        self.start_t = self.last_print_t = self._time()
        self.last_print_n = self.n
        self.refresh()


class _Lines:
    """A stream that writes each update of a bar as a separate line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write the text without control characters, as one line."""
        line = _CONTROL.sub("", text).rstrip()
        if line:
            self._stream.write(f"{line}\n")

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


def long_work_bar(description: str, total: int, unit: str = " queries") -> Bar:
    """Create a bar that appears after 20 seconds, only on a terminal.

    A bar for a few seconds of work would be a distraction.
    """
    hidden = not sys.stderr.isatty()
    return Bar(description, total, unit=unit, delay=20, disable=hidden)
