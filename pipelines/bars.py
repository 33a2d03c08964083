"""Progress bars: one line that updates on a terminal, or a new line every minute in a log file."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, TextIO

from tqdm import tqdm

__all__ = ["Bar"]

_SECONDS_BETWEEN_LINES = 60.0
# Carriage returns, and escape sequences that move the cursor for nested bars.
_CONTROL = re.compile(r"\x1b\[\w+|[\r\n]")


class Bar(tqdm):
    """A tqdm progress bar on standard error.

    In a log file, it writes a line every minute, without control characters, and none if it ends
    earlier.

    Args:
        *args, **kwargs: Arguments of tqdm, except `file`.

    Examples:

        with Bar(total=100, desc="reading", unit="image") as bar:
            bar.update(10)
    """

    last_print_t: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # tqdm reads this variable only when it is imported.
        if os.environ.get("TQDM_DISABLE", "0") not in ("", "0"):
            kwargs["disable"] = True
        self._redraws = sys.stderr.isatty()
        if not self._redraws:
            kwargs.setdefault("mininterval", _SECONDS_BETWEEN_LINES)
            kwargs.setdefault("delay", kwargs["mininterval"])
            kwargs["file"] = _Lines(sys.stderr)
        super().__init__(*args, **kwargs)

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
